"""What every suite shares: a clock that a test moves, signals as at a terminal, and an end for processes."""

from __future__ import annotations

import signal

import pytest

from tests.support import processes
from tests.support.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def pytest_configure() -> None:
    """A suite that a shell started in the background ignores SIGINT, which every child would inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    processes.stop_server()
