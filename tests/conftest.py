"""What every suite shares: a clock that a test moves."""

from __future__ import annotations

import pytest

from tests.support import processes
from tests.support.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def pytest_unconfigure() -> None:
    processes.stop_server()
