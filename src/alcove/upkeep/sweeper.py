"""The background sweep: a thread that calls `sweep` at an interval and never gives up."""

from __future__ import annotations

import logging
import threading

from alcove.core.errors import AlcoveError
from alcove.store.memories import Memories

log = logging.getLogger("alcove")


class Sweeper(threading.Thread):
    """Sweeps every `interval` seconds, and at once when woken."""

    def __init__(self, memories: Memories, interval: float) -> None:
        super().__init__(name="alcove-sweep", daemon=True)
        self._memories = memories
        self._interval = interval
        self._woken = threading.Event()
        self._stopping = False
        self.start()

    def wake(self) -> None:
        """Sweeps now rather than at the end of the interval."""
        self._woken.set()

    def stop(self) -> None:
        """Lets a sweep that is under way finish, and starts no other."""
        self._stopping = True
        self.wake()
        self.join()

    def run(self) -> None:
        while not self._stopping:
            self._woken.wait(self._interval)
            self._woken.clear()
            if self._stopping:
                return
            try:
                self._memories.sweep()
            except AlcoveError as error:
                log.warning("sweep: %s; trying again in %g s", error.message, self._interval)
            except Exception:
                log.exception("sweep failed; trying again in %g s", self._interval)
