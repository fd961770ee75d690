"""Locks by name: one holder at a time, among threads and processes.

This file is also the other process: `python -m tests.unit.test_locks STORE` does what it reads.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from alcove.engine.locks import FileLocks
from tests.support.child_programs import Child, say, started
from tests.support.waiting import until

NAMES = [f"turns:bot:u:user-{n}:monday".encode() for n in range(1000)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@contextmanager
def opened(store: Path) -> Iterator[FileLocks]:
    locks = FileLocks.for_store(store)
    try:
        yield locks
    finally:
        locks.close()


class Other:
    """A process that has the same store open."""

    def __init__(self, child: Child) -> None:
        self._child, self._said = child, 1
        child.wait_for("ready")
        self.kill = child.kill

    def take(self, name: str | bytes) -> bool:
        return self._told("take", name) == "True"

    def give(self, name: str | bytes) -> None:
        self._told("give", name)

    def close(self) -> None:
        self._told("close", "")

    def _told(self, what: str, name: str | bytes) -> str:
        self._child.tell(f"{what} {name.decode() if isinstance(name, bytes) else name}")
        self._said += 1
        until(lambda: len(self._child.lines) == self._said)
        return self._child.lines[-1]


@contextmanager
def another_process(store: Path) -> Iterator[Other]:
    with started(store.with_name(f"said-{os.urandom(4).hex()}"), __name__, store) as child:
        yield Other(child)


def serve(store: Path) -> None:
    """The other process: takes and gives what it is told to."""
    locks = FileLocks.for_store(store)
    say("ready")
    for line in sys.stdin:
        what, name = line.rstrip("\n").split(" ", 1)
        if what == "take":
            say(locks.try_acquire(name.encode()))
        elif what == "give":
            locks.release(name.encode())
            say("given")
        else:
            locks.close()
            say("closed")


# In one process


def test_of_many_threads_that_ask_at_once_one_gets_it(store: Path) -> None:
    together = threading.Barrier(16)

    def ask(_: int) -> bool:
        together.wait()
        return locks.try_acquire(b"turn")

    with opened(store) as locks, ThreadPoolExecutor(16) as threads:
        for _ in range(50):
            assert sum(threads.map(ask, range(16))) == 1
            locks.release(b"turn")


def test_threads_that_wait_for_their_turn_are_never_inside_together(store: Path) -> None:
    inside, most = list[int](), list[int]()

    def work(n: int) -> None:
        for _ in range(20):
            until(lambda: locks.try_acquire(b"turn"))
            inside.append(n)
            most.append(len(inside))
            inside.remove(n)
            locks.release(b"turn")

    with opened(store) as locks, ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert (len(most), max(most)) == (160, 1)


def test_two_handles_of_a_store_in_one_process_exclude_each_other(store: Path) -> None:
    with opened(store) as one, opened(store) as other:
        assert one.try_acquire(b"turn")
        assert not other.try_acquire(b"turn")
        assert not one.try_acquire(b"turn")
        assert other.try_acquire(b"another")
        one.release(b"turn")
        assert other.try_acquire(b"turn")


def test_a_store_is_the_same_by_whichever_path_it_is_opened(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.parent / "folder").symlink_to(store.parent)
    monkeypatch.chdir(store.parent)
    with (
        opened(store) as locks,
        opened(Path("memory.db")) as relative,
        opened(Path("folder/memory.db")) as by,
    ):
        assert locks.try_acquire(b"turn")
        assert not relative.try_acquire(b"turn")
        assert not by.try_acquire(b"turn")


def test_a_store_is_the_same_by_a_link_to_its_file(store: Path) -> None:
    store.touch()
    (link := store.with_name("link.db")).symlink_to(store)
    with opened(store) as locks, opened(link) as linked:
        assert locks.try_acquire(b"turn")
        assert not linked.try_acquire(b"turn")


def test_stores_beside_each_other_have_locks_of_their_own(store: Path) -> None:
    with opened(store) as one, opened(store.with_name("other.db")) as other:
        assert one.try_acquire(b"turn")
        assert other.try_acquire(b"turn")


def test_a_store_that_was_closed_and_opened_anew_has_no_lock_taken(store: Path) -> None:
    with opened(store) as locks:
        assert locks.try_acquire(b"turn")
    with opened(store) as locks:
        assert locks.try_acquire(b"turn")


def test_what_is_given_back_after_the_store_was_closed_breaks_nothing(store: Path) -> None:
    with opened(store) as locks:
        assert locks.try_acquire(b"turn")
    locks.release(b"turn")  # a turn that was still under way


# Between processes


def test_processes_exclude_each_other_until_it_is_given_back(store: Path) -> None:
    with opened(store) as locks, another_process(store) as other:
        assert other.take("turn")
        assert not locks.try_acquire(b"turn")
        assert locks.try_acquire(b"another")
        assert not other.take("another")
        other.give("turn")
        assert locks.try_acquire(b"turn")
        assert not other.take("turn")


def test_kill_9_of_the_holder_frees_it(store: Path) -> None:
    with opened(store) as locks, another_process(store) as other:
        for name in NAMES[:50]:
            assert other.take(name)
        assert not any(map(locks.try_acquire, NAMES[:50]))
        other.kill()
        assert all(map(locks.try_acquire, NAMES[:50]))


def test_closing_the_store_frees_it_for_other_processes(store: Path) -> None:
    with opened(store) as locks, another_process(store) as other:
        assert other.take("turn")
        other.close()
        assert locks.try_acquire(b"turn")


def test_closing_one_handle_frees_nothing_of_another(store: Path) -> None:
    with another_process(store) as other:
        with opened(store) as kept:
            with opened(store) as closed:
                assert kept.try_acquire(b"one")
                assert closed.try_acquire(b"two")
            assert not other.take("one")
            assert not other.take("two")  # whose it is, nobody knows: it is the process's
            assert not kept.try_acquire(b"one")
        assert other.take("one")
        assert other.take("two")


def test_a_handle_that_never_took_any_frees_nothing_when_it_is_closed(store: Path) -> None:
    with another_process(store) as other, opened(store) as locks:
        assert locks.try_acquire(b"turn")
        for _ in range(20):
            with opened(store):
                pass
        assert not other.take("turn")


# Names


def test_a_thousand_names_are_a_thousand_locks(store: Path) -> None:
    with opened(store) as locks, another_process(store) as other:
        assert all(map(locks.try_acquire, NAMES))
        assert not any(map(locks.try_acquire, NAMES))
        for name in NAMES[::100]:
            assert not other.take(name)
            locks.release(name)
            assert other.take(name)
        taken_here = [name for name in NAMES if name not in NAMES[::100]]
        for name in taken_here:
            locks.release(name)
        assert all(map(locks.try_acquire, taken_here))


@pytest.mark.parametrize("name", [b"", b"\0", b"x" * 100_000, "zażółć 🦊".encode()])
def test_any_bytes_are_a_name(store: Path, name: bytes) -> None:
    with opened(store) as locks:
        assert locks.try_acquire(name)
        assert not locks.try_acquire(name)
        assert locks.try_acquire(name + b"?")


def test_nothing_is_written_to_the_file_and_only_its_owner_may_open_it(store: Path) -> None:
    with opened(store) as locks:
        assert os.listdir(store.parent) == []
        assert all(map(locks.try_acquire, NAMES))
        for name in NAMES[::2]:
            locks.release(name)
        (file,) = store.parent.iterdir()
        assert file.stat().st_size == file.stat().st_blocks == 0
        assert file.stat().st_mode & 0o777 == 0o600
        assert "user" not in file.name
    assert file.read_bytes() == b""


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
