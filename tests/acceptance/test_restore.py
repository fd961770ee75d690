"""Restore: a whole store where there was none, which has forgotten whoever was wiped since the backup.

This file is also the child program that is killed half-way or runs out of room:
`python -m tests.acceptance.test_restore <role> <backup> <at>`.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from alcove import (
    Alcove,
    AlcoveError,
    Grant,
    KeyUnavailable,
    Principal,
    Restored,
    Settings,
    StoreError,
    Unavailable,
    restore,
)
from alcove.engine import statements
from alcove.ledger import Ledger
from alcove.namespace import Namespace
from tests.acceptance.children import limit_files, say, started, unlimit_files
from tests.acceptance.inspection import assert_sound, query, raw_bytes, timeline
from tests.acceptance.test_erasure import PLAIN, POLICY, Markers
from tests.acceptance.test_erasure import fill as fill_with_markers
from tests.conftest import ManualClock
from tests.unit.test_schema import aged

QUIET = Settings(sweep_interval=0)
KILLS = 8
ROOM = Namespace(("team", "common"))
AL, BOB = ("user", "al"), ("user", "bob")


@pytest.fixture
def to(path: Path) -> Path:
    return path.with_name("backup.db")


@pytest.fixture
def memory(path: Path) -> Iterator[Alcove]:
    """Open until the test loses it."""
    memory = Alcove(path, settings=QUIET)
    yield memory
    memory.close()


def lose(memory: Alcove, path: Path) -> None:
    """The store is gone; its key and its ledger were kept elsewhere."""
    memory.close()
    path.unlink()


def bring_back(backup: Path, at: Path, **options: object) -> Restored:
    *_, last = restore(backup, at, **options)  # type: ignore[arg-type]
    assert last.result is not None
    return last.result


def in_room(memory: Alcove, user: str) -> Alcove:
    return memory.as_principal(Principal(user, client_id=f"client-of-{user}", grants=(Grant(ROOM),)))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def assert_refused(backup: Path, at: Path, error: type[AlcoveError], words: str, **options: object) -> None:
    """Refused in these words, and not a byte is changed, added or left behind."""
    before = contents(at.parent)
    with pytest.raises(error, match=words):
        bring_back(backup, at, **options)
    assert contents(at.parent) == before


# What comes back


def test_everything_comes_back_as_it_was(memory: Alcove, path: Path, to: Path) -> None:
    al = memory.as_user("al")
    for n in range(5):
        al.put(AL, "key", {"n": n}, index={"text": "words"})
    al.delete(AL, "key")
    al.put(AL, "kept", {"n": 6}, ttl_seconds=3600)
    before = timeline(memory)
    list(memory.backup(to))
    al.put(AL, "too late", {"n": 7})
    lose(memory, path)
    result = bring_back(to, path)
    assert result[2:4] == (1, 7)
    assert result[5:] == (0, 0, 0)
    with Alcove(path, settings=QUIET) as again:
        assert timeline(again) == before
        assert_sound(again)


def test_a_cursor_from_the_time_that_was_lost_misses_nothing(memory: Alcove, path: Path, to: Path) -> None:
    al = memory.as_user("al")
    al.put(AL, "key", {"n": 1})
    list(memory.backup(to))
    for n in range(10):
        al.put(AL, "lost", {"n": n})
    cursor = al.events(AL).after_cursor
    lose(memory, path)
    bring_back(to, path)
    with Alcove(path, settings=QUIET) as again:
        again.as_user("al").put(AL, "after", {"n": 2})
        assert [e.key for e in again.as_user("al").events(AL, after_cursor=cursor).events] == ["after"]


@pytest.mark.parametrize("version", range(1, len(statements.migrations()) + 1))
def test_a_backup_of_an_older_schema_is_brought_forward_and_forgets(
    memory: Alcove, path: Path, to: Path, version: int
) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    memory.as_user("bob").put(BOB, "key", {"n": 1})
    aged(path, to, version)
    memory.wipe("al")
    lose(memory, path)
    assert bring_back(to, path).users_forgotten == 1
    with Alcove(path, settings=QUIET) as again:
        assert again.as_user("al").get(AL, "key") is None
        assert again.as_user("bob").get(BOB, "key") is not None
        assert_sound(again)


# Who does not


def test_no_byte_of_a_user_who_was_wiped_since_comes_back(path: Path, to: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "attributes.rego").write_text(POLICY)
    al, bob = Markers.new(), Markers.new()
    with Alcove(path, settings=QUIET, policy_dir=policy) as memory:
        fill_with_markers(memory, al, bob, rows=1000)
        memory.api_keys.create(client=al.client, user=al.user, roles=[], trusted=False, now=1)
        list(memory.backup(to))
        assert al.found_in(to.read_bytes()) == PLAIN
        assert memory.wipe(al.user).scrubbed
        bobs = timeline(memory)
        assert al.found_in(raw_bytes(path)) == set()
    path.unlink()
    result = bring_back(to, path)
    assert (result.users_forgotten, result.versions) == (1, len(bobs))
    assert al.found_in(raw_bytes(path)) == set()
    with Alcove(path, settings=QUIET, policy_dir=policy) as again:
        assert timeline(again) == bobs
        assert al.found_in(raw_bytes(path)) == set()
        assert again.wipe(al.user).removed == dict.fromkeys(
            ("memories", "versions", "vectors", "replays", "api_keys"), 0
        )
        assert_sound(again)
    assert al.found_in(raw_bytes(path)) == set()
    assert bob.found_in(raw_bytes(path)) == PLAIN


def test_a_user_who_came_back_before_the_backup_keeps_what_is_new(
    memory: Alcove, path: Path, to: Path
) -> None:
    memory.as_user("al").put(AL, "old", {"n": 1})
    in_room(memory, "al").put(ROOM, "old", {"n": 1})
    memory.wipe("al", shared="keep")
    memory.as_user("al").put(AL, "new", {"n": 2}, idempotency_key="once")
    list(memory.backup(to))
    lose(memory, path)
    assert bring_back(to, path).users_forgotten == 0
    with Alcove(path, settings=QUIET) as again:
        assert [event.key for event in timeline(again)] == ["old", "new"]
        assert again.as_user("al").get(AL, "new") is not None
        assert_sound(again)


def test_what_a_user_wrote_before_a_wipe_goes_even_where_newer_is_kept(
    memory: Alcove, path: Path, to: Path
) -> None:
    """As in a store that was once restored without its ledger: only what is older than the wipe goes."""
    memory.as_user("al").put(AL, "old", {"n": 1})
    memory.as_user("al").put(AL, "both", {"n": 1})
    list(memory.backup(to))
    memory.wipe("al")
    lose(memory, path)
    ledger, second = path.with_name("memory.db.wipes"), path.with_name("second.db")
    ledger.rename(path.with_name("mislaid"))
    bring_back(to, path)
    with Alcove(path, settings=QUIET) as again:
        again.as_user("al").put(AL, "both", {"n": 2})
        again.as_user("al").put(AL, "new", {"n": 2})
        list(again.backup(second))
    path.unlink()
    assert bring_back(second, path, ledger=path.with_name("mislaid")).users_forgotten == 1
    with Alcove(path, settings=QUIET) as again:
        left = [(event.key, event.value) for event in timeline(again)]
        assert left == [("both", {"n": 2}), ("new", {"n": 2})]
        assert_sound(again)


def test_a_wipe_reaches_what_was_written_while_the_clock_was_ahead(
    path: Path, to: Path, clock: ManualClock
) -> None:
    with Alcove(path, settings=QUIET, clock=clock) as memory:
        memory.as_user("al").put(AL, "key", {"n": 1})
        list(memory.backup(to))
        clock.advance(-3600)
        memory.wipe("al")
    path.unlink()
    assert bring_back(to, path).users_forgotten == 1


@pytest.mark.parametrize("shared", ["keep", "anonymise", "remove"])
def test_shared_rooms_are_treated_as_the_wipe_treated_them(
    memory: Alcove, path: Path, to: Path, shared: str
) -> None:
    in_room(memory, "al").put(ROOM, "al's", {"n": 1})
    in_room(memory, "bob").put(ROOM, "bob's", {"n": 1})
    list(memory.backup(to))
    memory.wipe("al", shared=shared)  # type: ignore[arg-type]
    wiped = [(e.key, e.value, e.written_by) for e in timeline(memory)]
    lose(memory, path)
    bring_back(to, path)
    with Alcove(path, settings=QUIET) as again:
        assert [(e.key, e.value, e.written_by) for e in timeline(again)] == wiped
        assert_sound(again)
    assert (b"client-of-al" in raw_bytes(path)) == (shared == "keep")


def test_a_line_of_an_older_version_means_anonymise(memory: Alcove, path: Path, to: Path) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    in_room(memory, "al").put(ROOM, "key", {"n": 1})
    list(memory.backup(to))
    memory.wipe("al", shared="remove")
    lose(memory, path)
    ledger = path.with_name("memory.db.wipes")
    line = json.loads(ledger.read_text())
    assert line.pop("shared") == "remove"
    ledger.write_text(json.dumps(line) + "\n")
    bring_back(to, path)
    with Alcove(path, settings=QUIET) as again:
        (event,) = timeline(again)
        assert (event.key, event.written_by.user) == ("key", None)


@pytest.mark.parametrize("by", ["the id in the backup", "the place"])
def test_a_single_memory_that_was_taken_away_stays_away(
    memory: Alcove, path: Path, to: Path, by: str
) -> None:
    al = memory.as_user("al")
    al.put(AL, "MARKER-first", {"n": 0})
    first = al.put(AL, "MARKER-first", {"n": 1}, index={"text": "MARKER-text"})
    al.put(AL, "other", {"n": 1})
    list(memory.backup(to))
    second = al.put(AL, "MARKER-first", {"n": 2})
    if by == "the place":
        memory.admin.remove("al", second.id)
    else:
        Ledger.beside(path).record_memory(first.id, time.time_ns() // 1000)
    lose(memory, path)
    assert bring_back(to, path).memories_forgotten == 1
    with Alcove(path, settings=QUIET) as again:
        assert again.as_user("al").get(AL, "MARKER-first") is None
        assert [event.kind for event in timeline(again) if event.key != "other"] == ["delete"]
        assert again.as_user("al").get(AL, "other") is not None
        assert_sound(again)
    assert b"MARKER-text" not in raw_bytes(path)


def test_a_restored_store_can_be_backed_up_and_restored_again(memory: Alcove, path: Path, to: Path) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    memory.as_user("bob").put(BOB, "key", {"n": 1})
    list(memory.backup(to))
    memory.wipe("al")
    lose(memory, path)
    bring_back(to, path)
    second = path.with_name("second.db")
    with Alcove(path, settings=QUIET) as again:
        again.as_user("al").put(AL, "anew", {"n": 2})
        list(again.backup(second))
    path.unlink()
    assert bring_back(second, path).users_forgotten == 0
    with Alcove(path, settings=QUIET) as again:
        assert {event.key for event in timeline(again)} == {"key", "anew"}


# The ledger


def test_a_ledger_from_elsewhere_is_used_and_goes_on_beside_the_store(
    memory: Alcove, path: Path, to: Path
) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    memory.as_user("bob").put(BOB, "key", {"n": 1})
    list(memory.backup(to))
    memory.wipe("al")
    lose(memory, path)
    elsewhere, beside = path.with_name("elsewhere"), path.with_name("memory.db.wipes")
    beside.rename(elsewhere)
    assert bring_back(to, path, ledger=elsewhere).users_forgotten == 1
    assert beside.read_bytes() == elsewhere.read_bytes()
    with Alcove(path, settings=QUIET) as again:
        assert len(timeline(again)) == 1
        again.wipe("bob")
    path.unlink()
    assert bring_back(to, path, ledger=elsewhere).users_forgotten == 2
    assert len(beside.read_text().splitlines()) == 2


def test_without_the_ledger_a_store_that_knew_wipes_is_refused(memory: Alcove, path: Path, to: Path) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    memory.wipe("al")
    list(memory.backup(to))
    lose(memory, path)
    path.with_name("memory.db.wipes").unlink()
    assert_refused(to, path, StoreError, r"no ledger .*memory\.db\.wipes")
    assert_refused(
        to, path, StoreError, "nowhere is not there", ledger=path.with_name("nowhere"), without_ledger=True
    )
    bring_back(to, path, without_ledger=True)
    with Alcove(path, settings=QUIET) as again:
        wrong = [each.name for each in again.doctor() if each.wrong]
        assert wrong == ["the ledger of wipes can be read"]


@pytest.mark.parametrize(
    "line",
    ["", "null", "{}", "not json", '{"wiped_at": "2026-01-01T00:00:00", "user": "x"}', "\0\0\0",
     '{"wiped_at": "2026-01-01T00:00:00Z"}', '{"wiped_at": "2026-01-01T00:00:00Z", "memory": "no id"}',
     '{"wiped_at": "2026-01-01T00:00:00Z", "user": "x", "shared": "sold"}'],
)  # fmt: skip
def test_a_damaged_line_is_refused_by_number_unless_it_is_empty(
    memory: Alcove, path: Path, to: Path, line: str
) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    list(memory.backup(to))
    memory.wipe("al")
    lose(memory, path)
    ledger = path.with_name("memory.db.wipes")
    good = ledger.read_text()
    ledger.write_text(f"{good}{line}\n{good}")
    if line:
        assert_refused(to, path, StoreError, r"memory\.db\.wipes is damaged in line 2")
    else:
        assert bring_back(to, path).users_forgotten == 1


def test_half_a_line_at_the_end_is_of_a_wipe_that_never_was(memory: Alcove, path: Path, to: Path) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    memory.as_user("bob").put(BOB, "key", {"n": 1})
    list(memory.backup(to))
    memory.wipe("al")
    ledger = path.with_name("memory.db.wipes")
    good = ledger.read_bytes()
    for torn in (b'{"wiped_at":"20', b"\0" * 90, b"\0" * 9000, b"{"):
        ledger.write_bytes(good + torn)
        memory.wipe("bob")  # and it does not spoil the next one
        assert next(note.user for note in Ledger(ledger).read()) == json.loads(good)["user"]
        assert len(Ledger(ledger).read()) == 2
    ledger.write_bytes(good[:-1] + b"\n" + good[:40])
    lose(memory, path)
    assert bring_back(to, path).users_forgotten == 1


def test_a_line_that_only_lacks_its_line_break_counts(memory: Alcove, path: Path, to: Path) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    list(memory.backup(to))
    memory.wipe("al")
    ledger = path.with_name("memory.db.wipes")
    ledger.write_bytes(ledger.read_bytes()[:-1])
    lose(memory, path)
    assert bring_back(to, path).users_forgotten == 1
    with Alcove(path, settings=QUIET) as again:
        again.wipe("bob")
    assert len(Ledger(ledger).read()) == 2


# What is refused


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


def test_a_folder_that_is_not_there_is_named(memory: Alcove, path: Path, to: Path) -> None:
    list(memory.backup(to))
    with pytest.raises(StoreError, match="nowhere is not there"):
        bring_back(to, path.with_name("nowhere") / "memory.db")


def test_a_truncated_backup_is_refused(memory: Alcove, path: Path, to: Path) -> None:
    for n in range(300):
        memory.as_user("al").put(AL, f"{n}", {"text": "x" * 500})
    list(memory.backup(to))
    lose(memory, path)
    whole = to.read_bytes()
    for size in (0, 1, 99, 100, 4096, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        to.write_bytes(whole[:size])
        assert_refused(to, path, StoreError, r"backup\.db is (cut short|not a database)")


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
    assert_refused(to, path, StoreError, "not there")
    assert_refused(path.parent, path, StoreError, "no file")
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
