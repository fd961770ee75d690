"""Many writers on one file: several processes with threads in each, or sixteen threads in one.

This file is also the child program: `python -m tests.acceptance.test_processes <work> <path> <workers>…`.
It says `ready`, waits for a line, does its work in a thread for each worker, and says what it did.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from alcove import Alcove, Conflict, Event, Settings
from tests.acceptance.children import say, started
from tests.acceptance.inspection import assert_sound, follow, query, timeline

QUIET = Settings(sweep_interval=0)
AL = ("user", "al")
EACH = 60
"""What every worker does so many times."""


# The work: each returns what the worker was told, for the test to add up.


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


def write_through_wipes(memory: Alcove, worker: int) -> list[int]:
    """Writes for a user who is being wiped, with a data key that may be gone already."""
    al = memory.as_user("al")
    for n in range(EACH * 4):
        al.put((*AL, str(worker)), f"key-{n % 20}", {"n": n}, idempotency_key=f"{worker}-{n}")
    return [n]


def read_through_wipes(memory: Alcove, worker: int) -> list[int]:
    """The same, and reads it back: it is what this worker wrote, or gone, and never an error."""
    al, place = memory.as_user("al"), (*AL, str(worker))
    for n in range(EACH * 4):
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


WORK = {
    work.__name__: work
    for work in (
        put_same_and_different,
        count_up,
        be_first,
        write_all_sorts,
        write_through_wipes,
        read_through_wipes,
        rotate,
    )
}


def main(work: str, path: str, *workers: str) -> None:
    if work == "open":
        for line in iter(sys.stdin.readline, "\n"):
            with Alcove(line.strip(), settings=QUIET) as memory:
                memory.as_user("al").put(AL, f"of-{path}", {"by": path})
            say(line.strip())
        return
    with Alcove(path, settings=QUIET) as memory, ThreadPoolExecutor(len(workers)) as pool:
        say("ready")
        sys.stdin.readline()
        for result in pool.map(lambda worker: WORK[work](memory, int(worker)), workers):
            say(json.dumps(result))
        say("done")


# How it is spread.

Results = dict[int, list[int]]
Spread = Callable[..., Results]


def in_processes(path: Path, work: str, meanwhile: Callable[[], None] = lambda: None) -> Results:
    """Four processes with three threads each, let loose together."""
    processes, threads = 4, 3
    with ExitStack() as stack:
        children = []
        for n in range(processes):
            workers = range(n * threads, (n + 1) * threads)
            said = path.with_name(f"said-{n}")
            children.append(stack.enter_context(started(said, __name__, work, path, *workers)))
        for child in children:
            child.wait_for("ready")
        for child in children:
            child.tell("go")
        meanwhile()
        for child in children:
            child.finish()
        lines = [line for child in children for line in child.lines if line not in ("ready", "done")]
        return dict(enumerate(map(json.loads, lines)))


def in_threads(path: Path, work: str, meanwhile: Callable[[], None] = lambda: None) -> Results:
    """Sixteen threads over one handle."""
    with Alcove(path, settings=QUIET) as memory, ThreadPoolExecutor(17) as pool:
        results = pool.map(lambda worker: WORK[work](memory, worker), range(16))
        meanwhile()
        return dict(enumerate(results))


@pytest.fixture(params=[in_processes, in_threads])
def spread(request: pytest.FixtureRequest) -> Spread:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
def memory(path: Path) -> Iterator[Alcove]:
    with Alcove(path, settings=QUIET) as memory:
        yield memory


# What must hold.


def test_concurrent_puts_lose_nothing_and_count_revisions_without_gaps(
    memory: Alcove, path: Path, spread: Spread
) -> None:
    told = spread(path, "put_same_and_different")
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


def test_an_expected_revision_has_exactly_one_winner(memory: Alcove, path: Path, spread: Spread) -> None:
    won = [revision for each in spread(path, "count_up").values() for revision in each]
    assert sorted(won) == [*range(1, len(won) + 1)]
    found = memory.as_user("al").get(AL, "counter")
    assert found is not None
    assert (found.revision, found.value) == (len(won), {"count": len(won)})
    assert_sound(memory)


def test_only_one_of_many_creates_a_key(memory: Alcove, path: Path, spread: Spread) -> None:
    told = spread(path, "be_first")
    assert Counter(n for each in told.values() for n in each) == Counter(range(EACH))
    for worker, races in told.items():
        for n in races:
            (version,) = memory.as_user("al").history(AL, f"race-{n}")
            assert version.value == {"winner": worker}
    assert_sound(memory)


def test_a_reader_with_a_cursor_skips_and_repeats_nothing(memory: Alcove, path: Path, spread: Spread) -> None:
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
            told = spread(path, "write_all_sorts")
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


def test_processes_that_open_a_new_path_together_share_one_key(tmp_path: Path) -> None:
    openers = range(5)
    with ExitStack() as stack:
        children = [
            stack.enter_context(started(tmp_path / f"said-{n}", __name__, "open", str(n))) for n in openers
        ]
        for attempt in range(10):
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


@pytest.mark.parametrize("work", ["write_through_wipes", "read_through_wipes"])
def test_a_wipe_among_writers_leaves_nothing_unreadable(
    memory: Alcove, path: Path, spread: Spread, work: str
) -> None:
    def wipe_again_and_again() -> None:
        for n in range(25):
            memory.wipe("al", wait=n % 5 == 0)

    spread(path, work, wipe_again_and_again)
    assert_sound(memory)
    assert memory.wipe("al").scrubbed
    assert query(path, "SELECT count(*) FROM versions") == [(0,)]
    assert_sound(memory)


def test_rotations_in_several_processes_at_once_lose_no_key(memory: Alcove, path: Path) -> None:
    for n in range(50):
        memory.as_user(f"user-{n}").put(("user", f"user-{n}"), "key", {"n": n})
    in_processes(path, "rotate")
    with Alcove(path, settings=QUIET) as fresh:
        assert_sound(fresh)


if __name__ == "__main__":
    main(*sys.argv[1:])
