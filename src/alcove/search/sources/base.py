"""The protocol of candidate sources, and what they are asked and answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from alcove.core.clock import SECOND
from alcove.core.records import SearchMode
from alcove.engine.rows import Row, Scope, Text
from alcove.search.corpus import Corpus, Item
from alcove.search.query import ParsedQuery
from alcove.search.text_vectors import decode_vectors
from alcove.search.vectors import Mask

decode_fields = msgspec.json.Decoder(dict[str, str]).decode

RowPredicate = Callable[[Row], bool]
"""Whether a row meets the conditions on fields that are only in its decrypted value."""


class CandidateRequest(NamedTuple):
    """What a search needs: the candidates for a query, or certain versions."""

    row_matches: RowPredicate
    """Decides about conditions of the scope's filter that the database cannot."""
    embedder: str
    now: int
    query: ParsedQuery | None = None
    mode: SearchMode = "hybrid"
    limit: int = 0
    """How many of the best hits are needed."""
    seqs: Sequence[int] | None = None


class Candidates(NamedTuple):
    """A corpus, and the rows of it that may be hits; `degraded` says why some may be missing."""

    corpus: Corpus
    mask: Mask
    degraded: str | None = None


class CandidateSource(Protocol):
    """Finds the texts of a scope that may answer a query."""

    def find(self, scope: Scope, request: CandidateRequest) -> Candidates | None:
        """The candidates among the live memories of a scope; None if another source has to find them."""

    def catch_up(self) -> int:
        """Indexes some of the texts that were embedded since the last call; returns how many."""

    @property
    def problem(self) -> str | None:
        """Why it finds less than it should, if so."""


def to_item(text: Text) -> Item:
    """Converts a stored text to an item of a corpus."""
    vectors, tokens = decode_vectors(text.vectors) if text.vectors else ({}, {})
    return Item(
        id=text.seq,
        namespace=text.ns,
        sequence=text.seq,
        fields=decode_fields(text.index_text),
        vectors=vectors,
        written_at=text.created_at / SECOND,
        tokens=tokens,
    )
