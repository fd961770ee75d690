"""Backup of a store in use: one whole moment of it, read back before it gets its name, or nothing.

This file is also the child program that writes meanwhile, is killed half-way or runs out of room:
`python -m tests.acceptance.operations.test_backup <role> <path> <to>`.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw
import pytest

from alcove import Alcove, AlcoveError, BackedUp, PermissionDenied, Settings, StoreError, Unavailable, restore
from alcove.core.errors import KeyUnavailable
from tests.support.child_programs import limit_files, say, started, unlimit_files
from tests.support.store_inspection import assert_sound, query, raw_bytes, timeline

QUIET = Settings(sweep_interval=0)
KILLS = 8


def fill(memory: Alcove, *users: str, rows: int = 500) -> None:
    for user in users:
        for n in range(0, rows, 100):
            put = {"op": "put", "namespace": ("user", user)}
            memory.as_user(user).batch(
                [
                    {**put, "key": f"{user}-{i}", "value": {"n": i, "text": "x" * 200}}
                    for i in range(n, n + 100)
                ]
            )


def back_up(memory: Alcove, to: Path) -> BackedUp:
    *_, last = memory.backup(to)
    assert last.result is not None
    return last.result


@contextmanager
def restored(backup: Path, path: Path) -> Iterator[Alcove]:
    """The backup as a store of its own, with the key of the store at `path`."""
    copy = path.with_name("restored.db")
    copy.with_name("restored.db.key").write_bytes(path.with_name(path.name + ".key").read_bytes())
    list(restore(backup, copy, without_ledger=True))
    with Alcove(copy, settings=QUIET) as memory:
        yield memory


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_a_backup_is_one_file_with_everything_in_it(memory: Alcove, path: Path) -> None:
    fill(memory, "al", "bob")
    memory.as_user("al").delete(("user", "al"), "al-7")
    to = path.with_name("backup.db")
    before = names(path.parent)
    steps = list(memory.backup(to))
    assert names(path.parent) == {*before, "backup.db"}
    result = steps[-1].result
    assert result == BackedUp(to, to.stat().st_size, 999, 1001, 1001, 0)
    assert {step.step for step in steps} == {"copying", "verifying", "done"}
    assert to.stat().st_mode & 0o077 == 0
    with restored(to, path) as again:
        assert timeline(again) == timeline(memory)
        assert_sound(again)


def test_a_backup_does_not_follow_what_others_write_meanwhile(path: Path) -> None:
    """Other processes go on writing, each batch all or nothing, and each is in the backup whole or not."""
    to, said = path.with_name("backup.db"), path.with_name("said")
    with Alcove(path, settings=QUIET) as memory, ExitStack() as stack:
        fill(memory, "al", rows=3000)
        writers = [
            stack.enter_context(started(Path(f"{said}-{n}"), __name__, "write", path, f"writer-{n}"))
            for n in range(2)
        ]
        for writer in writers:
            writer.wait_for("0")
        written_before = [len(writer.lines) for writer in writers]
        during = []
        for step in memory.backup(to):
            during.append([len(writer.lines) for writer in writers])
            result = step.result
            time.sleep(0.05)
        assert result is not None
        assert all(after > before for before, after in zip(during[0], during[-1], strict=True))
    with restored(to, path) as again:
        assert len(timeline(again)) == result.versions
        for n, least in enumerate(written_before):
            versions = timeline(again, ("user", f"writer-{n}"))
            assert len(versions) % 10 == 0
            assert least * 10 <= len(versions) <= during[-1][n] * 10
            assert [v.value["n"] for v in versions if v.value] == [i // 10 for i in range(len(versions))]
        assert_sound(again)


@pytest.mark.of_the_file("bytes that wait for a scrub")
def test_a_backup_between_a_wipe_and_its_scrub_has_no_byte_of_the_user(memory: Alcove, path: Path) -> None:
    fill(memory, "al-marker", "bob")
    memory.wipe("al-marker", wait=False)
    assert b"al-marker" in raw_bytes(path)
    back_up(memory, path.with_name("backup.db"))
    assert b"al-marker" not in path.with_name("backup.db").read_bytes()
    assert b"bob-499" in path.with_name("backup.db").read_bytes()


def test_nothing_is_written_over(memory: Alcove, path: Path) -> None:
    to = path.with_name("backup.db")
    for there in (to, path.with_name("backup.db-wal")):
        there.write_bytes(b"precious")
        with pytest.raises(StoreError, match="already there"):
            list(memory.backup(to))
        assert there.read_bytes() == b"precious"
        there.unlink()
    with pytest.raises(StoreError, match="already there"):
        list(memory.backup(path))
    assert_sound(memory)


def test_a_name_that_was_taken_meanwhile_is_not_taken_away(memory: Alcove, path: Path) -> None:
    to = path.with_name("backup.db")
    steps = memory.backup(to)
    next(steps)
    to.write_bytes(b"precious")
    with pytest.raises(StoreError, match="already there"):
        list(steps)
    assert to.read_bytes() == b"precious"
    assert not to.with_name("backup.db.partial").exists()


def test_two_backups_to_one_name_do_not_mix(memory: Alcove, path: Path) -> None:
    to = path.with_name("backup.db")
    first = memory.backup(to)
    next(first)
    with pytest.raises(Unavailable, match="another process"):
        list(memory.backup(to))
    assert [step.result for step in first][-1]


def test_a_folder_that_is_not_there_is_named(memory: Alcove, path: Path) -> None:
    to = path.with_name("nowhere") / "backup.db"
    with pytest.raises(StoreError, match=r"there is no folder .*nowhere"):
        list(memory.backup(to))
    assert not to.parent.exists()


def test_only_an_admin_may_take_everything_away(memory: Alcove, path: Path) -> None:
    with pytest.raises(PermissionDenied):
        list(memory.as_user("al").backup(path.with_name("backup.db")))


def test_a_backup_that_is_given_up_leaves_nothing(memory: Alcove, path: Path) -> None:
    fill(memory, "al")
    before = names(path.parent)
    steps = memory.backup(path.with_name("backup.db"))
    next(steps)
    assert names(path.parent) > before
    steps.close()  # type: ignore[attr-defined]
    assert names(path.parent) == before
    memory.as_user("al").put(("user", "al"), "key", {"n": 1})


def test_a_value_that_was_damaged_before_does_not_prevent_a_backup(memory: Alcove, path: Path) -> None:
    fill(memory, "al", rows=100)
    query(path, "UPDATE versions SET sealed = zeroblob(60) WHERE seq = 5")
    assert back_up(memory, path.with_name("backup.db")).unreadable == 1


def test_a_copy_that_differs_from_the_store_is_refused(memory: Alcove, path: Path) -> None:
    """A disk that does not keep what it was given, at four different places."""
    fill(memory, "al", rows=100)
    to = path.with_name("backup.db")
    for spoil in (
        "UPDATE versions SET sealed = zeroblob(60) WHERE seq = 5",
        "UPDATE data_keys SET wrapped = zeroblob(60)",
        "DELETE FROM versions WHERE seq = 5",
        "PRAGMA application_id = 7",
    ):
        steps = memory.backup(to)
        while next(steps)[:3] != ("copying", 1, 1):
            pass
        query(to.with_name("backup.db.partial"), spoil)
        with pytest.raises((StoreError, KeyUnavailable)):
            list(steps)
        assert not [name for name in names(path.parent) if name.startswith("backup")]


def test_a_full_disk_leaves_no_part_of_a_backup_and_the_store_as_it_was(path: Path) -> None:
    with started(path.with_name("said"), __name__, "full", path, path.with_name("backup.db")) as child:
        child.finish()
    assert child.lines == ["refused"] * 4 + ["done"]
    assert path.with_name("backup.db").exists()


def test_a_backup_killed_half_way_leaves_the_store_and_the_next_one_cleans_up(path: Path) -> None:
    to = path.with_name("backup.db")
    with Alcove(path, settings=QUIET) as memory:
        fill(memory, "al", rows=4000)
        longest = _time_of_a_backup(memory, to)
        for _ in range(KILLS):
            with started(path.with_name("said"), __name__, "backup", path, to) as child:
                child.wait_for("ready")
                time.sleep(random.uniform(0, longest))
            if to.exists():  # it has its name, so it is whole
                assert "done" in child.lines or not to.with_name("backup.db.partial-wal").exists()
                with apsw.Connection(str(to)) as db:
                    assert db.execute("SELECT count(*) FROM versions").get == 4000
                to.unlink()
            assert_sound(memory)
        back_up(memory, to)
        assert [name for name in names(path.parent) if name.startswith("backup")] == ["backup.db"]


def _time_of_a_backup(memory: Alcove, to: Path) -> float:
    began = time.monotonic()
    back_up(memory, to)
    to.unlink()
    return 1.5 * (time.monotonic() - began)


# The child


def main(role: str, path: str, to: str) -> None:
    with Alcove(path, settings=QUIET) as memory:
        match role:
            case "write":
                threading.Thread(target=_write_for_ever, args=(memory, to), daemon=True).start()
                sys.stdin.read()
            case "backup":
                say("ready")
                list(memory.backup(to))
                say("done")
            case "full":
                fill(memory, "al", rows=2000)
                _fail(memory, Path(to))
                list(memory.backup(to))
                assert_sound(memory)
                say("done")


def _write_for_ever(memory: Alcove, user: str) -> None:
    n = 0
    while True:
        put = {"op": "put", "namespace": ("user", user), "value": {"n": n}}
        memory.as_user(user).batch([{**put, "key": f"{n}-{i}"} for i in range(10)])
        say(n)
        n += 1


def _fail(memory: Alcove, to: Path) -> None:
    whole = to.with_name("whole.db")
    size = back_up(memory, whole).bytes
    whole.unlink()
    before = len(timeline(memory))
    for room in (1, 4096, size // 2, size - 1):
        limit_files(room)
        try:
            list(memory.backup(to))
            answer = f"not refused with {room}"
        except Unavailable as error:
            answer = "refused" if to.name in error.message else error.message
        except (AlcoveError, OSError) as error:
            answer = f"{room} {error!r}"
        unlimit_files()  # also for what this process says
        say(answer)
        assert not [name for name in names(to.parent) if name.startswith(to.name)]
        assert len(timeline(memory)) == before


if __name__ == "__main__":
    main(*sys.argv[1:])
