"""What the candidate sources keep in memory for each scope, bounded in bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol, TypeVar

from alcove.core.cache import Cache
from alcove.core.filters import Filter
from alcove.engine.rows import CorpusTooLarge, Scope


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
                if self._entries.get(key) is entry:  # else it was evicted by another thread
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
