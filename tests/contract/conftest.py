"""The contract suite runs against every engine in `ENGINES`: a new engine adds one entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from alcove import Alcove, MemoryKey, Settings
from tests.support.postgres import new_database, template

Open = Callable[..., Alcove]


def _sqlite(folder: Path) -> Open:
    keys = MemoryKey()

    def open_store(**options: object) -> Alcove:
        settings = options.pop("settings", Settings(sweep_interval=0))
        return Alcove(folder / "memory.db", settings=settings, keys=keys, **options)  # type: ignore[arg-type]

    return open_store


def _postgres(folder: Path) -> Open:
    keys, address = MemoryKey(), new_database(template=template())

    def open_store(**options: object) -> Alcove:
        settings = options.pop("settings", Settings(sweep_interval=0))
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("ALCOVE_STATE", str(folder))
            return Alcove(address, settings=settings, keys=keys, **options)  # type: ignore[arg-type]

    return open_store


ENGINES = {"postgres": _postgres, "sqlite": _sqlite}


@pytest.fixture(params=sorted(ENGINES))
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the store of this test, again with each call; whatever is opened is closed."""
    opened: list[Alcove] = []
    make = ENGINES[request.param](tmp_path)

    def tracked(**options: object) -> Alcove:
        opened.append(make(**options))
        return opened[-1]

    yield tracked
    for store in opened:
        store.close()


@pytest.fixture
def memory(open_store: Open, clock: Callable[[], int]) -> Alcove:
    """A store with a clock that only moves when told to."""
    return open_store(clock=clock)


@pytest.fixture
def alice(memory: Alcove) -> Alcove:
    return memory.as_user("alice")


@pytest.fixture
def bob(memory: Alcove) -> Alcove:
    return memory.as_user("bob")
