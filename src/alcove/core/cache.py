"""A bounded, thread-safe LRU cache, used by all of Alcove."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, overload

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")


class Cache(Generic[K, V]):
    """Values by key, within a bound in bytes, in entries, or in both.

    A key must include everything that the value depends on. A thread that computed a value before `clear`
    may still put it afterwards. If such a value would be wrong, replace the cache instead of clearing it:
    each thread then puts its value into the cache that it looked into.
    """

    def __init__(
        self,
        *,
        max_bytes: float = math.inf,
        max_entries: float = math.inf,
        on_remove: Callable[[K, V], None] | None = None,
    ) -> None:
        """Needs at least one bound; with `max_entries` alone, the entries must be of bounded size.

        `on_remove` is called for each entry that is removed, while holding the cache's lock: it must be
        quick and must not use the cache.
        """
        if max_bytes == max_entries == math.inf:
            raise ValueError("a cache needs max_bytes or max_entries")
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._on_remove = on_remove
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...

    def get(self, key: K, default: D | None = None) -> V | D | None:
        """Returns the value of a key, which then counts as just used, or the default."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return default
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, size_bytes: int = 0) -> None:
        """Stores a value and evicts what exceeds the bounds; a value larger than the cache is not stored."""
        with self._lock:
            self._remove(key)
            if size_bytes > self._max_bytes:
                return
            self._entries[key] = value, size_bytes
            self._bytes += size_bytes
            while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def remove(self, key: K) -> None:
        """Removes a key, if it is there."""
        with self._lock:
            self._remove(key)

    def clear(self) -> None:
        """Removes everything."""
        with self._lock:
            while self._entries:
                self._remove(next(iter(self._entries)))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    @property
    def size_bytes(self) -> int:
        """The sizes of all entries together."""
        return self._bytes

    def _remove(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._bytes -= entry[1]
        if self._on_remove:
            self._on_remove(key, entry[0])
