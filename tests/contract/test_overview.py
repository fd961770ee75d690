"""What a person looks at: a tree with counts, the newest, activity by day, a map; of what they may see."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pytest

from alcove import Alcove, InvalidRequest, PermissionDenied
from tests.support.clock import ManualClock

DAY = 86_400


def note(memory: Alcove, room: str, key: str, **more: object) -> None:
    memory.put(room, key, {"text": key, **more}, index=["text"])


def test_a_tree_counts_what_is_in_a_namespace_and_what_lies_below_it(memory: Alcove) -> None:
    alice = memory.as_user("alice")
    for room in ("user:alice:a", "user:alice:a:b", "user:alice:a:b", "user:alice:c"):
        note(alice, room, f"k{len(alice.list('user:alice'))}")
    assert [(str(each.namespace), each.here, each.memories) for each in alice.tree("user:alice")] == [
        ("user:alice:a", 1, 3),
        ("user:alice:c", 1, 1),
    ]
    assert [(str(each.namespace), each.memories) for each in alice.tree()] == [("user", 4)]
    assert alice.tree("user:alice:c") == []


def test_a_tree_goes_on_after_a_segment_whatever_its_characters(memory: Alcove) -> None:
    alice, names = memory.as_user("alice"), sorted(["a", "a:b", "é", "z%", "\x7f", "🎲"], key=str.encode)
    for name in names:
        alice.put(("user", "alice", name, "below"), "k", {})
    found, after = [], None
    while page := alice.tree("user:alice", limit=2, after=after):
        found += [each.namespace[-1] for each in page]
        after = found[-1]
    assert found == names


def test_what_is_deleted_or_has_expired_is_not_counted(memory: Alcove, clock: ManualClock) -> None:
    alice = memory.as_user("alice")
    note(alice, "user:alice:a", "kept")
    note(alice, "user:alice:a", "gone")
    alice.delete("user:alice:a", "gone")
    alice.put("user:alice:a", "short", {}, ttl_seconds=5)
    clock.advance(seconds=6)
    assert [each.memories for each in alice.tree("user:alice")] == [1]
    assert [each.key for each in alice.newest("user:alice")] == ["kept"]


def test_the_newest_come_first_page_by_page_and_a_change_makes_one_new(memory: Alcove) -> None:
    alice = memory.as_user("alice")
    for n in range(7):
        note(alice, "user:alice:a", f"k{n}")
    note(alice, "user:alice:a", "k2", again=True)
    found, cursor = [], None
    while True:
        page = alice.newest("user:alice", limit=3, after_cursor=cursor)
        found += [each.key for each in page]
        if (cursor := page.after_cursor) is None:
            break
    assert found == ["k2", "k6", "k5", "k4", "k3", "k1", "k0"]


def test_the_newest_of_a_namespace_alone_are_without_what_lies_below_it(memory: Alcove) -> None:
    alice = memory.as_user("alice")
    note(alice, "user:alice:a", "here")
    note(alice, "user:alice:a:b", "below")
    assert [each.key for each in alice.newest("user:alice:a", exact=True)] == ["here"]


def test_activity_tells_each_day_and_by_how_much_rooms_grew(memory: Alcove, clock: ManualClock) -> None:
    alice = memory.as_user("alice")
    note(alice, "user:alice:a", "one", type="fact")
    note(alice, "user:alice:a", "two", type="fact")
    clock.advance(seconds=DAY)
    note(alice, "user:alice:a", "one", type="wish")
    alice.delete("user:alice:a", "two")
    told = alice.activity("user:alice", days=5)
    today = told.since + timedelta(days=4)
    yesterday = today - timedelta(days=1)
    assert [(each.day, each.kind, each.count) for each in told.events] == [
        (yesterday, "add", 2),
        (today, "delete", 1),
        (today, "update", 1),
    ]
    assert [(str(each.namespace), each.day, each.by) for each in told.growth] == [
        ("user:alice:a", yesterday, 2),
        ("user:alice:a", today, -1),
    ]
    assert told.types == {"wish": 1}
    assert [(each.day, each.kind) for each in alice.activity("user:alice", days=1).events] == [
        (today, "delete"),
        (today, "update"),
    ]


def test_a_map_lays_what_means_something_alike_close_together(memory: Alcove) -> None:
    alice = memory.as_user("alice")
    said = {
        "tea": "I drink green tea every morning",
        "coffee": "A cup of coffee after lunch",
        "juice": "Orange juice with breakfast",
        "rome": "Our plane to Rome leaves on Friday",
        "berlin": "The train to Berlin takes five hours",
        "hotel": "We booked a hotel in Paris for the journey",
    }
    for key, text in said.items():
        alice.put("user:alice:a", key, {"text": text}, index=["text"], wait_for_index=True)
    alice.put("user:alice:a", "sealed", {"text": "nothing finds me"})
    drawn = alice.map("user:alice")
    assert (drawn.unplaced, drawn.more) == (1, False)
    assert {each.key: each.text for each in drawn.points} == said
    assert all(0 <= each.x <= 1 and 0 <= each.y <= 1 for each in drawn.points)
    at = {each.key: (each.x, each.y) for each in drawn.points}
    inside = math.dist(at["tea"], at["coffee"]) + math.dist(at["rome"], at["berlin"])
    across = math.dist(at["tea"], at["rome"]) + math.dist(at["coffee"], at["berlin"])
    assert inside < across
    assert alice.map("user:alice", limit=2).more


def test_nobody_is_told_of_rooms_of_others_by_any_of_them(memory: Alcove) -> None:
    alice, bob = memory.as_user("alice"), memory.as_user("bob")
    note(alice, "user:alice:a", "hers")
    alice.put("org:agents:u:alice", "hers", {"text": "in a room of hers"})
    for prefix in ((), "user", "user:alice", "user:alice:a", "org", "org:agents:u:alice"):
        for look in (bob.tree, bob.newest, bob.map, bob.activity):
            try:
                told = str(look(prefix))
            except PermissionDenied:
                continue
            assert "hers" not in told, (look, prefix)
            assert "alice" not in told, (look, prefix)
            assert "count=1" not in told, (look, prefix)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda m: m.tree("user", limit=0), "limit"),
        (lambda m: m.newest("user", limit=101), "limit"),
        (lambda m: m.newest("user", after_cursor="made up"), "after_cursor"),
        (lambda m: m.activity("user", days=0), "days"),
        (lambda m: m.map("user", limit=10_001), "limit"),
        (lambda m: m.map(("",)), "prefix[0]"),
    ],
)
def test_a_wrong_argument_is_named(memory: Alcove, call: Callable[[Alcove], object], named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        call(memory)
    assert refused.value.field == named


def test_the_newest_are_in_the_order_in_which_they_were_written_everywhere(memory: Alcove) -> None:
    for user in ("alice", "bob", "alice"):
        note(memory.as_user(user), f"user:{user}:a", f"{user}-{len(memory.list())}")
    written = [each.created_at for each in memory.newest()]
    assert all(earlier <= later for later, earlier in pairwise(written))
    assert len(written) == 3
