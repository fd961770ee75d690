"""Work that goes on beside the calls: one thread that does it now and then, and at once when woken."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

from alcove.core.errors import AlcoveError

log = logging.getLogger("alcove")
AT_EXIT_SECONDS = 5.0
"""How long the end of a process waits for work that nobody stopped."""


class Worker:
    """A thread that calls `work` after every pause, and at once when woken.

    `work` may give back how many seconds to pause; otherwise, before the first call, and after an error,
    which is logged under `name`, it is `interval` seconds.
    """

    def __init__(self, name: str, work: Callable[[], float | None], interval: float) -> None:
        self.stopping = False
        self._name = name
        self._work = work
        self._interval = interval
        self._woken = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, unless it runs or was stopped."""
        with self._starting:
            if self._thread is None and not self.stopping:
                self._thread = threading.Thread(target=self._run, name=f"alcove-{self._name}", daemon=True)
                self._thread.start()
                atexit.register(self.stop, AT_EXIT_SECONDS)  # a policy's engine must go with its own thread

    def wake(self) -> None:
        """Has the work done now rather than after the pause; starts the thread if it has to."""
        self.start()
        self._woken.set()

    def stop(self, seconds: float | None = None) -> None:
        """Waits for work that is under way, at most so many seconds, and starts no other."""
        with self._starting:
            self.stopping = True
        atexit.unregister(self.stop)
        self._woken.set()
        if self._thread:
            self._thread.join(seconds)

    def _run(self) -> None:
        pause = self._interval
        while True:
            self._woken.wait(pause)
            self._woken.clear()
            if self.stopping:
                return
            pause = self._interval
            try:
                given = self._work()
                pause = pause if given is None else given
            except AlcoveError as error:
                log.warning("%s: %s; trying again in %g s", self._name, error.message, pause)
            except Exception:
                log.exception("%s failed; trying again in %g s", self._name, pause)
