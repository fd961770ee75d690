"""A clock that a test moves."""

from __future__ import annotations


class ManualClock:
    """A clock in microseconds that only moves when told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000)
