"""The power fails, and the disk forgets what it was not asked to sync: what was acknowledged is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from alcove import Alcove, Settings
from alcove.core.clock import system_clock
from alcove.search.indexer import Indexer
from tests.support.hashed_embedder import Bag, Counted
from tests.support.power_failure import Disk, forgetful_disk
from tests.support.store_inspection import assert_sound, raw_bytes

pytestmark = pytest.mark.of_the_file("what of it a power failure leaves")

HOME = ("user", "noop")
BY_HAND = Settings(sweep_interval=0, indexing_interval=0)
"""No thread indexes: the test makes every step itself."""


class Machine:
    """A store on a disk that forgets, and what comes up after the power has failed."""

    def __init__(self, folder: Path, disk: Disk, opened: ExitStack) -> None:
        self._folder, self._disk, self._opened = folder, disk, opened
        (folder / "first").mkdir()
        self.memory = self._open(folder / "first" / "m.db")

    def _open(self, path: Path) -> Alcove:
        return self._opened.enter_context(Alcove(path, settings=BY_HAND, embedder=Bag()))

    def after_power_failure(self, name: str) -> Alcove:
        """A store of what would be left on the disk if the power failed now; this one goes on."""
        into = self._folder / name
        into.mkdir()
        path = self._disk.after_power_failure(self._folder / "first" / "m.db", into)
        for beside in ("m.db.key", "m.db.wipes"):
            if (kept := self._folder / "first" / beside).exists():
                (into / beside).write_bytes(kept.read_bytes())
        return self._open(path)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with forgetful_disk() as disk, ExitStack() as opened:
        yield Machine(tmp_path, disk, opened)


def index(memory: Alcove) -> int:
    """How many texts an indexer has to embed before none waits."""
    embedder = Counted()
    indexer = Indexer(memory.memories._engine.index, embedder, system_clock, interval=30, batch=100)
    while indexer.step():
        pass
    assert not memory.admin.index().waiting
    return len(embedder.texts)


def test_vectors_that_were_lost_are_made_again(machine: Machine) -> None:
    for n in range(5):
        machine.memory.put(HOME, f"k{n}", {"n": n}, index={"text": f"rain number {n}"})
    assert index(machine.memory) == 5
    left = machine.after_power_failure("left")
    assert [left.get(HOME, f"k{n}").value for n in range(5)] == [{"n": n} for n in range(5)]  # type: ignore[union-attr]
    assert left.admin.index().waiting == 5
    assert index(left) == 5
    assert [found.key for found in left.search(HOME, query="number 3", limit=1)] == ["k3"]
    assert_sound(left)


def test_what_a_newcomer_writes_opens_though_their_key_did_not_wait_for_the_disk(machine: Machine) -> None:
    for name in ("alice", "bob"):
        machine.memory.as_user(name).put(("user", name), "k", {"of": name})
        left = machine.after_power_failure(f"left-{name}")
        assert left.as_user(name).get(("user", name), "k").value == {"of": name}  # type: ignore[union-attr]
    machine.memory.memories._vault.key("user:carol")
    left = machine.after_power_failure("left-carol")
    assert left.as_user("carol").put(("user", "carol"), "k", {"n": 1}).revision == 1
    assert_sound(left)


def test_a_put_after_vectors_survives_with_them(machine: Machine) -> None:
    machine.memory.put(HOME, "first", {"n": 1}, index={"text": "rain"})
    index(machine.memory)
    for n in range(3):  # each time the vectors' commit comes between two that wait for the disk
        machine.memory.put(HOME, f"next-{n}", {"n": n}, index={"text": "sun"})
        left = machine.after_power_failure(f"left-{n}")
        assert left.get(HOME, "first")
        assert left.get(HOME, f"next-{n}")
        assert left.admin.index().waiting == 1
        index(machine.memory)


def test_a_wipe_after_vectors_survives_with_what_it_erased(machine: Machine) -> None:
    machine.memory.as_user("alice").put(("user", "alice"), "k", {"n": 1}, index={"text": "xylophone"})
    index(machine.memory)
    assert machine.memory.admin.wipe("alice").scrubbed
    left = machine.after_power_failure("left")
    assert left.as_user("alice").get(("user", "alice"), "k") is None
    assert b"xylophone" not in raw_bytes(machine._folder / "left" / "m.db")
    assert_sound(left)
