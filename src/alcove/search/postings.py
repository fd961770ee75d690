"""The inverted index of a corpus: which rows contain a term and how often, and BM25 over it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix
from alcove.search.vectors import Mask, Rows
from alcove.search.words import LANGUAGE, STOP_WORDS, Term, term_number

K1 = 0.9
"""BM25's k1: how soon another mention of a word adds nothing."""
MAX_LEVELLING = 0.9
"""The highest `b` of BM25: how far it evens out long and short texts."""
SLOTS_PER_TERM = 8
"""Bytes of a term in the filter that rules terms out quickly; one in eight absent terms passes it."""


class PostingList(NamedTuple):
    """The rows that contain a term and how often; and how many documents of all contain it."""

    rows: Rows
    counts: Matrix
    document_count: float


class SampleSize(NamedTuple):
    """Says of how many documents the first rows are a sample.

    Rows after these are candidates: they are here because they contain what the query asks for.
    """

    row_count: int
    document_count: int

    def estimate(self, rows: Rows) -> float:
        """About how many documents contain a term that these rows contain."""
        in_sample = int(np.count_nonzero(rows < self.row_count))
        scale = self.document_count / max(self.row_count, 1)
        return min(max(len(rows), in_sample * scale), self.document_count)


class _Block(NamedTuple):
    """Posting lists one after the other, by term number. No word is stored as it is spelled."""

    terms: NDArray[np.int64]
    starts: Rows
    """Where the list of each term begins, and where the last one ends."""
    rows: Rows
    counts: Matrix
    slots: bytes
    """1 at the last bits of each term's number."""
    first: int = 0
    """The number of rows before this block, which is added to each of `rows`."""

    @classmethod
    def of(cls, terms: NDArray[np.int64], rows: Rows, counts: Matrix) -> _Block:
        """Makes a block of postings in the order of their rows; merges those of the same term and row."""
        order = np.argsort(terms, kind="stable")
        terms, rows = terms[order], rows[order]
        firsts = _run_starts((terms[1:] != terms[:-1]) | (rows[1:] != rows[:-1]), len(terms))
        counts = np.add.reduceat(counts[order], firsts) if len(firsts) else counts
        terms, rows = terms[firsts], rows[firsts]
        firsts = _run_starts(terms[1:] != terms[:-1], len(terms))
        starts = np.append(firsts, len(terms)).astype(np.int32)
        terms = terms[firsts]
        slots = np.zeros(1 << (SLOTS_PER_TERM * len(terms)).bit_length(), dtype=np.uint8)
        slots[terms & (len(slots) - 1)] = 1
        return cls(terms, starts, rows, counts, slots.tobytes())

    @property
    def bytes(self) -> int:
        return len(self.slots) + sum(
            part.nbytes for part in (self.terms, self.starts, self.rows, self.counts)
        )


_NO_POSTINGS = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32))


class Postings:
    """A snapshot of an inverted index. A changed one shares the large block of what did not change."""

    def __init__(
        self,
        blocks: Sequence[_Block],
        lengths: Matrix,
        live: Mask | None = None,
        sample: SampleSize | None = None,
        parts: Sequence[Postings] = (),
    ) -> None:
        """`lengths`: the number of terms in each row, 0 if it was removed. `live`: the rows that were not
        removed, None if none was. `parts`: the indexes that were joined, if one of them is a sample."""
        self._blocks, self.lengths, self._live = blocks, lengths, live
        self._sample, self._parts = sample, parts
        self._live_count = len(lengths) if live is None else int(np.count_nonzero(live))
        self.document_count: int = sample.document_count if sample else self._live_count
        if parts:
            self.document_count = sum(part.document_count for part in parts)

    @classmethod
    def of(cls, documents: Iterable[Sequence[int]]) -> Postings:
        """Makes an index of the term numbers of each row; 0 stands for no term."""
        numbers: list[int] = []
        ends = [0]
        for document in documents:
            numbers += document
            ends.append(len(numbers))
        rows = np.repeat(np.arange(len(ends) - 1, dtype=np.int32), np.diff(ends))
        return cls.of_pairs(np.array(numbers, dtype=np.int64), rows, len(ends) - 1)

    @classmethod
    def of_pairs(cls, terms: NDArray[np.int64], rows: Rows, row_count: int) -> Postings:
        """Makes an index of pairs of a term number and a row; those of one term are in the rows' order."""
        is_term = terms != 0
        terms, rows = terms[is_term], rows[is_term]
        lengths = np.bincount(rows, terms & 1 == 0, row_count).astype(np.float32)
        return cls([_Block.of(terms, rows, np.ones(len(terms), dtype=np.float32))], lengths)

    @classmethod
    def concatenate(cls, parts: Sequence[Postings]) -> Postings:
        """The rows of several parts, one part after the other."""
        starts = accumulate((len(part.lengths) for part in parts), initial=0)
        blocks = [
            block._replace(first=start + block.first)
            for part, start in zip(parts, starts, strict=False)
            for block in part._blocks
        ]
        live = None
        if any(part._live is not None for part in parts):
            masks = (np.ones(len(p.lengths), dtype=bool) if p._live is None else p._live for p in parts)
            live = np.concatenate([*masks])
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(blocks, lengths, live, parts=parts if any(part._sample for part in parts) else ())

    def changed(self, documents: Iterable[Sequence[int]], live: Mask) -> Postings:
        """With new rows; `live` says which of all rows are not removed."""
        added = Postings.of(documents)
        large, *small = self._blocks
        (block,) = added._blocks
        block = block._replace(rows=block.rows + np.int32(len(self.lengths)))
        if small:
            postings = [
                (np.repeat(each.terms, np.diff(each.starts)), each.rows, each.counts)
                for each in (*small, block)
            ]
            block = _Block.of(*map(np.concatenate, zip(*postings, strict=True)))
        lengths = np.append(self.lengths, added.lengths)
        lengths[~live] = 0
        return Postings([large, block], lengths, None if live.all() else live, self._sample)

    def as_sample(self, document_count: int) -> Postings:
        """The same rows as a sample of more documents."""
        return Postings(self._blocks, self.lengths, self._live, SampleSize(len(self.lengths), document_count))

    def __contains__(self, term: Term) -> bool:
        return len(self.find(term).rows) > 0

    def find(self, term: Term | int) -> PostingList:
        """The rows that contain a term, given by itself or by its number, and how often each does."""
        number = term if isinstance(term, int) else term_number(term)
        lists = []
        for block in self._blocks:
            if block.slots[number & (len(block.slots) - 1)]:
                place = int(block.terms.searchsorted(number))
                if place < len(block.terms) and block.terms[place] == number:
                    postings = slice(block.starts[place], block.starts[place + 1])
                    rows = block.rows[postings]
                    lists.append(
                        (rows + np.int32(block.first) if block.first else rows, block.counts[postings])
                    )
        rows, counts = lists[0] if lists else _NO_POSTINGS
        if len(lists) > 1:
            rows, counts = map(np.concatenate, zip(*lists, strict=True))
        if self._live is not None:
            is_live = self._live[rows]
            rows, counts = rows[is_live], counts[is_live]
        document_count: float = len(rows)
        if self._parts:
            document_count = sum(part.find(number).document_count for part in self._parts)
        elif self._sample:
            document_count = self._sample.estimate(rows)
        return PostingList(rows, counts, document_count)

    @property
    def bytes(self) -> int:
        """The memory it takes."""
        return sum(block.bytes for block in self._blocks) + 2 * self.lengths.nbytes

    @cached_property
    def languages(self) -> list[str]:
        """The languages of the texts, without English."""
        return [name for name in STOP_WORDS if (LANGUAGE, name) in self]

    @cached_property
    def average_length(self) -> float:
        """The average number of terms in a text."""
        return max(float(self.lengths.sum(dtype=np.float64)) / max(self._live_count, 1), 1e-9)

    @cached_property
    def levelling(self) -> float:
        """BM25's `b`, by how much the lengths of the texts differ.

        A turn of a conversation that is longer than others says more. An essay contains more words than a
        remark, whatever it is about.
        """
        lengths = self.lengths if self._live is None else self.lengths[self._live]
        spread = float(np.log1p(lengths, dtype=np.float64).std()) if len(lengths) else 0.0
        return min(spread, MAX_LEVELLING)

    @cached_property
    def _norms(self) -> Matrix:
        b = self.levelling
        return (K1 * (1 - b + b * self.lengths / self.average_length)).astype(np.float32)

    def weights(self, postings: PostingList, *, is_label: bool = False) -> Matrix:
        """BM25 of a term in each of its rows; the length of a label does not count."""
        rows, counts, document_count = postings
        weights = counts * np.float32(inverse_frequency(document_count, self.document_count) * (K1 + 1))
        weights /= counts + (np.float32(K1) if is_label else self._norms[rows])
        return weights

    def compare_rows(self, rows: Rows, other_rows: Rows) -> NDArray[np.float64]:
        """For each pair of rows, the cosine of the terms of their texts, weighted by rarity.

        Works before any change only.
        """
        (block,) = self._blocks
        lengths, term_count = np.diff(block.starts), len(block.terms)
        weights = np.where(block.terms & 1, 0, np.log(self.document_count / lengths) ** 2)
        is_compared = np.zeros(len(self.lengths), dtype=np.bool_)
        is_compared[rows] = is_compared[other_rows] = True
        compared = is_compared[block.rows]
        term_rows, terms = block.rows[compared], np.repeat(np.arange(term_count), lengths)[compared]
        order = np.argsort(term_rows, kind="stable")
        term_rows, terms = term_rows[order], terms[order]
        term_weights = weights[terms]
        norms = np.bincount(term_rows, term_weights, len(is_compared))
        keys = term_rows * np.int64(term_count) + terms  # sorted, by row and term
        begins = term_rows.searchsorted(rows)
        counts = term_rows.searchsorted(rows, side="right") - begins
        pairs = np.repeat(np.arange(len(rows)), counts)
        places = np.arange(len(pairs)) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        other_keys = other_rows[pairs] * np.int64(term_count) + terms[places]
        is_shared = keys.take(keys.searchsorted(other_keys), mode="clip") == other_keys
        total = np.bincount(pairs, term_weights[places] * is_shared, len(rows))
        return np.where(total, total / np.sqrt(np.where(total, norms[rows] * norms[other_rows], 1)), 0.0)


def inverse_frequency(document_count: float, total_count: int) -> float:
    """BM25's weight of a term by the number of documents that contain it, among all documents."""
    return math.log(1 + (total_count - document_count + 0.5) / (document_count + 0.5))


def _run_starts(differs: Mask, size: int) -> NDArray[np.intp]:
    """Where runs of equal elements begin; `differs` says of each element after the first if it differs."""
    return np.flatnonzero(np.append(True, differs)[:size])
