"""Erasure: after a wipe no byte of a user is left in any file, and nobody else is touched.

This file is also the child program that dies between a wipe and its scrub:
`python -m tests.acceptance.privacy.test_erasure <path> <user>`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from alcove import Alcove, NotFound, Principal, Settings
from tests.support.child_programs import started
from tests.support.marked_users import PLAIN, POLICY, ROWS, Markers, fill
from tests.support.store_inspection import assert_sound, follow, query, raw_bytes, timeline
from tests.support.waiting import until

QUIET = Settings(sweep_interval=0)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "attributes.rego").write_text(POLICY)
    return folder


@pytest.fixture
def memory(path: Path, policy: Path) -> Iterator[Alcove]:
    with Alcove(path, settings=QUIET, policy_dir=policy) as memory:
        yield memory


@pytest.fixture
def al() -> Markers:
    return Markers.new()


def live_and_past(memory: Alcove, who: Markers) -> tuple[object, ...]:
    """All that can be read of a user: the timeline, what is current, the namespaces."""
    handle = memory.as_principal(Principal(who.user))
    roots = [("user", who.user), *(("agent", f"{who.agent}-{n}", "u", who.user) for n in range(3))]
    events = [timeline(handle, root) for root in roots]
    entries = [handle.search(root, limit=100) for root in roots]
    return events, entries, [handle.namespaces(root) for root in roots]


NOTHING: tuple[object, ...] = ([[]] * 4, [[]] * 4, [[]] * 4)


def test_no_byte_of_a_wiped_user_is_left(memory: Alcove, path: Path, al: Markers) -> None:
    fill(memory, al, Markers.new(), Markers.new())
    held = len(timeline(memory))
    assert al.found_in(raw_bytes(path)) == PLAIN
    receipt = memory.wipe(al.user)
    assert al.found_in(raw_bytes(path)) == set()
    assert (receipt.scrubbed, receipt.key_destroyed) == (True, True)
    assert live_and_past(memory, al) == NOTHING
    assert (
        held - len(timeline(memory)) == receipt.removed["versions"] > receipt.removed["memories"] > ROWS / 2
    )
    assert receipt.removed["replays"] == ROWS // 100
    assert_sound(memory)


@pytest.mark.of_the_file("PostgreSQL's samples have tests of their own")
def test_samples_of_keys_that_an_operator_had_gathered_go_with_the_user(
    memory: Alcove, path: Path, al: Markers
) -> None:
    others = Markers.new()
    fill(memory, al, others, rows=200)
    sampled = apsw.Connection(str(path))
    sampled.execute("ANALYZE")
    sampled.close()
    receipt = memory.wipe(al.user)
    assert (receipt.scrubbed, receipt.remains) == (True, [])
    assert al.found_in(raw_bytes(path)) == set()
    assert query(path, "SELECT count(*) > 0 FROM sqlite_stat4") == [(1,)]  # of those who are left
    assert_sound(memory)


def test_nobody_else_is_touched_by_a_wipe(memory: Alcove, path: Path, al: Markers) -> None:
    # Whose id starts with the wiped one, or is all but its last letter.
    others = [Markers.new()._replace(user=id) for id in (f"{al.user}ice", f"{al.user}:", al.user[:-1])]
    fill(memory, al, *others, rows=700)
    before = [live_and_past(memory, who) for who in others]
    assert al.found_in(raw_bytes(path)) == PLAIN
    memory.wipe(al.user)
    assert al.found_in(raw_bytes(path)) <= {"user"}  # which the longer ids contain
    assert [live_and_past(memory, who) for who in others] == before
    assert [who.found_in(raw_bytes(path)) for who in others] == [PLAIN] * len(others)
    assert_sound(memory)


def test_the_bytes_are_gone_from_a_file_that_was_closed_and_opened_in_between(
    path: Path, policy: Path, al: Markers
) -> None:
    for _ in range(3):  # checkpoints in between leave copies in pages that are in use no more
        with Alcove(path, settings=QUIET, policy_dir=policy) as memory:
            fill(memory, al, Markers.new(), rows=300)
            memory.sweep()
    with Alcove(path, settings=QUIET, policy_dir=policy) as memory:
        assert al.found_in(raw_bytes(path)) == PLAIN
        memory.wipe(al.user)
        assert al.found_in(raw_bytes(path)) == set()
    assert al.found_in(raw_bytes(path)) == set()


def test_who_was_wiped_is_nobody(memory: Alcove, path: Path, al: Markers) -> None:
    fill(memory, al, rows=100)
    assert memory.wipe(al.user).removed["memories"] > 0
    ledger = path.with_name("memory.db.wipes").read_bytes()
    for who in (memory, memory.as_user(al.user)):
        with pytest.raises(NotFound) as refused:
            who.wipe(al.user)
        assert refused.value.details["field"] == "user"
    assert path.with_name("memory.db.wipes").read_bytes() == ledger


def test_the_user_can_start_anew_under_another_key(memory: Alcove, path: Path, al: Markers) -> None:
    handle, room = memory.as_user(al.user), ("user", al.user)
    first = handle.put(room, "key", {"topic": "a"})
    ((old,),) = query(path, f"SELECT id FROM data_keys WHERE subject = 'user:{al.user}'")
    memory.wipe(al.user)
    again = handle.put(room, "key", {"topic": "b"})
    assert (again.revision, again.id == first.id) == (1, False)
    assert query(path, f"SELECT id > {old} FROM data_keys WHERE subject = 'user:{al.user}'") == [(1,)]
    assert_sound(memory)


def test_cursors_from_before_stay_valid_and_no_sequence_number_is_reused(memory: Alcove, al: Markers) -> None:
    bob = memory.as_user("bob")
    bob.put(("user", "bob"), "first", {"topic": ""})
    fill(memory, al, rows=100)
    events = timeline(memory)
    middle, end = events[len(events) // 2].cursor, events[-1].cursor
    memory.wipe(al.user)
    assert [*follow(memory, (), middle)] == [*follow(memory, (), end)] == []
    bob.put(("user", "bob"), "second", {"topic": ""})
    memory.as_user(al.user).put(("user", al.user), "third", {"topic": ""})
    for cursor in (middle, end):
        assert [event.key for event in follow(memory, (), cursor)] == ["second", "third"]
    new = timeline(memory)
    assert [event.key for event in new] == ["first", "second", "third"]
    assert {event.cursor for event in new[1:]}.isdisjoint(event.cursor for event in events)


@pytest.mark.of_the_file("bytes that wait for a scrub")
def test_without_waiting_the_next_sweep_scrubs(memory: Alcove, path: Path, al: Markers) -> None:
    fill(memory, al, rows=300)
    receipt = memory.wipe(al.user, wait=False)
    assert receipt.scrubbed is False
    assert live_and_past(memory, al) == NOTHING
    assert al.found_in(raw_bytes(path)) != set()
    memory.sweep()
    assert al.found_in(raw_bytes(path)) == set()


def test_without_waiting_the_background_scrubs_at_once(path: Path, policy: Path, al: Markers) -> None:
    with Alcove(path, settings=Settings(sweep_interval=3600), policy_dir=policy) as memory:
        fill(memory, al, rows=300)
        assert memory.wipe(al.user, wait=False).scrubbed is False
        until(lambda: not al.found_in(raw_bytes(path)))


@pytest.mark.of_the_file("bytes that wait for a scrub")
def test_a_scrub_that_a_crash_prevented_is_done_by_the_next_sweep(
    path: Path, policy: Path, al: Markers
) -> None:
    with Alcove(path, settings=QUIET, policy_dir=policy) as memory:
        fill(memory, al, rows=300)
    with started(path.with_name("said"), __name__, path, al.user) as child:
        while child.running:
            time.sleep(0.001)
    with Alcove(path, settings=QUIET, policy_dir=policy) as memory:
        assert timeline(memory) == []
        assert al.found_in(raw_bytes(path)) != set()
        memory.sweep()
        assert al.found_in(raw_bytes(path)) == set()


@pytest.mark.of_the_file("a reader keeps its log")
def test_a_reader_elsewhere_delays_the_scrub_and_the_receipt_says_so(
    path: Path, policy: Path, al: Markers
) -> None:
    impatient = Settings(sweep_interval=0, busy_timeout=0.2)
    with Alcove(path, settings=impatient, policy_dir=policy) as memory:
        fill(memory, al, rows=300)
        reader = apsw.Connection(str(path))
        reader.execute("BEGIN; SELECT count(*) FROM versions").fetchall()
        assert memory.wipe(al.user).scrubbed is False
        assert live_and_past(memory, al) == NOTHING
        memory.sweep()
        reader.close()
        memory.sweep()
        assert al.found_in(raw_bytes(path)) == set()


def main(path: str, user: str) -> None:
    memory = Alcove(path, settings=QUIET)
    memory.wipe(user, wait=False)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
