"""What every suite shares: a clock that a test moves, and how long the long forms are."""

from __future__ import annotations

import os

import pytest

LONG = bool(os.environ.get("ALCOVE_LONG"))


class ManualClock:
    """A clock in microseconds that only moves when told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
