"""Measures how long the stages of a piece of work take."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds by stage; a stage that is entered again adds to its time."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures a stage, whether it succeeds or fails."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - started

    def timings_ms(self) -> dict[str, float]:
        """Milliseconds by stage."""
        return {name: round(seconds * 1000, 3) for name, seconds in self._seconds.items()}
