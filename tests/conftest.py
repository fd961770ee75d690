"""What every suite shares: a clock that a test moves, signals as at a terminal, and an end for processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from alcove.client import embedded
from alcove.search.embedders import embedder_for
from tests.support import postgres_under_paths, processes
from tests.support.clock import ManualClock


@pytest.fixture(scope="session", autouse=True)
def _one_model() -> Iterator[None]:
    """Stores of this process share the sentence model: to load it took more than most tests do."""
    minilm = embedder_for("minilm")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            embedded, "embedder_for", lambda name: minilm if name == "minilm" else embedder_for(name)
        )
        yield


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def pytest_configure() -> None:
    """A suite that a shell started in the background ignores SIGINT, which every child would inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart() -> None:
    if postgres_under_paths.POSTGRES:
        postgres_under_paths.prepare()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Of what a test says about the file of SQLite itself, a database has nothing."""
    if postgres_under_paths.POSTGRES and (mark := item.get_closest_marker("of_the_file")):
        pytest.skip(f"of SQLite's file: {mark.args[0]}")


def pytest_unconfigure() -> None:
    processes.stop_server()
