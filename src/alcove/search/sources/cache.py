"""The corpora in memory, within a bound in bytes of which no user takes more than a share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from alcove.core.cache import Cache
from alcove.engine.rows import Scope


class Sized(Protocol):
    """What knows its size, which changes with use."""

    @property
    def bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)
_Key = tuple[str | None, str]
"""An owner, and the scope spelled out."""

MAX_SHARE = 4
"""One user's corpora take at most a quarter of the memory."""


class CorpusCache(Generic[T]):
    """Corpora by scope. Those searched longest ago go first: of a user with more than their share, then of
    all.

    A scope without an owner is shared by all who see the same of it.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._corpora: Cache[_Key, T] = Cache(max_bytes=max_bytes, on_remove=self._remove_size)
        self._sizes: dict[str | None, OrderedDict[_Key, int]] = {}
        """By owner, the size of each corpus, the one searched longest ago first."""
        self._lock = threading.Lock()

    def get_or_add(self, scope: Scope, make: Callable[[], T]) -> T:
        """The corpus of a scope, made if it is not there."""
        key = _key(scope)
        with self._lock:
            corpus = self._corpora.get(key)
            if corpus is None:
                corpus = make()
                self._put(key, corpus, 0)
            return corpus

    def update_size(self, scope: Scope, corpus: T) -> int:
        """Counts a corpus anew after its use, evicts what exceeds the bounds, and returns its size."""
        key, size = _key(scope), corpus.bytes
        with self._lock:
            if self._corpora.get(key) is corpus:  # else it was evicted in between
                self._put(key, corpus, size)
                if scope.owner is not None:
                    self._evict_of_owner(scope.owner, key)
        return size

    @property
    def size_bytes(self) -> int:
        """The sizes of all corpora together."""
        return self._corpora.size_bytes

    def owner_bytes(self, owner: str) -> int:
        """The sizes of one user's corpora together."""
        return sum(self._sizes.get(owner, {}).values())

    def __len__(self) -> int:
        return len(self._corpora)

    def _put(self, key: _Key, corpus: T, size: int) -> None:
        self._corpora.put(key, corpus, size)
        if key in self._corpora:
            self._sizes.setdefault(key[0], OrderedDict())[key] = size

    def _evict_of_owner(self, owner: str, used: _Key) -> None:
        for key in [*self._sizes.get(owner, ())]:
            if key != used and self.owner_bytes(owner) > self.max_bytes // MAX_SHARE:
                self._corpora.remove(key)

    def _remove_size(self, key: _Key, _: T) -> None:
        sizes = self._sizes.get(key[0]) or OrderedDict[_Key, int]()
        sizes.pop(key, None)
        if not sizes:
            self._sizes.pop(key[0], None)


def _key(scope: Scope) -> _Key:
    return scope.owner, repr(scope)  # not the scope itself: `true` and `1` are equal, but not the same
