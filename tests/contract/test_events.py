"""The timeline and its cursors."""

from __future__ import annotations

import pytest

from alcove import Alcove, Event, InvalidRequest
from tests.support.clock import ManualClock

NOTES = ("user", "alice", "notes")


def story(alice: Alcove, clock: ManualClock) -> None:
    alice.put(NOTES, "a", {"n": 1}, index={"x": "y"})
    clock.advance(1)
    alice.put(NOTES, "a", {"n": 2})
    clock.advance(1)
    alice.put(("user", "alice", "other"), "b", {"n": 3}, ttl_seconds=5)
    clock.advance(1)
    alice.delete(NOTES, "a")


def told(events: list[Event]) -> list[tuple[str, str, object]]:
    return [(event.kind, event.key, event.value) for event in events]


def test_events_tell_what_happened_in_order(alice: Alcove, memory: Alcove, clock: ManualClock) -> None:
    story(alice, clock)
    clock.advance(60)
    assert memory.sweep().expired == 1
    assert memory.sweep().expired == 0
    events = alice.events().events
    assert told(events) == [
        ("add", "a", {"n": 1}),
        ("update", "a", {"n": 2}),
        ("add", "b", {"n": 3}),
        ("delete", "a", None),
        ("expired", "b", None),
    ]
    assert [event.attributes is None for event in events] == [False, False, False, True, True]
    moments = [event.occurred_at for event in events]
    assert moments == sorted(moments)
    assert [event.revision for event in events] == [1, 2, 1, 3, 2]


def test_events_can_be_narrowed(alice: Alcove, clock: ManualClock) -> None:
    story(alice, clock)
    events = alice.events().events
    assert told(alice.events(NOTES).events) == [told(events)[n] for n in (0, 1, 3)]
    assert told(alice.events(kinds=["add", "delete"]).events) == [told(events)[n] for n in (0, 2, 3)]
    middle = events[1].occurred_at
    assert told(alice.events(after=middle).events) == told(events)[2:]
    assert told(alice.events(before=middle).events) == told(events)[:1]


def test_pages_follow_one_another_without_a_gap_or_a_repeat(alice: Alcove, clock: ManualClock) -> None:
    for n in range(23):
        alice.put(NOTES, f"k{n % 4}", {"n": n})
    seen: list[Event] = []
    cursor = None
    while page := alice.events(after_cursor=cursor, limit=5):
        seen += page.events
        cursor = page.after_cursor
        if not page.events:
            break
    assert [event.value for event in seen] == [{"n": n} for n in range(23)]
    assert alice.events(after_cursor=cursor).events == []
    alice.put(NOTES, "new", {"n": 23})
    assert [event.value for event in alice.events(after_cursor=cursor).events] == [{"n": 23}]


def test_every_page_carries_a_cursor_even_an_empty_one(alice: Alcove) -> None:
    page = alice.events()
    assert page.events == []
    alice.put(NOTES, "k", {})
    assert len(alice.events(after_cursor=page.after_cursor).events) == 1


def test_a_cursor_is_a_position_under_any_filter(alice: Alcove, bob: Alcove, clock: ManualClock) -> None:
    story(alice, clock)
    first = alice.events(kinds=["add"], limit=1)
    assert told(alice.events(after_cursor=first.after_cursor).events) == told(alice.events().events)[1:]
    assert told(alice.events(("user", "alice", "other"), after_cursor=first.after_cursor).events) == [
        ("add", "b", {"n": 3})
    ]
    bob.put(("user", "bob"), "k", {})
    assert len(bob.events(after_cursor=first.after_cursor).events) == 1
    each = [event.cursor for event in alice.events().events]
    assert told(alice.events(after_cursor=each[1]).events) == told(alice.events().events)[2:]


def test_a_cursor_survives_a_wipe_and_numbers_are_not_reused(
    memory: Alcove, alice: Alcove, bob: Alcove
) -> None:
    bob.put(("user", "bob"), "k", {"n": 1})
    alice.put(NOTES, "k", {})
    cursor = memory.events().after_cursor
    memory.wipe("alice")
    bob.put(("user", "bob"), "k", {"n": 2})
    page = memory.events(after_cursor=cursor)
    assert told(page.events) == [("update", "k", {"n": 2})]
    assert page.truncated_before is None


def test_a_cursor_older_than_the_retained_history_says_so(
    memory: Alcove, alice: Alcove, clock: ManualClock
) -> None:
    start = alice.events().after_cursor
    alice.put(NOTES, "k", {"n": 1})
    alice.put(NOTES, "k", {"n": 2})
    clock.advance(91 * 86_400)
    assert memory.sweep().purged == 1
    page = alice.events(after_cursor=start)
    assert told(page.events) == [("update", "k", {"n": 2})]
    assert page.truncated_before is not None
    assert alice.events(after_cursor=page.after_cursor).truncated_before is None
    with pytest.raises(InvalidRequest, match="as_of"):
        alice.get(NOTES, "k", as_of=page.events[0].occurred_at)


def test_revisions_start_again_once_the_last_trace_is_gone(
    memory: Alcove, alice: Alcove, clock: ManualClock
) -> None:
    alice.put(NOTES, "k", {})
    alice.delete(NOTES, "k")
    clock.advance(91 * 86_400)
    assert memory.sweep().purged == 2
    assert alice.history(NOTES, "k") == []
    assert alice.put(NOTES, "k", {}).revision == 1


def test_the_log_of_a_new_store_has_reached_nothing(memory: Alcove) -> None:
    database = memory.memories._engine.database
    assert not database.fetch("log_position")[0][0]
    memory.put(("user", "noop"), "first", {})
    assert database.fetch("log_position")[0][0] == 1
