"""Background threads: workers that act periodically and when woken, and schedules of due entries."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from alcove.core.errors import AlcoveError

log = logging.getLogger("alcove")
K = TypeVar("K")
V = TypeVar("V")
EXIT_TIMEOUT_SECONDS = 5.0
"""How long the end of a process waits for a worker that nobody stopped."""
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 60.0


class Worker:
    """A thread that calls `work` after every pause, and at once when woken.

    `work` may return the number of seconds to pause. Otherwise, before the first call, and after an error
    (which is logged under `name`), the pause is `interval` seconds.
    """

    def __init__(self, name: str, work: Callable[[], float | None], interval: float) -> None:
        self.stopping = False
        self._name = name
        self._work = work
        self._interval = interval
        self._wake = threading.Event()
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, unless it runs or was stopped."""
        with self._start_lock:
            if self._thread is None and not self.stopping:
                self._thread = threading.Thread(target=self._run, name=f"alcove-{self._name}", daemon=True)
                self._thread.start()
                atexit.register(self.stop, EXIT_TIMEOUT_SECONDS)  # a policy engine must end with its thread

    def wake(self) -> None:
        """Ends the pause; starts the thread if necessary."""
        self.start()
        self._wake.set()

    def stop(self, timeout_seconds: float | None = None) -> None:
        """Waits for a call in progress, at most this long, and prevents further calls."""
        with self._start_lock:
            self.stopping = True
        atexit.unregister(self.stop)
        self._wake.set()
        if self._thread:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        pause = self._interval
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            if self.stopping:
                return
            pause = self._interval
            try:
                next_pause = self._work()
                pause = pause if next_pause is None else next_pause
            except AlcoveError as error:
                log.warning("%s: %s; trying again in %g s", self._name, error.message, pause)
            except Exception:
                log.exception("%s failed; trying again in %g s", self._name, pause)


class Schedule(Worker, Generic[K, V]):
    """A worker that processes entries when they are due; each key is scheduled at most once."""

    def __init__(
        self,
        name: str,
        process: Callable[[list[tuple[K, V]]], object],
        *,
        max_entries: int,
        batch: int | None = None,
    ) -> None:
        """`process`: called with due entries, at most `batch` at once. `max_entries`: more are ignored."""
        super().__init__(name, self.run_due, _MAX_PAUSE_SECONDS)
        self._process, self._max_entries, self._batch = process, max_entries, batch
        self._entries: dict[K, tuple[float, V]] = {}
        self._mutex = threading.Lock()

    def put(self, key: K, value: V, seconds: float = 0.0, *, postpone: bool = False) -> None:
        """Schedules an entry, or replaces its value; the earlier of two times counts, unless `postpone`."""
        moment = time.monotonic() + seconds
        with self._mutex:
            if key in self._entries and not postpone:
                moment = min(moment, self._entries[key][0])
            if key in self._entries or len(self._entries) < self._max_entries:
                self._entries[key] = moment, value
        self.wake()

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def run_due(self) -> float:
        """Processes what is due, in the calling thread; returns the seconds until more is."""
        now = time.monotonic()
        with self._mutex:
            due = [key for key, (moment, _) in self._entries.items() if moment <= now][: self._batch]
            entries = [(key, self._entries.pop(key)[1]) for key in due]
        if entries:
            self._process(entries)
        with self._mutex:
            moments = [moment for moment, _ in self._entries.values()]
        pause = min(moments, default=now + _MAX_PAUSE_SECONDS) - time.monotonic()
        return min(max(pause, _MIN_PAUSE_SECONDS), _MAX_PAUSE_SECONDS)
