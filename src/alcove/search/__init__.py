"""Searches memories by meaning and words: embedders, candidate sources and ranking."""

from __future__ import annotations

from typing import NamedTuple

from alcove.core.records import SearchMode


class SearchOptions(NamedTuple):
    """How a search answers."""

    limit: int
    mode: SearchMode = "hybrid"
    offset: int = 0
    """How many of the best hits to skip."""
    explain: bool = False
    """Whether each hit says what each signal added to its rank."""
    calibrated: bool = False
    """Whether hits are ordered by how likely they answer the query."""
    min_relevance: float = 0.0
    """The least relevance of a hit, from 0 to 1."""
    unranked: bool = False
    """Whether memories without vectors come last in semantic mode, instead of not at all."""
