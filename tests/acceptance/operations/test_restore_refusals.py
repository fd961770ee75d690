"""Restore: what it refuses, and what a full disk or a kill half-way leaves behind: nothing.

This file is also the child program that is killed half-way or runs out of room:
`python -m tests.acceptance.operations.test_restore_refusals <role> <backup> <at>`.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from alcove import (
    Alcove,
    KeyUnavailable,
    StoreError,
    Unavailable,
)
from tests.support.child_programs import limit_files, say, started, unlimit_files
from tests.support.restore_steps import (
    AL,
    QUIET,
    assert_refused,
    bring_back,
    contents,
    lose,
)
from tests.support.store_inspection import assert_sound, query, raw_bytes, timeline

KILLS = 8


def test_nothing_is_restored_over_a_store_or_what_is_left_of_one(
    memory: Alcove, path: Path, to: Path
) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    list(memory.backup(to))
    with pytest.raises(StoreError, match="already there"):
        bring_back(to, path)
    assert_sound(memory)
    lose(memory, path)
    for left in ("", "-wal", "-shm", "-journal"):
        there = path.with_name(path.name + left)
        there.write_bytes(b"precious")
        assert_refused(to, path, StoreError, "already there")
        there.unlink()
    bring_back(to, path)


@pytest.mark.parametrize(
    "code",
    [
        "CREATE TRIGGER spy AFTER INSERT ON versions BEGIN DELETE FROM versions; END",
        "CREATE VIEW spy AS SELECT * FROM versions",
        "CREATE VIRTUAL TABLE spy USING fts5(text)",
    ],
    ids=["trigger", "view", "virtual table"],
)
def test_a_backup_that_would_run_something_of_its_own_is_refused(
    memory: Alcove, path: Path, to: Path, code: str
) -> None:
    list(memory.backup(to))
    lose(memory, path)
    with closing(sqlite3.connect(to)) as backup:
        backup.execute(code)
        backup.commit()
    assert_refused(to, path, StoreError, "'spy' is not one of its tables or indexes")


def test_a_folder_that_is_not_there_is_named(memory: Alcove, path: Path, to: Path) -> None:
    list(memory.backup(to))
    with pytest.raises(StoreError, match=r"there is no folder .*nowhere"):
        bring_back(to, path.with_name("nowhere") / "memory.db")


def test_a_truncated_backup_is_refused(memory: Alcove, path: Path, to: Path) -> None:
    for n in range(300):
        memory.as_user("al").put(AL, f"{n}", {"text": "x" * 500})
    list(memory.backup(to))
    lose(memory, path)
    whole = to.read_bytes()
    for size in (0, 1, 99, 100, 4096, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        to.write_bytes(whole[:size])
        assert_refused(to, path, StoreError, r"backup\.db is (truncated|not a database)")


def test_a_backup_with_damaged_pages_is_refused(memory: Alcove, path: Path, to: Path) -> None:
    for n in range(300):
        memory.as_user("al").put(AL, f"{n}", {"text": "x" * 500})
    list(memory.backup(to))
    lose(memory, path)
    whole = bytearray(to.read_bytes())
    whole[8192:20480] = bytes(12288)
    to.write_bytes(whole)
    assert_refused(to, path, StoreError, r"backup\.db is .*damaged")


def test_what_is_no_backup_of_ours_is_refused(memory: Alcove, path: Path, to: Path) -> None:
    lose(memory, path)
    assert_refused(to, path, StoreError, "does not exist")
    assert_refused(path.parent, path, StoreError, "not a file")
    to.write_bytes(b"hello" * 1000)
    assert_refused(to, path, StoreError, "not a database")
    to.unlink()
    with closing(sqlite3.connect(to)) as db:
        db.execute("CREATE TABLE theirs (x)")
        db.commit()
    assert_refused(to, path, StoreError, "another program's")


def test_a_backup_of_a_newer_alcove_is_refused(memory: Alcove, path: Path, to: Path) -> None:
    list(memory.backup(to))
    query(to, "PRAGMA user_version = 999")
    lose(memory, path)
    assert_refused(to, path, StoreError, "newer")


@pytest.mark.of_the_file("copied while it is in use")
def test_a_store_in_use_is_no_backup(memory: Alcove, path: Path) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    copy = path.with_name("copy.db")
    for suffix in ("", "-wal", ".key"):
        shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    assert_refused(copy, path.with_name("new.db"), StoreError, "in use|not a database|another program's")


def test_without_the_right_key_nothing_is_restored(memory: Alcove, path: Path, to: Path) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    list(memory.backup(to))
    lose(memory, path)
    key = path.with_name("memory.db.key")
    right = key.read_text()
    key.unlink()
    assert_refused(to, path, KeyUnavailable, r"memory\.db\.key is missing")
    Alcove(path.with_name("other.db"), settings=QUIET).close()
    path.with_name("other.db.key").rename(key)
    assert_refused(to, path, KeyUnavailable, "sealed with the key")
    key.write_text(right)
    bring_back(to, path)


def test_a_full_disk_leaves_no_part_of_a_store(memory: Alcove, path: Path, to: Path) -> None:
    for n in range(300):
        memory.as_user("al").put(AL, f"{n}", {"text": "x" * 500})
    list(memory.backup(to))
    lose(memory, path)
    before = contents(path.parent)
    with started(path.with_name("said"), __name__, "full", to, path) as child:
        child.finish()
    assert child.lines == ["refused"] * 4 + ["done"]
    path.with_name("said").unlink()
    path.unlink()
    assert contents(path.parent) == before


def test_a_restore_killed_half_way_leaves_no_store_and_the_next_one_cleans_up(
    memory: Alcove, path: Path, to: Path
) -> None:
    for n in range(0, 4000, 500):
        for user in ("MARKER-al", "bob"):
            put = {"op": "put", "namespace": ("user", user), "value": {"n": n}}
            memory.as_user(user).batch([{**put, "key": f"{user}-{i}"} for i in range(n, n + 500)])
    list(memory.backup(to))
    memory.wipe("MARKER-al")
    lose(memory, path)
    began = time.monotonic()
    bring_back(to, path)
    longest = 1.5 * (time.monotonic() - began)
    path.unlink()
    for _ in range(KILLS):
        with started(path.with_name("said"), __name__, "restore", to, path) as child:
            child.wait_for("ready")
            time.sleep(random.uniform(0, longest))
        assert path.exists() or "done" not in child.lines
        if path.exists():  # it has its name, so it is whole, and has forgotten
            _assert_forgotten(path)
            path.unlink()
    bring_back(to, path)
    _assert_forgotten(path)
    assert not [file for file in path.parent.iterdir() if ".partial" in file.name]


def _assert_forgotten(path: Path) -> None:
    assert b"MARKER-al" not in raw_bytes(path)
    with Alcove(path, settings=QUIET) as memory:
        assert len(timeline(memory)) == 4000
        assert_sound(memory)
    assert b"MARKER-al" not in raw_bytes(path)


def main(role: str, backup: str, at: str) -> None:
    source, target = Path(backup), Path(at)
    if role == "restore":
        say("ready")
    else:
        for room in (1, 4096, source.stat().st_size // 2, source.stat().st_size - 1):
            limit_files(room)
            try:
                bring_back(source, target)
                answer = f"not refused with {room}"
            except Unavailable as error:
                answer = "refused" if target.name in error.message else error.message
            unlimit_files()
            assert not target.exists()
            assert not target.with_name(f"{target.name}.partial").exists()
            say(answer)
    bring_back(source, target)
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
