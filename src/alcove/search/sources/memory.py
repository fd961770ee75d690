"""Candidates in memory: all texts of a scope, brought up to date before each search."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alcove.core import heap
from alcove.core.cache import Cache
from alcove.core.cancellation import run_uncancelled
from alcove.core.filters import Filter
from alcove.engine.index import SearchIndex
from alcove.engine.rows import IndexState, Scope, Text
from alcove.search.corpus import Corpus
from alcove.search.sources.base import CandidateRequest, Candidates, to_item
from alcove.search.sources.scope_cache import ScopeCache

MAX_FILTERS = 16
"""Filters of a scope whose matches are cached."""
TRIM_BYTES = 1024 * 1024
"""The size of a corpus from which on memory that was freed after reading it is returned to the system."""
EXPIRY_BYTES = 200


class FilterMatches(NamedTuple):
    """The versions up to a position that match a filter. A version never changes, so it stays a match."""

    seqs: NDArray[np.int64]
    last_seq: int


NO_MATCHES = FilterMatches(np.zeros(0, dtype=np.int64), 0)


class ScopeCorpus:
    """All texts of a scope in memory.

    Only the scope decides what is in it, and every caller brings it up to date in the same way. A caller's
    filter is a mask over its rows.
    """

    def __init__(self, scope: Scope, index: SearchIndex, max_bytes: int) -> None:
        """`max_bytes`: how large the texts and vectors may be."""
        self.scope = scope
        self._index = index
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._state: IndexState | None = None
        self._corpus = Corpus.of(())
        self._expiries = np.zeros((2, 0), dtype=np.int64)
        """The versions that expire, and when each does."""
        self._matches: Cache[str, FilterMatches] = Cache(max_entries=MAX_FILTERS)
        """Replaced, not cleared, when everything is read again: a search may still add to the old one."""

    @property
    def bytes(self) -> int:
        with self._lock:
            expiries = EXPIRY_BYTES * self._expiries.shape[1]
            return self._corpus.bytes + expiries + self._matches.size_bytes

    def find(self, filter: Filter, request: CandidateRequest) -> Candidates:
        """All texts, with a mask of those that have not expired and match a filter.

        Raises `CorpusTooLarge` if they are too large.
        """
        key = repr(filter) if filter.conditions else ""  # not the filter itself: `true` and `1` are equal
        with self._lock:
            if self._state is None or not self._catch_up(request.embedder, self._state):
                self._read(request.embedder)
            assert self._state is not None
            corpus, last_seq, cache = self._corpus, self._state.seq, self._matches
            seqs, times = self._expiries
            matches = cache.get(key, NO_MATCHES)
        mask = corpus.columns.live
        if len(seqs) and len(expired := seqs[times <= request.now]):
            mask = mask & ~np.isin(corpus.columns.sequence, expired)
        if filter.conditions:
            if matches.last_seq < last_seq:
                matches = self._add_matches(matches, filter, request, corpus, last_seq)
                with self._lock:
                    if last_seq >= cache.get(key, NO_MATCHES).last_seq:  # else another search read more
                        cache.put(key, matches, matches.seqs.nbytes)
            mask = mask & np.isin(corpus.columns.sequence, matches.seqs)
        return Candidates(corpus, mask)

    def _add_matches(
        self, before: FilterMatches, filter: Filter, request: CandidateRequest, corpus: Corpus, last_seq: int
    ) -> FilterMatches:
        """Adds the matches up to a position. Decrypts values, so it runs without the lock."""
        scope = replace(self.scope, filter=filter)
        rows = self._index.load_rows(scope, self._index.matching_versions(scope, before.last_seq), now=0)
        new = np.array([row.seq for row in rows if request.row_matches(row)], dtype=np.int64)
        seqs = np.intersect1d(np.union1d(before.seqs, new), corpus.columns.sequence)
        return FilterMatches(seqs, last_seq)

    def _read(self, embedder: str) -> None:
        """Reads everything."""
        state, texts = run_uncancelled(lambda: self._index.live_texts(self.scope, embedder, self._max_bytes))
        expiries = {text.seq: text.expires_at for text in texts}
        self._replace(Corpus.of(map(to_item, _pop_all(texts))), state, expiries)
        self._matches = Cache(max_entries=MAX_FILTERS)
        if self._corpus.bytes > TRIM_BYTES:
            heap.trim()  # reading takes twice the memory of the result

    def _catch_up(self, embedder: str, before: IndexState) -> bool:
        """Adds what changed since a state; returns False if everything has to be read again."""
        if self._index.state() == before:
            return True
        change, corpus = self._index.changes(self.scope, embedder, before), self._corpus
        added = [*map(to_item, change.added)]
        has_same_dimensions = all(item.dimensions in (0, corpus.vectors.dimensions) for item in added)
        # Erasing a user removes their name from what remains, so a scope by author may show other memories.
        is_by_author = (self.scope.written_by, self.scope.unowned_written_by) != (None, None)
        authors_changed = is_by_author and change.live is not None
        if authors_changed or change.state.serving != before.serving or not has_same_dimensions:
            return False
        removed = corpus.rows.keys() & change.superseded
        if change.live is not None:
            removed |= corpus.rows.keys() - set(change.live)
        changed = corpus.changed(add=added, remove=removed) if added or removed else corpus
        if changed is None:
            return False
        expiries = {text.seq: text.expires_at for text in change.added} | dict(change.expiries)
        self._replace(changed, change.state, expiries)
        return True

    def _replace(self, corpus: Corpus, state: IndexState, new_expiries: Mapping[int, int | None]) -> None:
        self._corpus, self._state = corpus, state
        if new_expiries:
            expiries = {**dict(zip(*self._expiries.tolist(), strict=True)), **new_expiries}
            rows = [(seq, time) for seq, time in expiries.items() if time is not None and seq in corpus.rows]
            self._expiries = np.array(rows, dtype=np.int64).reshape(-1, 2).T


class InMemorySource:
    """Finds candidates in corpora in memory. Each search brings its corpus up to date, so none is indexed."""

    problem = None

    def __init__(self, index: SearchIndex, cache: ScopeCache) -> None:
        self._index = index
        self._cache = cache

    def find(self, scope: Scope, request: CandidateRequest) -> Candidates:
        # A corpus takes up to twice the bytes of its texts and vectors.
        with self._cache.use(ScopeCorpus, scope, self._index, self._cache.max_bytes // 2) as corpus:
            return corpus.find(scope.filter, request)

    def catch_up(self) -> int:
        return 0


def _pop_all(texts: list[Text]) -> Iterator[Text]:
    """Yields texts and frees each after its use: the vectors of a large scope are large."""
    while texts:
        yield texts.pop()
