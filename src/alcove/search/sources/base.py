"""What every source of candidates does, and what it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from alcove.core.clock import SECOND
from alcove.core.filters import Filter
from alcove.core.records import SearchMode
from alcove.engine.rows import Row, Scope, Text
from alcove.search.corpus import Corpus, Item
from alcove.search.query import ParsedQuery
from alcove.search.text_vectors import decode_vectors
from alcove.search.vectors import Mask

_decode_fields = msgspec.json.Decoder(dict[str, str]).decode

RowPredicate = Callable[[Row], bool]
"""Whether a row meets the conditions on fields that only its opened value has."""


class CandidateRequest(NamedTuple):
    """What a search needs: the candidates for a query, or certain versions."""

    filter: Filter
    row_matches: RowPredicate
    embedder: str
    now: int
    query: ParsedQuery | None = None
    mode: SearchMode = "hybrid"
    limit: int = 0
    """How many of the best hits are needed."""
    seqs: Sequence[int] | None = None


class Candidates(NamedTuple):
    """A corpus and the rows of it that may be hits; `degraded` says why some may be missing."""

    corpus: Corpus
    mask: Mask
    degraded: str | None = None


class ScopeCandidates(Protocol):
    """What a source has in memory for one scope. All callers to whom the policy shows the same of it share
    it."""

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""

    def find(self, request: CandidateRequest) -> Candidates | None:
        """The candidates among the memories that are live now; None if another source has to find them."""

    def clear(self) -> None:
        """Frees its memory; the next `find` reads the database again."""


class CandidateSource(Protocol):
    """A place where candidates are found."""

    def open(self, scope: Scope) -> ScopeCandidates:
        """The candidates of a scope, which has no filter; nothing is read yet."""

    def catch_up(self) -> int:
        """Indexes some of the texts that got vectors since the last call; returns how many."""

    @property
    def problem(self) -> str | None:
        """Why it finds less than it could, if so."""


def item_of(text: Text) -> Item:
    """A text as ranking reads it."""
    vectors, tokens = decode_vectors(text.vectors) if text.vectors else ({}, {})
    return Item(
        id=text.seq,
        namespace=text.ns,
        sequence=text.seq,
        fields=_decode_fields(text.index_text),
        vectors=vectors,
        written_at=text.created_at / SECOND,
        tokens=tokens,
    )
