"""What stores of other frameworks need of this one: first times, repeated TTLs, patterns, whole rankings."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from alcove import Alcove, Delete, Entry, Get, InvalidRequest, Memory, Put, Touch
from alcove.core.namespace import TREE_LABELS
from tests.contract.conftest import Open
from tests.support.clock import ManualClock
from tests.support.hashed_embedder import Bag

HOME = ("user", "alice", "notes")


def test_a_memory_knows_since_when_its_key_holds_something(alice: Alcove, clock: ManualClock) -> None:
    first = alice.put(HOME, "k", {"n": 1})
    assert first.added_at == first.created_at
    clock.advance(60)
    second = alice.put(HOME, "k", {"n": 2})
    assert (second.added_at, second.created_at > first.created_at) == (first.added_at, True)
    assert [each.added_at for each in alice.search(HOME)] == [first.added_at]
    alice.delete(HOME, "k")
    third = alice.put(HOME, "k", {"n": 3})
    assert third.added_at == third.created_at


def test_what_was_expired_was_not_there_before(alice: Alcove, clock: ManualClock) -> None:
    alice.put(HOME, "k", {}, ttl_seconds=60)
    clock.advance(61)
    again = alice.put(HOME, "k", {})
    assert again.added_at == again.created_at


def test_a_memory_knows_how_long_it_was_to_live_and_can_have_that_again(
    alice: Alcove, clock: ManualClock
) -> None:
    alice.put(HOME, "k", {}, ttl_seconds=60)
    alice.put(HOME, "for ever", {})
    clock.advance(50)
    kept = alice.batch([Touch(HOME, key, refresh=True) for key in ("k", "for ever", "absent")])
    assert [isinstance(each, Entry) for each in kept] == [True, True, False]
    clock.advance(50)
    found = alice.get(HOME, "k")
    assert found
    assert found.ttl_seconds == 60
    assert alice.touch(HOME, "k", ttl_seconds=5).ttl_seconds == 5
    clock.advance(4)
    alice.batch([Touch(HOME, "k", refresh=True)])
    clock.advance(4)
    assert alice.get(HOME, "k")
    clock.advance(2)
    assert alice.get(HOME, "k") is None
    forever = alice.get(HOME, "for ever")
    assert forever
    assert (forever.ttl_seconds, forever.expires_at) == (None, None)


def test_a_refresh_takes_no_other_time_to_live(alice: Alcove) -> None:
    with pytest.raises(InvalidRequest, match="refresh"):
        alice.batch([Touch(HOME, "k", ttl_seconds=1, refresh=True)])


def test_an_export_brings_times_and_ttl_along(open_store: Open, clock: ManualClock, tmp_path: Path) -> None:
    alice = open_store(clock=clock).as_user("alice")
    alice.put(HOME, "k", {"n": 1}, ttl_seconds=600)
    clock.advance(60)
    alice.put(HOME, "k", {"n": 2}, ttl_seconds=600)
    (out,) = alice.export_memories(HOME)
    with Alcove(tmp_path / "other.db", clock=clock) as other:
        other.import_memories([msgspec.json.encode(out)])
        found = other.as_user("alice").get(HOME, "k")
        assert found
        clock.advance(60)
        told = [(m.added_at, m.created_at, m.expires_at, m.ttl_seconds) for m in (out, found)]
        assert told[0] == told[1]


@pytest.mark.parametrize("room", ["langgraph", "langgraph-threads"])
def test_rooms_for_langgraph_are_deeper_than_others(alice: Alcove, room: str) -> None:
    labels = [str(n) for n in range(TREE_LABELS)]
    alice.put(("user", "alice", room, *labels), "k", {"n": 1})
    assert [each.key for each in alice.search(("user", "alice", room, "0", "1"))] == ["k"]
    with pytest.raises(InvalidRequest, match="1 to 19 segments"):
        alice.put(("user", "alice", room, *labels, "more"), "k", {})
    with pytest.raises(InvalidRequest, match="1 to 5 segments"):
        alice.put(("user", "alice", "other", *labels), "k", {})
    with pytest.raises(InvalidRequest, match="1 to 5 segments"):
        alice.put(("org", "alice", room, *labels), "k", {})


def test_a_pattern_is_of_the_value_whatever_else_has_its_names(alice: Alcove) -> None:
    alice.put(HOME, "a", {"text": "tea", "tags": ["x", "y"], "n": 1}, index={"text": "coffee"})
    alice.put(HOME, "b", {"text": "coffee", "tags": ["x"], "n": True, "deep": {"x": 1, "y": 2}})

    def keys(**wanted: object) -> str:
        found = alice.search(HOME, filter={"$value": wanted})
        assert [each.key for each in found] == [
            each.key for each in alice.list(HOME, filter={"$value": wanted})
        ]
        return "".join(each.key for each in found)

    assert keys(text="tea") == "a"
    assert "".join(m.key for m in alice.search(HOME, filter={"text": "coffee"})) == "ab"
    assert keys(tags="x") == ""
    assert keys(tags=["x"]) == "b"
    assert keys(n=1) == "ab"
    assert keys(deep={"x": {"$lt": math.inf}}) == "b"
    assert keys(n={"$gt": -(10**400)}) == "ab"
    assert "".join(m.key for m in alice.search(HOME, filter={"n": 1, "$value": {"text": "tea"}})) == "a"


class Ranked:
    """A store with an embedder, and three memories of which one has no text."""

    def __init__(self, alice: Alcove) -> None:
        self.alice = alice
        for key, text in (("near", "green tea"), ("far", "violin lessons")):
            alice.put(HOME, key, {"text": text}, index={"text": text})
        alice.put(HOME, "bare", {"text": "green tea"})

    def keys(self, query: str = "green tea", **how: object) -> list[str]:
        return [each.key for each in self.alice.search(HOME, query=query, mode="semantic", **how)]  # type: ignore[arg-type]


@pytest.fixture
def ranked(open_store: Open) -> Ranked:
    return Ranked(open_store(embedder=Bag()).as_user("alice"))


def test_a_search_that_waits_finds_what_was_just_put(ranked: Ranked) -> None:
    assert ranked.keys(wait_for_index=True) == ["near", "far"]


def test_what_a_query_cannot_rank_comes_last_and_pages_go_on_with_it(ranked: Ranked) -> None:
    alice = ranked.alice
    alice.put(HOME, "also bare", {})
    assert ranked.keys(wait_for_index=True, unranked=True) == ["near", "far", "also bare", "bare"]
    pages = [ranked.keys(unranked=True, limit=1, offset=n) for n in range(5)]
    assert pages == [["near"], ["far"], ["also bare"], ["bare"], []]
    assert ranked.keys(unranked=True, limit=2, offset=1) == ["far", "also bare"]
    assert ranked.keys(unranked=True, filter={"$value": {"text": "green tea"}}) == ["near", "bare"]
    scores = [each.score for each in alice.search(HOME, query="tea", unranked=True, mode="semantic")]
    assert [score is None for score in scores] == [False, False, True, True]


def test_what_has_no_vector_is_not_lost_either(ranked: Ranked) -> None:
    ranked.alice.put(HOME, "blank", {}, index={"text": "   "})
    assert ranked.keys(wait_for_index=True) == ["near", "far"]
    assert ranked.keys(unranked=True) == ["near", "far", "blank", "bare"]


def test_the_cosine_itself_is_told_to_who_asks(ranked: Ranked) -> None:
    ranked.keys(wait_for_index=True)
    asked = ranked.alice.search(HOME, query="green tea", mode="semantic", similarity=True)
    assert [each.similarity is not None for each in asked] == [True, True]
    assert asked[0].similarity == pytest.approx(1, abs=1e-5)
    assert all(max(0.0, each.similarity or 0) == each.score for each in asked)
    assert all(each.similarity is None for each in ranked.alice.search(HOME, query="green tea"))


def test_a_batch_can_wait_for_the_index(ranked: Ranked) -> None:
    more = [Put(HOME, f"m{n}", {}, {"text": f"green tea {n}"}) for n in range(20)]
    ranked.alice.batch([*more, Delete(HOME, "far"), Get(HOME, "near")], wait_for_index=True)
    assert len(ranked.keys(limit=100)) == 21
    found = ranked.alice.search(HOME, query="green tea 7", mode="semantic", limit=100)
    assert all(isinstance(each, Memory) and each.score is not None for each in found)


def test_pages_by_cursor_miss_and_repeat_nothing_while_others_write(alice: Alcove) -> None:
    for n in range(10):
        alice.put((*HOME, "below") if n % 2 else HOME, f"k{n}", {"n": n})
    first = alice.search(HOME, limit=4)
    assert first.after_cursor
    alice.delete(HOME, "k0")
    alice.put(HOME, "k00", {})
    rest = alice.search(HOME, limit=100, after_cursor=first.after_cursor)
    assert rest.after_cursor is None
    keys = [each.key for each in [*first, *rest]]
    assert keys == ["k0", "k2", "k4", "k6", "k8", "k1", "k3", "k5", "k7", "k9"]
    odd = alice.search(HOME, limit=1, filter={"$value": {"n": 1}}, after_cursor=first.after_cursor)
    assert [each.key for each in odd] == ["k1"]


@pytest.mark.parametrize("wrong", [{"after_cursor": "x"}, {"after_cursor": "AQAAAAAAAAAB"}])
def test_a_cursor_of_something_else_is_refused(alice: Alcove, wrong: dict[str, str]) -> None:
    alice.put(HOME, "k", {})
    with pytest.raises(InvalidRequest, match="after_cursor"):
        alice.search(HOME, **wrong)  # type: ignore[arg-type]


def test_a_cursor_is_for_the_order_of_keys(alice: Alcove) -> None:
    for n in range(3):
        alice.put(HOME, f"k{n}", {})
    last = alice.search(HOME, limit=1).after_cursor
    with pytest.raises(InvalidRequest, match="after_cursor: expected neither a query nor an offset"):
        alice.search(HOME, after_cursor=last, offset=1)
    with pytest.raises(InvalidRequest, match="after_cursor"):
        alice.search(HOME, after_cursor=last, query="tea")
