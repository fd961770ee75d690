"""Restore: a whole store where there was none, which has forgotten whoever was wiped since the backup."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from alcove import (
    Alcove,
    NotFound,
    StoreError,
)
from alcove.engine.sqlite import database as sqlite
from alcove.store.erasure_ledger import ErasureLedger, LedgerEntry
from tests.support.clock import ManualClock
from tests.support.marked_users import PLAIN, POLICY, Markers
from tests.support.marked_users import fill as fill_with_markers
from tests.support.older_schema import aged
from tests.support.restore_steps import (
    AL,
    BOB,
    QUIET,
    ROOM,
    assert_refused,
    bring_back,
    in_room,
    lose,
)
from tests.support.store_inspection import assert_sound, raw_bytes, timeline

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


@pytest.mark.parametrize("version", range(1, len(sqlite.migrations()) + 1))
@pytest.mark.of_the_file("of an older schema")
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
        memory.api_keys.create(client=al.client, user=al.user, roles=[], trusted=False)
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
        with pytest.raises(NotFound):
            again.wipe(al.user)
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


def test_a_clock_set_back_after_a_wipe_costs_nobody_what_they_made_since(
    path: Path, to: Path, clock: ManualClock
) -> None:
    def key(memory: Alcove) -> None:
        memory.api_keys.create(client="app", user="al", roles=[], trusted=False)

    with Alcove(path, settings=QUIET, clock=clock, embedder=None) as memory:
        memory.as_user("al").put(AL, "old", {"n": 1})
        key(memory)
        assert memory.wipe("al").removed["api_keys"] == 1
        clock.advance(-3600)
        key(memory)
        new = memory.as_user("al").put(AL, "new", {"n": 2}, idempotency_key="once")
        [*memory.backup(to)]
    path.unlink()
    assert bring_back(to, path).users_forgotten == 0
    with Alcove(path, settings=QUIET, clock=clock, embedder=None) as again:
        assert [event.key for event in timeline(again)] == ["new"]
        assert len(again.api_keys.list()) == 1
        assert again.as_user("al").put(AL, "new", {"n": 2}, idempotency_key="once") == new
        again.as_user("al").put(AL, "newer", {"n": 3})
        [*again.backup(path.with_name("second.db"))]
    path.unlink()
    bring_back(path.with_name("second.db"), path)
    with Alcove(path, settings=QUIET, clock=clock, embedder=None) as again:
        assert [event.key for event in timeline(again)] == ["new", "newer"]
        assert_sound(again)


def test_what_two_restored_stores_wrote_is_not_taken_for_one_another(path: Path, to: Path) -> None:
    """A wipe in the one must not reach what its user writes in the other, at the same place of the log."""
    second = path.with_name("second.db")
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        memory.as_user("bob").put(BOB, "key", {"n": 1})
        [*memory.backup(to)]
    for _ in range(2):
        path.unlink()
        bring_back(to, path)
        with Alcove(path, settings=QUIET, embedder=None) as memory:
            memory.as_user("al").put(AL, "key", {"n": 1})
            [*memory.backup(second)]
            second.rename(kept := path.with_name("kept.db"))
            memory.as_user("al").put(AL, "more", {"n": 2})
            memory.wipe("al")
    path.unlink()
    assert bring_back(kept, path).users_forgotten == 1
    path.unlink()
    bring_back(to, path)
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        memory.as_user("al").put(AL, "key", {"n": 1})
        [*memory.backup(second)]
    path.unlink()
    assert bring_back(second, path).users_forgotten == 0


def test_a_revoked_api_key_stays_revoked(memory: Alcove, path: Path, to: Path) -> None:
    revoked, kept = (
        memory.api_keys.create(client="app", user=user, roles=[], trusted=False) for user in ("al", "bob")
    )
    [*memory.backup(to)]
    memory.api_keys.revoke(revoked.split("_")[1])
    with pytest.raises(NotFound):
        memory.api_keys.revoke(revoked.split("_")[1])
    lose(memory, path)
    bring_back(to, path)
    with Alcove(path, settings=QUIET) as again:
        assert again.open_store.admin.find_api_key(revoked) is None
        assert again.open_store.admin.find_api_key(kept) is not None
    assert len(ErasureLedger.of_store(path).read()) == 1


def test_a_later_wipe_is_done_again_to_what_an_earlier_one_had_left_without_a_name(
    memory: Alcove, path: Path, to: Path
) -> None:
    in_room(memory, "al").put(ROOM, "al's", {"n": 1}, index={"text": "MARKER"})
    in_room(memory, "bob").put(ROOM, "bob's", {"n": 1})
    memory.wipe("al")
    [*memory.backup(to)]
    memory.wipe("al", shared="remove")
    lose(memory, path)
    assert bring_back(to, path).users_forgotten == 1
    with Alcove(path, settings=QUIET) as again:
        assert [each.key for each in again.search(ROOM)] == ["bob's"]
        assert_sound(again)
    assert b"MARKER" not in raw_bytes(path)


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
    assert line.pop("position") > 0
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
        ErasureLedger.of_store(path).record(LedgerEntry(wiped_at=datetime.now(UTC), memory=first.id))
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
        to,
        path,
        StoreError,
        "there is no ledger .*nowhere",
        ledger=path.with_name("nowhere"),
        without_ledger=True,
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
        memory.as_user("bob").put(BOB, "key", {"n": 1})
        memory.wipe("bob")  # and it does not spoil the next one
        assert next(note.user for note in ErasureLedger(ledger).read()) == json.loads(good)["user"]
        assert len(ErasureLedger(ledger).read()) == 2
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
        again.as_user("bob").put(BOB, "key", {"n": 1})
        again.wipe("bob")
    assert len(ErasureLedger(ledger).read()) == 2
