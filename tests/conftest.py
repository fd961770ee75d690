"""What every suite shares: a clock that a test moves, signals as at a terminal, and an end for processes."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator

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
    """Restores what a shell or a container may have changed for this process and its children.

    A suite that a shell starts in the background ignores SIGINT. Containers often forbid bytecode files, and
    compiling all tests anew in every process takes longer than most of them.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leaves modules and tests out of garbage collections, which would take half the time of loading them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionstart() -> None:
    if postgres_under_paths.POSTGRES:
        postgres_under_paths.prepare()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Of what a test says about the file of SQLite itself, a database has nothing."""
    if postgres_under_paths.POSTGRES and (mark := item.get_closest_marker("of_the_file")):
        pytest.skip(f"of SQLite's file: {mark.args[0]}")


def pytest_unconfigure() -> None:
    processes.stop_server()
