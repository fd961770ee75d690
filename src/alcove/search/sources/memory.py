"""Candidates in memory: all texts of a scope, brought up to date by each search, in a cache of scopes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from alcove.core import heap
from alcove.core.cache import Cache
from alcove.core.cancellation import run_uncancelled
from alcove.core.filters import Filter
from alcove.engine.index import SearchIndex
from alcove.engine.rows import CorpusTooLarge, IndexState, Scope, Text
from alcove.search.corpus import Corpus
from alcove.search.sources.base import CandidateRequest, Candidates, to_item

MAX_FILTERS = 16
"""Filters of a scope whose matches are cached."""
TRIM_BYTES = 1024 * 1024
"""The size of a corpus from which on memory that was freed after reading it is returned to the system."""
EXPIRY_BYTES = 200


class Sized(Protocol):
    """Something whose size changes with its use."""

    @property
    def bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)
_Key = tuple[str, str | None, str]
"""The kind of an entry, the owner of its scope, and the scope."""

MAX_SHARE = 4
"""The entries of one user take at most a quarter of the memory."""


class ScopeCache:
    """Entries of several kinds for scopes, whatever their filter; evicts the least recently used ones.

    Only callers to whom the policy shows exactly the same of a scope share its entries. All readers share
    those of a scope without an owner. A user above their share loses their own entries first.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._entries: Cache[_Key, Sized] = Cache(max_bytes=max_bytes, on_remove=self._forget_size)
        self._sizes: dict[str | None, dict[_Key, int]] = {}
        """By owner, the size of each entry, the least recently used one first."""
        self._lock = threading.Lock()

    @contextmanager
    def use(self, kind: Callable[..., T], scope: Scope, *arguments: object) -> Iterator[T]:
        """The entry of a kind, made as `kind(scope, *arguments)` if there is none. Counts its size after use.

        Raises `CorpusTooLarge` if it has become larger than the cache.
        """
        # By the scope's text: the scopes of `true` and `1` are equal, but see different memories.
        scope = replace(scope, filter=Filter())
        key = (kind.__name__, scope.owner, repr(scope))
        with self._lock:
            entry: T = self._entries.get(key)  # type: ignore[assignment]
            if entry is None:
                entry = kind(scope, *arguments)
                self._put(key, entry, 0)
        size = 0
        try:
            yield entry
        finally:  # an entry that could not be read has a size, too
            size = entry.bytes
            with self._lock:
                sizes = self._sizes.get(key[1], {})
                if sizes.get(key) == size:
                    sizes[key] = sizes.pop(key)  # the most recently used one comes last
                elif self._entries.get(key) is entry:  # else another thread evicted it
                    self._put(key, entry, size)
                    self._evict_others(key)
        if size > self.max_bytes:
            raise CorpusTooLarge

    @property
    def size_bytes(self) -> int:
        """The size of all entries together."""
        return self._entries.size_bytes

    def owner_bytes(self, owner: str | None) -> int:
        """The size of one user's entries together."""
        return sum(self._sizes.get(owner, {}).values())

    def __len__(self) -> int:
        return len(self._entries)

    def _put(self, key: _Key, entry: Sized, size: int) -> None:
        self._entries.put(key, entry, size)
        if key in self._entries:
            self._sizes.setdefault(key[1], {})[key] = size

    def _evict_others(self, key: _Key) -> None:
        """Evicts other entries of the same owner until they are within their share."""
        owner = key[1]
        for other in [*self._sizes.get(owner, ())] if owner is not None else ():
            if other != key and self.owner_bytes(owner) > self.max_bytes // MAX_SHARE:
                self._entries.remove(other)

    def _forget_size(self, key: _Key, _: Sized) -> None:
        sizes = self._sizes.get(key[1], {})
        sizes.pop(key, None)
        if not sizes:
            self._sizes.pop(key[1], None)


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
        self._index, self._max_bytes = index, max_bytes
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
            state = self._state
            if state is None or (
                self._index.state() != state and not self._catch_up(request.embedder, state)
            ):
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
        self._index, self._cache = index, cache

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
