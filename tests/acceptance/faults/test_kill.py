"""kill -9 at random moments: what was acknowledged is there, what was not is there whole or not at all.

This file is also the child program that gets killed: `python -m tests.acceptance.faults.test_kill <role> …`.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from alcove import Alcove, Settings
from tests.support.child_programs import Child, say, started
from tests.support.store_inspection import assert_sound, query, raw_bytes, timeline
from tests.support.waiting import LONG, PATIENCE

KILLS = 20
ROUNDS = range(10 if LONG else 1)
WRITERS = 4
QUIET = Settings(sweep_interval=0)
BUSY = Settings(sweep_interval=0.02)  # the killed process sweeps while it writes

Step = dict[str, object]
Effect = tuple[str, object]
"""A key, and the value put there or None for a delete."""


many_times = pytest.mark.usefixtures("round_")


@pytest.fixture(params=ROUNDS)
def round_(request: pytest.FixtureRequest) -> None:
    """A test that uses this runs once, or ten times in the long form, each on a new store."""


# What the child does. Step `n` of a writer is always the same, so its acknowledgement is a number.


def steps(n: int) -> list[Step]:
    """The operations of one write: a single one, or a batch."""
    value = {"n": n, "text": "é" * (n % 50)}
    match n % 8:
        case 0 | 1:
            return [{"op": "put", "key": "single", "value": value, "index": {"n": str(n)}}]
        case 2:
            batch: list[Step] = [{"op": "put", "key": f"batch-{i}", "value": value} for i in range(5)]
            return [*batch, {"op": "delete", "key": "single"}]
        case 3:
            return [{"op": "put", "key": "short-lived", "value": value, "ttl_seconds": 1}]
        case 4:
            return [{"op": "put", "key": "long-lived", "value": value, "ttl_seconds": 36_000}]
        case 5:
            return [{"op": "put", "key": "large", "value": {"n": n, "text": "x" * 30_000}}]
        case 6:
            return [{"op": "delete", "key": "large"}]
        case _:
            return [{"op": "delete", "key": f"batch-{i}"} for i in range(5)]


def effects(n: int) -> list[Effect]:
    """What a write leaves in the timeline."""
    return [(str(step["key"]), step.get("value")) for step in steps(n)]


def place(writer: int, run: int) -> tuple[str, ...]:
    return ("user", f"writer-{writer}", f"run-{run}")


def write_for_ever(memory: Alcove, writer: int, run: int) -> None:
    mine = memory.as_user(f"writer-{writer}")
    n = 0
    while True:
        done = [{**step, "namespace": place(writer, run)} for step in steps(n)]
        if len(done) > 1:
            mine.batch(done)
        elif done[0].pop("op") == "put":
            mine.put(**done[0])  # type: ignore[arg-type]
        else:
            mine.delete(**done[0])  # type: ignore[arg-type]
        say(writer, n)
        n += 1


def main(role: str, path: str, *rest: str) -> None:
    with Alcove(path, settings=BUSY if role == "write" else QUIET) as memory:
        say("ready")
        match role:
            case "write":
                for writer in range(WRITERS):
                    threading.Thread(
                        target=write_for_ever, args=(memory, writer, int(rest[0])), daemon=True
                    ).start()
                time.sleep(PATIENCE)
            case "wipe":
                memory.wipe(rest[0])
            case "rotate":
                for _ in memory.rotate_keys():
                    say("step")
        say("done")


# What must hold afterwards.


def assert_whole(memory: Alcove, writer: int, run: int, acknowledged: int) -> None:
    """The timeline is the acknowledged writes, and at most the one that was under way, whole."""
    events = timeline(memory, place(writer, run))
    seen = [(event.key, event.value) for event in events if event.kind != "expired"]
    certain = [effect for n in range(acknowledged) for effect in effects(n)]
    assert seen in (certain, certain + effects(acknowledged))
    by_key = defaultdict(list)
    for event in events:
        by_key[event.key].append(event)
    for key, versions in by_key.items():
        assert [version.revision for version in versions] == [*range(1, len(versions) + 1)]
        current = memory.as_user(f"writer-{writer}").get(place(writer, run), key)
        if current is not None:
            assert (current.revision, current.value) == (len(versions), versions[-1].value)
        elif versions[-1].value is not None:
            assert key == "short-lived"


@many_times
def test_every_acknowledged_write_survives_kill_9_at_random_moments(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    written: list[Counter[int]] = []
    for run in range(KILLS):
        with started(tmp_path / "said", __name__, "write", path, run) as child:
            if run % 4:
                child.wait_for("0 0")
                time.sleep(random.uniform(0, 0.4))
            else:  # while it starts, creates or opens the store
                time.sleep(random.uniform(0, 0.1))
        written.append(Counter(int(line.split()[0]) for line in child.lines if line != "ready"))
        with Alcove(path, settings=QUIET) as memory:
            assert_sound(memory)
            for writer in range(WRITERS):
                assert_whole(memory, writer, run, written[run][writer])
    assert sum(counter.total() for counter in written) > KILLS
    with Alcove(path, settings=QUIET) as memory:
        for run, counter in enumerate(written):
            for writer in range(WRITERS):
                assert_whole(memory, writer, run, counter[writer])


@many_times
def test_a_store_killed_while_it_is_made_opens_afterwards(tmp_path: Path) -> None:
    for run in range(KILLS // 2):
        path = tmp_path / f"{run}.db"
        with started(tmp_path / "said", __name__, "write", path, 0) as child:
            while not path.exists() and child.running:
                time.sleep(0.0005)
            time.sleep(random.uniform(0, 0.02))
        with Alcove(path, settings=QUIET) as memory:
            memory.as_user("al").put(("user", "al"), "key", {"is": "kept"})
            assert_sound(memory)
        with Alcove(path, settings=QUIET) as memory:
            assert memory.as_user("al").get(("user", "al"), "key") is not None


@many_times
@pytest.mark.of_the_file("a copy of it for every kill")
def test_a_killed_wipe_is_whole_or_not_at_all_and_is_finished_later(tmp_path: Path) -> None:
    original, each = tmp_path / "original.db", 2000
    with Alcove(original, settings=QUIET) as memory:
        for n in range(0, each, 500):
            for user in ("al", "alice"):
                keys = [f"MARKER-{user}-{i}" for i in range(n, n + 500)]
                put = {"op": "put", "namespace": ("user", user), "value": {"n": n}}
                memory.as_user(user).batch([{**put, "key": key} for key in keys])
    longest = 0.0
    for run in range(KILLS):
        path = tmp_path / f"{run}.db"
        for suffix in ("", ".key"):
            shutil.copy(f"{original}{suffix}", f"{path}{suffix}")
        with started(tmp_path / "said", __name__, "wipe", path, "al") as child:
            longest = _interrupt(child, longest)
        finished = "done" in child.lines
        with Alcove(path, settings=QUIET) as memory:
            assert_sound(memory)
            assert len(timeline(memory, ("user", "alice"))) == each
            left = len(timeline(memory, ("user", "al")))
            assert left in ((0,) if finished else (0, each))
            memory.sweep()
            assert (b"MARKER-al-" in raw_bytes(path)) == (left > 0)
            if left:
                assert memory.wipe("al").removed["memories"] == left
            assert b"MARKER-al-" not in raw_bytes(path)


@many_times
def test_a_killed_key_rotation_goes_on_and_loses_no_value(tmp_path: Path) -> None:
    path, users = tmp_path / "memory.db", 1200
    with Alcove(path, settings=QUIET) as memory:
        for n in range(users):
            memory.as_user(f"user-{n}").put(("user", f"user-{n}"), "key", {"n": n})
    longest = 0.0
    for run in range(KILLS // 2):
        keys, half_done = key_lines(path), len(wrapped_by(path)) > 1
        with started(tmp_path / "said", __name__, "rotate", path) as child:
            longest = _interrupt(child, longest)
        assert key_lines(path)[: len(keys)] == keys
        assert len(key_lines(path)) - len(keys) in ((0,) if half_done else (0, 1))
        with Alcove(path, settings=QUIET) as memory:
            assert_sound(memory)
            if run % 2:  # otherwise the next run finds a rotation half done
                list(memory.rotate_keys())
                assert len(wrapped_by(path)) == 1
                assert_sound(memory)
    with Alcove(path, settings=QUIET) as memory:
        for n in range(users):
            found = memory.as_user(f"user-{n}").get(("user", f"user-{n}"), "key")
            assert found is not None
            assert found.value == {"n": n}


def _interrupt(child: Child, longest: float) -> float:
    """Waits until somewhere inside the child's work; the first time, for how long that takes at most."""
    child.wait_for("ready")
    began = time.monotonic()
    if longest:
        time.sleep(random.uniform(0, longest))
        return longest
    child.wait_for("done")
    return time.monotonic() - began


def key_lines(path: Path) -> list[str]:
    return path.with_name(path.name + ".key").read_text().split()


def wrapped_by(path: Path) -> set[object]:
    return {row[0] for row in query(path, "SELECT DISTINCT wrapped_by FROM data_keys")}


if __name__ == "__main__":
    main(*sys.argv[1:])
