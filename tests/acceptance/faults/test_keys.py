"""Keys among many processes: one for a new store, none lost in rotations, none used after a wipe.

This file is also the program of the crowd's processes: `python -m tests.acceptance.faults.test_keys …`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from alcove import Alcove, MemoryKey, NotFound
from alcove.vault import Kek
from tests.support.child_programs import say, started
from tests.support.concurrent_workers import QUIET, Crowd, Work, in_processes, join
from tests.support.store_inspection import assert_sound, query

AL = ("user", "al")


# The work


def write_through_wipes(memory: Alcove, worker: int) -> list[int]:
    """Writes for a user who is being wiped, with a data key that may be gone already."""
    al = memory.as_user("al")
    for n in range(200):
        al.put((*AL, str(worker)), f"key-{n % 20}", {"n": n}, idempotency_key=f"{worker}-{n}")
    return [n]


def read_through_wipes(memory: Alcove, worker: int) -> list[int]:
    """The same, and reads it back: it is what this worker wrote, or gone, and never an error."""
    al, place = memory.as_user("al"), (*AL, str(worker))
    for n in range(50):
        al.put(place, "key", {"n": n})
        found = al.get(place, "key")
        assert found is None or found.value == {"n": n}
        assert {each.key for each in memory.search(AL)} <= {"key"}
        al.history(place, "key")
        memory.events(AL, limit=200)
    return [n]


def rotate(memory: Alcove, worker: int) -> list[int]:
    """Data keys wrapped anew, in several rotations."""
    return [step.rewrapped for _ in range(5) for step in memory.rotate_keys()]


def open_together(opener: str) -> None:
    """Opens every path it reads, puts something there, and says so."""
    for line in iter(sys.stdin.readline, "\n"):
        with Alcove(line.strip(), settings=QUIET) as memory:
            memory.as_user("al").put(AL, f"of-{opener}", {"by": opener})
        say(line.strip())


# What must hold


def test_processes_that_open_a_new_path_together_share_one_key(tmp_path: Path) -> None:
    openers = range(5)
    with ExitStack() as stack:
        children = [
            stack.enter_context(started(tmp_path / f"said-{n}", __name__, "open", n)) for n in openers
        ]
        for attempt in range(25):
            path = tmp_path / f"{attempt}.db"
            for child in children:
                child.tell(str(path))
            for child in children:
                child.wait_for(str(path))
            with Alcove(path, settings=QUIET) as memory:
                kept = {each.key: each.value for each in memory.as_user("al").search(AL)}
                assert kept == {f"of-{n}": {"by": str(n)} for n in openers}
                assert_sound(memory)
            assert len(path.with_name(path.name + ".key").read_text().split()) == 1
        for child in children:
            child.tell("")
            child.finish()
    assert [file for file in tmp_path.iterdir() if ".key." in file.name] == []


@pytest.mark.parametrize("work", [write_through_wipes, read_through_wipes])
def test_a_wipe_among_writers_leaves_nothing_unreadable(
    memory: Alcove, path: Path, crowd: Crowd, work: Work
) -> None:
    def wipe_again_and_again() -> None:
        for n in range(25):
            with suppress(NotFound):
                memory.wipe("al", wait=n % 5 == 0)

    crowd(path, work, wipe_again_and_again)
    assert_sound(memory)
    with suppress(NotFound):
        memory.wipe("al")
    assert query(path, "SELECT count(*) FROM versions") == [(0,)]
    assert_sound(memory)


class Interrupted(MemoryKey):
    """Another handle's keys; whoever asks for one they had not seen is held up by what happens then."""

    def __init__(self, keys: MemoryKey) -> None:
        self._shared = keys
        self.meanwhile: list[Callable[[], object]] = []

    def load(self) -> list[Kek]:
        while self.meanwhile:
            self.meanwhile.pop()()
        return self._shared.load()


@pytest.mark.parametrize("read", ["search", "events"])
def test_a_read_that_a_wipe_overtakes_answers_with_what_is_left(path: Path, read: str) -> None:
    """The reader's snapshot still has rows whose key is destroyed before the reader comes to them."""
    keys = MemoryKey()
    interrupted = Interrupted(keys)
    with (
        Alcove(path, settings=QUIET, keys=keys) as memory,
        Alcove(path, settings=QUIET, keys=interrupted) as reader,
    ):
        for user in ("al", "bob", "carol"):
            memory.as_user(user).put(("user", user), "key", {"of": user})
        list(memory.rotate_keys())
        interrupted.meanwhile = [lambda: memory.wipe("bob", wait=False)]
        found = reader.search(("user",)) if read == "search" else reader.events(("user",)).events
        assert interrupted.meanwhile == []
        assert [each.value for each in found] == [{"of": "al"}, {"of": "carol"}]


def test_rotations_in_several_processes_at_once_lose_no_key(memory: Alcove, path: Path) -> None:
    for n in range(50):
        memory.as_user(f"user-{n}").put(("user", f"user-{n}"), "key", {"n": n})
    in_processes(path, rotate)
    with Alcove(path, settings=QUIET) as fresh:
        assert_sound(fresh)


if __name__ == "__main__":
    if sys.argv[1] == "open":
        open_together(sys.argv[2])
    else:
        join((write_through_wipes, read_through_wipes, rotate), *sys.argv[1:])
