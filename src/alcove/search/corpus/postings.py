"""Which rows hold a term, and how often: the inverted index of one subtree, in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix
from alcove.search.text.terms import LANGUAGE, Term, number
from alcove.search.text.words import STOP_WORDS

Rows = NDArray[np.int32]
K1 = 0.9
"""How soon one more mention of a word adds nothing."""
MOST_LEVELLING = 0.9
"""How far BM25 levels long and short texts at most, its `b`."""
SLOTS = 8
"""Bytes a term in the table that says quickly that a term is not there: it is wrong for one in so many."""


class PostingList(NamedTuple):
    """The rows that hold a term, how often each does, and how many documents do in all."""

    rows: Rows
    counts: Matrix
    held: float


class Sampled(NamedTuple):
    """What the first rows are a sample of; those after it are there because they hold what is asked for."""

    rows: int
    documents: int

    def held(self, rows: Rows) -> float:
        """About how many documents hold what these rows hold."""
        share = self.documents / max(self.rows, 1)
        return min(max(len(rows), int(np.count_nonzero(rows < self.rows)) * share), self.documents)


_NONE = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32))


class _Block(NamedTuple):
    """Posting lists side by side, in the order of their terms' numbers; no word is kept as it is spelled."""

    terms: NDArray[np.int64]
    starts: Rows
    """Where the list of each term begins, and at last where the last one ends."""
    rows: Rows
    counts: Matrix
    slots: bytes
    """1 at the last bits of each term's number."""
    first: int = 0
    """What is added to each of `rows`."""

    @classmethod
    def of(cls, terms: NDArray[np.int64], rows: Rows, counts: Matrix) -> _Block:
        """From postings in the order of their rows; those of a term in one row become one."""
        order = np.argsort(terms, kind="stable")
        terms, rows = terms[order], rows[order]
        other = terms[1:] != terms[:-1]
        once = _begins(other | (rows[1:] != rows[:-1]), len(terms))
        rows, counts = rows[once], np.add.reduceat(counts[order], once) if len(once) else counts
        terms = terms[once]
        begins = _begins(terms[1:] != terms[:-1], len(terms))
        starts = np.append(begins, len(terms)).astype(np.int32)
        terms = terms[begins]
        slots = np.zeros(1 << (SLOTS * len(terms)).bit_length(), dtype=np.uint8)
        slots[terms & (len(slots) - 1)] = 1
        return cls(terms, starts, rows, counts, slots.tobytes())

    def postings(self) -> tuple[NDArray[np.int64], Rows, Matrix]:
        """What it is made of."""
        return np.repeat(self.terms, np.diff(self.starts)), self.rows, self.counts

    def held(self, number: int) -> tuple[Rows, Matrix] | None:
        """The rows that hold a term, and how often each does."""
        if not self.slots[number & (len(self.slots) - 1)]:
            return None
        place = int(self.terms.searchsorted(number))
        if place == len(self.terms) or self.terms[place] != number:
            return None
        found = slice(self.starts[place], self.starts[place + 1])
        rows = self.rows[found]
        return rows + np.int32(self.first) if self.first else rows, self.counts[found]

    @property
    def bytes(self) -> int:
        arrays = (self.terms, self.starts, self.rows, self.counts)
        return len(self.slots) + sum(each.nbytes for each in arrays)


class Postings:
    """A snapshot: a change makes another one, which shares the large block of what did not change.

    `lengths` has the number of terms in each row's text, 0 where a row was removed, and `documents` says
    how many rows were not. `live` tells the rows that were not removed, None where none was. `sampled` says
    of what it has only some, and `parts` of what it is joined: both are for what words are worth.
    """

    def __init__(
        self,
        blocks: Sequence[_Block],
        lengths: Matrix,
        live: NDArray[np.bool_] | None = None,
        sampled: Sampled | None = None,
        parts: Sequence[Postings] = (),
    ) -> None:
        self._blocks, self.lengths, self._live, self._parts = blocks, lengths, live, parts
        self.sampled = sampled
        self._rows = len(lengths) if live is None else int(np.count_nonzero(live))
        self.documents: int = sampled.documents if sampled else self._rows
        if parts:
            self.documents = sum(part.documents for part in parts)

    @classmethod
    def of(cls, documents: Iterable[Sequence[int]]) -> Postings:
        """From the numbers of each row's terms, as often as it holds them; 0 stands for none."""
        every: list[int] = []
        ends = [0]
        for document in documents:
            every += document
            ends.append(len(every))
        rows = np.repeat(np.arange(len(ends) - 1, dtype=np.int32), np.diff(ends))
        return cls.of_pairs(np.array(every, dtype=np.int64), rows, len(ends) - 1)

    @classmethod
    def of_pairs(cls, terms: NDArray[np.int64], rows: Rows, count: int) -> Postings:
        """The same, from the numbers and the row of each, of so many; those of a term in the rows' order."""
        some = terms != 0
        terms, rows = terms[some], rows[some]
        lengths = np.bincount(rows, terms & 1 == 0, count).astype(np.float32)
        return cls([_Block.of(terms, rows, np.ones(len(terms), dtype=np.float32))], lengths)

    @classmethod
    def joined(cls, parts: Sequence[Postings]) -> Postings:
        """Those of several parts, the rows of each after the rows of the one before."""
        starts = [*accumulate((len(part.lengths) for part in parts), initial=0)]
        blocks = [
            block._replace(first=start + block.first)
            for part, start in zip(parts, starts, strict=False)
            for block in part._blocks
        ]
        live = None
        if any(part._live is not None for part in parts):
            every = (np.ones(len(p.lengths), dtype=bool) if p._live is None else p._live for p in parts)
            live = np.concatenate([*every])
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(blocks, lengths, live, parts=parts if any(part.sampled for part in parts) else ())

    def changed(self, added: Iterable[Sequence[int]], live: NDArray[np.bool_]) -> Postings:
        """With documents at the rows after the last; `live` tells which of all rows are not removed."""
        more = Postings.of(added)
        large, *small = self._blocks
        (block,) = more._blocks
        block = block._replace(rows=block.rows + np.int32(len(self.lengths)))
        if small:
            parts = [each.postings() for each in (*small, block)]
            block = _Block.of(*map(np.concatenate, zip(*parts, strict=True)))
        blocks = [large, block]
        lengths = np.append(self.lengths, more.lengths)
        lengths[~live] = 0
        return Postings(blocks, lengths, None if live.all() else live, self.sampled)

    def as_sample(self, documents: int) -> Postings:
        """The same as a sample of so many documents."""
        return Postings(self._blocks, self.lengths, self._live, Sampled(len(self.lengths), documents))

    def __contains__(self, term: Term) -> bool:
        its = number(term)
        if self._live is None:
            return any(block.held(its) for block in self._blocks)
        return len(self.held(term).rows) > 0

    def held(self, term: Term) -> PostingList:
        """The rows that hold a term, and how often each does."""
        return self.numbered(number(term))

    def numbered(self, its: int) -> PostingList:
        """The same for a term by its number."""
        lists = [found for block in self._blocks if (found := block.held(its))]
        rows, counts = lists[0] if lists else _NONE
        if len(lists) > 1:
            rows, counts = map(np.concatenate, zip(*lists, strict=True))
        if self._live is not None:
            kept = self._live[rows]
            rows, counts = rows[kept], counts[kept]
        if self._parts:
            return PostingList(rows, counts, sum(part.numbered(its).held for part in self._parts))
        return PostingList(rows, counts, self.sampled.held(rows) if self.sampled else len(rows))

    @property
    def bytes(self) -> int:
        """How much memory the lists take."""
        return sum(block.bytes for block in self._blocks) + 2 * self.lengths.nbytes

    @cached_property
    def languages(self) -> list[str]:
        """The languages of texts, beside English."""
        return [name for name in STOP_WORDS if (LANGUAGE, name) in self]

    @cached_property
    def average(self) -> float:
        """Terms of a text."""
        return max(float(self.lengths.sum(dtype=np.float64)) / max(self._rows, 1), 1e-9)

    @cached_property
    def levelling(self) -> float:
        """BM25's `b`: how much more of a word a long text needs, from how far the lengths are apart.

        Turns of like length differ because one of them says more; among an essay and a remark, the essay
        holds more words whatever it is about.
        """
        lengths = self.lengths if self._live is None else self.lengths[self._live]
        spread = float(np.log1p(lengths, dtype=np.float64).std()) if len(lengths) else 0.0
        return min(spread, MOST_LEVELLING)

    @cached_property
    def _norms(self) -> Matrix:
        """What a term's count in each row is weighed against."""
        b = self.levelling
        return (K1 * (1 - b + b * self.lengths / self.average)).astype(np.float32)

    def rarity(self, held: float) -> float:
        """What a word is worth that so many documents hold."""
        return rarity(held, self.documents)

    def weights(self, found: PostingList, *, levelled: bool = True) -> Matrix:
        """BM25 of a term in the rows that hold it; of a label, how long it is says nothing."""
        rows, counts, held = found
        weights = counts * np.float32(self.rarity(held) * (K1 + 1))
        weights /= counts + (self._norms[rows] if levelled else np.float32(K1))
        return weights

    def likeness(self, here: Rows, there: Rows) -> NDArray[np.float64]:
        """For each pair of rows, the cosine of the words of their texts, of which the rare ones count most.

        Only before any change.
        """
        (block,) = self._blocks
        held, size = np.diff(block.starts), len(block.terms)
        weights = np.where(block.terms & 1, 0, np.log(self.documents / held) ** 2)
        asked = np.zeros(len(self.lengths), dtype=np.bool_)
        asked[here] = asked[there] = True
        chosen = asked[block.rows]
        rows, terms = block.rows[chosen], np.repeat(np.arange(size), held)[chosen]
        by_row = np.argsort(rows, kind="stable")
        rows, terms = rows[by_row], terms[by_row]
        own = weights[terms]
        norms = np.bincount(rows, own, len(asked))
        keys = rows * np.int64(size) + terms  # in order, by row and term
        begins = rows.searchsorted(here)
        counts = rows.searchsorted(here, side="right") - begins
        pairs = np.repeat(np.arange(len(here)), counts)
        places = np.arange(len(pairs)) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        wanted = there[pairs] * np.int64(size) + terms[places]
        shared = keys.take(keys.searchsorted(wanted), mode="clip") == wanted
        total = np.bincount(pairs, own[places] * shared, len(here))
        return np.where(total, total / np.sqrt(np.where(total, norms[here] * norms[there], 1)), 0.0)


def rarity(held: float, documents: int) -> float:
    """What a word is worth that so many of all documents hold."""
    return math.log(1 + (documents - held + 0.5) / (held + 0.5))


def _begins(other: NDArray[np.bool_], size: int) -> NDArray[np.intp]:
    """Where runs of the same begin among so many; `other` tells of each after the first if it differs."""
    return np.flatnonzero(np.append(True, other)[:size])
