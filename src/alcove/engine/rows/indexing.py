"""Rows of the search index: texts that wait for vectors, texts that are searched, and what changed."""

from __future__ import annotations

from typing import NamedTuple


class TextToIndex(NamedTuple):
    """A version whose text needs vectors, how often that was tried, and where the next piece begins."""

    seq: int
    index_text: str
    tries: int = 0
    field: int = 0
    window: int = 0


class EmbeddedPiece(NamedTuple):
    """Vectors of a text, or of the next piece of it."""

    text: TextToIndex
    body: bytes
    size: int
    """Bytes of text that the vectors stand for."""
    next_place: tuple[int, int] | None
    """The field and window where the next piece begins; None if the text is complete."""


class Text(NamedTuple):
    """A live version's text as it is searched; `vectors` is None while it waits for them."""

    seq: int
    ns: bytes
    created_at: int
    expires_at: int | None
    index_text: str
    vectors: bytes | None


class IndexState(NamedTuple):
    """How far a store has come; two equal states mean that nothing a search can see has changed."""

    seq: int
    vectors: int
    touches: int
    erased: int
    serving: str | None


class CorpusTooLarge(Exception):
    """The texts and vectors of a scope take more memory than the caller has."""


class Change(NamedTuple):
    """What happened to a subtree's texts since a state."""

    state: IndexState
    added: list[Text]
    """Texts that were added or got their vectors."""
    superseded: list[int]
    """Versions that ended because newer ones replaced them."""
    live: list[int] | None
    """Every live version, if something was erased (the log does not record that)."""
    expiries: list[tuple[int, int | None]]
    """New expiries, by version."""


class IndexStatus(NamedTuple):
    """How many texts wait for vectors, failed for good (`parked`), or are indexed."""

    waiting: int
    parked: int
    indexed: int
    oldest: int | None
    """When the text was written that has waited longest."""
