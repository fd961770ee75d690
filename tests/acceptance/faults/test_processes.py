"""Many writers on one file: nothing is lost, counted twice or skipped, and a race has one winner.

This file is also the program of the crowd's processes: `python -m tests.acceptance.faults.test_processes …`.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from alcove import Alcove, Conflict, Event
from tests.support.concurrent_workers import Crowd, join
from tests.support.store_inspection import assert_sound, follow, timeline

AL = ("user", "al")
EACH = 60
"""What every worker does so many times."""


# The work


def put_same_and_different(memory: Alcove, worker: int) -> list[int]:
    """Revisions that this worker's puts to one common key were given; its other puts go elsewhere."""
    al, revisions = memory.as_user("al"), []
    for n in range(EACH):
        revisions.append(al.put(AL, "common", {"worker": worker, "n": n}).revision)
        assert al.put((*AL, f"of-{worker}"), f"key-{n}", {"n": n}).revision == 1
    return revisions


def count_up(memory: Alcove, worker: int) -> list[int]:
    """Revisions this worker won: it reads a counter and writes one more, if nobody was quicker."""
    won: list[int] = []
    al = memory.as_user("al")
    while len(won) < EACH // 4:
        found = al.get(AL, "counter")
        count, revision = (found.value["count"], found.revision) if found else (0, 0)
        assert isinstance(count, int)
        try:
            won.append(al.put(AL, "counter", {"count": count + 1}, expected_revision=revision).revision)
        except Conflict:
            continue
    return won


def be_first(memory: Alcove, worker: int) -> list[int]:
    """Races this worker won: everybody tries to make the same keys."""
    won = []
    for n in range(EACH):
        try:
            memory.as_user("al").put(AL, f"race-{n}", {"winner": worker}, create_only=n % 2 == 0,
                                     expected_revision=None if n % 2 == 0 else 0)  # fmt: skip
            won.append(n)
        except Conflict:
            continue
    return won


def write_all_sorts(memory: Alcove, worker: int) -> list[int]:
    """How many events this worker caused, in a room of its own and in a common one."""
    user = f"user-{worker}"
    mine, caused = memory.as_user(user), 0
    for n in range(EACH):
        mine.put(("user", user), f"key-{n % 5}", {"n": n})
        put = {"op": "put", "namespace": ("user", user, "batch"), "value": {"n": n}}
        mine.batch([{**put, "key": f"key-{i}"} for i in range(3)])
        memory.as_user("al").put(AL, f"key-{n % 3}", {"worker": worker, "n": n})
        caused += 5
        if n % 5 == 4:
            caused += mine.delete(("user", user), "key-0").deleted
    return [caused]


# What must hold.


def test_concurrent_puts_lose_nothing_and_count_revisions_without_gaps(
    memory: Alcove, path: Path, crowd: Crowd
) -> None:
    told = crowd(path, put_same_and_different)
    revisions = sorted(revision for each in told.values() for revision in each)
    assert revisions == [*range(1, len(told) * EACH + 1)]
    assert all(each == sorted(each) for each in told.values())
    al = memory.as_user("al")
    kept = [(version.revision, version.value) for version in al.history(AL, "common")]
    writers = {told[worker][n]: {"worker": worker, "n": n} for worker in told for n in range(EACH)}
    assert kept == sorted(writers.items(), reverse=True)
    for worker in told:
        found = {each.key: each.value for each in al.search((*AL, f"of-{worker}"), limit=100)}
        assert found == {f"key-{n}": {"n": n} for n in range(EACH)}
    assert_sound(memory)


def test_an_expected_revision_has_exactly_one_winner(memory: Alcove, path: Path, crowd: Crowd) -> None:
    won = [revision for each in crowd(path, count_up).values() for revision in each]
    assert sorted(won) == [*range(1, len(won) + 1)]
    found = memory.as_user("al").get(AL, "counter")
    assert found is not None
    assert (found.revision, found.value) == (len(won), {"count": len(won)})
    assert_sound(memory)


def test_only_one_of_many_creates_a_key(memory: Alcove, path: Path, crowd: Crowd) -> None:
    told = crowd(path, be_first)
    assert Counter(n for each in told.values() for n in each) == Counter(range(EACH))
    for worker, races in told.items():
        for n in races:
            (version,) = memory.as_user("al").history(AL, f"race-{n}")
            assert version.value == {"winner": worker}
    assert_sound(memory)


def test_a_reader_with_a_cursor_skips_and_repeats_nothing(memory: Alcove, path: Path, crowd: Crowd) -> None:
    done = threading.Event()

    def read(prefix: tuple[str, ...], limit: int) -> list[Event]:
        seen: list[Event] = []
        ending = False
        while not ending:
            ending = done.is_set()  # one more look after the last write
            seen += follow(memory, prefix, seen[-1].cursor if seen else None, limit=limit)
        return seen

    with ThreadPoolExecutor(3) as pool:
        everything = pool.submit(read, (), 7)
        subtree = pool.submit(read, AL, 200)
        try:
            told = crowd(path, write_all_sorts)
        finally:
            done.set()
        seen, below = everything.result(), subtree.result()
    assert len(seen) == sum(caused for each in told.values() for caused in each)
    assert seen == timeline(memory)
    assert below == [event for event in seen if event.namespace == AL]
    assert len({event.id for event in seen}) == len({event.cursor for event in seen}) == len(seen)
    assert [event.occurred_at for event in seen] == sorted(event.occurred_at for event in seen)
    revisions = defaultdict(list)
    for event in seen:
        revisions[event.namespace, event.key].append(event.revision)
    assert all(each == [*range(1, len(each) + 1)] for each in revisions.values())
    assert_sound(memory)


if __name__ == "__main__":
    join((put_same_and_different, count_up, be_first, write_all_sorts), *sys.argv[1:])
