"""Work that is due at some time, done in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from alcove.core.background import Worker

K = TypeVar("K")
V = TypeVar("V")
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 60.0


class Schedule(Generic[K, V]):
    """Entries that a background thread takes when they are due; each key is scheduled at most once."""

    def __init__(
        self,
        name: str,
        work: Callable[[list[tuple[K, V]]], object],
        *,
        max_entries: int,
        batch: int | None = None,
    ) -> None:
        """`work`: called with due entries, at most `batch` at once. `max_entries`: more are not scheduled."""
        self._work, self._max_entries, self._batch = work, max_entries, batch
        self._entries: dict[K, tuple[float, V]] = {}
        self._mutex = threading.Lock()
        self._worker = Worker(name, self.run_due, _MAX_PAUSE_SECONDS)

    def put(self, key: K, value: V, seconds: float = 0.0) -> None:
        """Schedules an entry, or replaces its value; the earlier of two times counts."""
        moment = time.monotonic() + seconds
        with self._mutex:
            if key in self._entries or len(self._entries) < self._max_entries:
                self._entries[key] = min(moment, self._entries.get(key, (moment, value))[0]), value
        self._worker.wake()

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def run_due(self) -> float:
        """Does the work that is due, in the calling thread; returns the seconds until more is."""
        now = time.monotonic()
        with self._mutex:
            due = [key for key, (moment, _) in self._entries.items() if moment <= now][: self._batch]
            entries = [(key, self._entries.pop(key)[1]) for key in due]
        if entries:
            self._work(entries)
        with self._mutex:
            following = min(
                (moment for moment, _ in self._entries.values()), default=now + _MAX_PAUSE_SECONDS
            )
        return min(max(following - time.monotonic(), _MIN_PAUSE_SECONDS), _MAX_PAUSE_SECONDS)

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._worker.stopping

    def stop(self, seconds: float | None = None) -> None:
        """Stops the thread, and waits for its work at most this long."""
        self._worker.stop(seconds)
