"""kill -9 at random moments: what was acknowledged is there, what was not is there whole or not at all.

This file is also the child program that gets killed: `python test_kill.py <role> <path> …`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from alcove import Alcove, Event, Settings

LONG = bool(os.environ.get("ALCOVE_LONG"))
KILLS = 20
ROUNDS = range(10 if LONG else 1)
WRITERS = 4
PATIENCE = 60.0
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


def acknowledge(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


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
        acknowledge(writer, n)
        n += 1


def child(role: str, path: str, *rest: str) -> None:
    with Alcove(path, settings=BUSY if role == "write" else QUIET) as memory:
        acknowledge("ready")
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
                    acknowledge("step")
        acknowledge("done")


# How it is killed.


@contextmanager
def running(acknowledged: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """The child, with its acknowledgements in a file; at the end it is killed and gone."""
    with acknowledged.open("wb") as log:
        command = [sys.executable, __file__, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.PIPE)
        try:
            yield process
        finally:
            process.kill()
            _, errors = process.communicate(timeout=PATIENCE)
    assert not errors, errors.decode()


def until_line(acknowledged: Path, line: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while line not in acknowledged.read_text().splitlines():
        assert process.poll() is None or line in acknowledged.read_text().splitlines(), "the child died"
        assert time.monotonic() < deadline, f"the child never said {line!r}"
        time.sleep(0.001)


# What must hold afterwards.


def assert_sound(memory: Alcove) -> None:
    assert [each for each in memory.doctor() if each.wrong] == []


def timeline(memory: Alcove, prefix: Sequence[str]) -> list[Event]:
    found: list[Event] = []
    cursor = None
    while (page := memory.events(prefix, after_cursor=cursor, limit=200)).events:
        found += page.events
        cursor = page.after_cursor
    return found


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
    path, acknowledged = tmp_path / "memory.db", tmp_path / "acknowledged"
    chance = random.Random()
    written: list[Counter[int]] = []
    for run in range(KILLS):
        with running(acknowledged, "write", path, run) as process:
            if run % 4 == 0:  # while it starts, creates, migrates or opens the store
                time.sleep(chance.uniform(0, 0.5))
            else:
                until_line(acknowledged, "0 0", process)
                time.sleep(chance.uniform(0, 0.8))
        lines = [line for line in acknowledged.read_text().splitlines() if line != "ready"]
        written.append(Counter(int(line.split()[0]) for line in lines))
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
        with running(tmp_path / "acknowledged", "write", path, 0) as process:
            deadline = time.monotonic() + PATIENCE
            while not path.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.0005)
            time.sleep(random.uniform(0, 0.02))
        with Alcove(path, settings=QUIET) as memory:
            memory.as_user("al").put(("user", "al"), "key", {"is": "kept"})
            assert_sound(memory)
        with Alcove(path, settings=QUIET) as memory:
            assert memory.as_user("al").get(("user", "al"), "key") is not None


@many_times
def test_a_killed_wipe_is_whole_or_not_at_all_and_is_finished_later(tmp_path: Path) -> None:
    original, acknowledged, marker = tmp_path / "original.db", tmp_path / "acknowledged", "MARKER5d0c"
    with Alcove(original, settings=QUIET) as memory:
        for start in range(0, 3000, 500):
            for user in ("al", "alice"):
                name = f"{marker}-{user}"
                memory.as_user(user).batch(
                    [
                        {"op": "put", "namespace": ("user", user), "key": f"{name}-{i}", "value": {"i": i}}
                        for i in range(start, start + 500)
                    ]
                )
    outcomes: Counter[str] = Counter()
    longest = 0.1
    for run in range(KILLS):
        path = tmp_path / f"{run}.db"
        for suffix in ("", ".key"):
            shutil.copy(f"{original}{suffix}", f"{path}{suffix}")
        with running(acknowledged, "wipe", path, "al") as process:
            until_line(acknowledged, "ready", process)
            started = time.monotonic()
            if run == 0:  # learn how long a wipe takes, to kill the others somewhere inside
                until_line(acknowledged, "done", process)
                longest = time.monotonic() - started
            else:
                time.sleep(random.uniform(0, longest))
        finished = "done" in acknowledged.read_text()
        with Alcove(path, settings=QUIET) as memory:
            left = len(timeline(memory, ("user", "al")))
            outcomes["before" if left else "after" if finished else "between"] += 1
            assert left in ((0,) if finished else (0, 3000))
            assert len(timeline(memory, ("user", "alice"))) == 3000
            assert_sound(memory)
            memory.sweep()
            if left == 0:
                held = b"".join(file.read_bytes() for file in tmp_path.glob(f"{run}.db*"))
                assert f"{marker}-al-".encode() not in held
                assert memory.wipe("al").removed == {"memories": 0, "versions": 0, "replays": 0}
            else:
                assert memory.wipe("al").removed["memories"] == 3000
        for file in tmp_path.glob(f"{run}.db*"):
            file.unlink()
    assert outcomes["after"] >= 1


@many_times
def test_a_killed_key_rotation_goes_on_and_loses_no_value(tmp_path: Path) -> None:
    path, acknowledged, users = tmp_path / "memory.db", tmp_path / "acknowledged", 1200
    with Alcove(path, settings=QUIET) as memory:
        for n in range(users):
            memory.as_user(f"user-{n}").put(("user", f"user-{n}"), "key", {"n": n})
    longest = 0.1
    for run in range(KILLS // 2):
        keys_before, settled = len(key_lines(path)), len(wrapped_by(path)) == 1
        with running(acknowledged, "rotate", path) as process:
            until_line(acknowledged, "ready", process)
            started = time.monotonic()
            if run == 0:
                until_line(acknowledged, "done", process)
                longest = time.monotonic() - started
            else:
                time.sleep(random.uniform(0, longest))
        assert len(key_lines(path)) - keys_before in ((0, 1) if settled else (0,))
        with Alcove(path, settings=QUIET) as memory:
            assert_sound(memory)
            if run % 2:  # otherwise the next run finds a rotation half done
                list(memory.rotate_keys())
                assert_sound(memory)
                assert len(wrapped_by(path)) == 1
    with Alcove(path, settings=QUIET) as memory:
        for n in range(users):
            found = memory.as_user(f"user-{n}").get(("user", f"user-{n}"), "key")
            assert found is not None
            assert found.value == {"n": n}


def key_lines(path: Path) -> list[str]:
    return path.with_name(path.name + ".key").read_text().split()


def wrapped_by(path: Path) -> set[str]:
    db = apsw.Connection(str(path))
    try:
        return {str(row[0]) for row in db.execute("SELECT DISTINCT wrapped_by FROM data_keys")}
    finally:
        db.close()


if __name__ == "__main__":
    child(*sys.argv[1:])
