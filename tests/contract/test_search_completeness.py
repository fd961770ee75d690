"""A search says what it could not find, and a write that waited whether it can be found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from alcove import Grant, InvalidRequest, Namespace, Principal, Settings
from alcove.core.clock import to_datetime
from alcove.core.records import SearchMode
from alcove.search.embedders import Matrix
from alcove.store import searcher
from tests.contract.conftest import Open
from tests.support.clock import ManualClock
from tests.support.hashed_embedder import Bag
from tests.support.waiting import until

HOME = ("user", "noop")
IDLE = Settings(sweep_interval=0, indexing_interval=0)
"""With it nothing is embedded that nobody waits for."""


class Refusing(Bag):
    """Embeds anything but poison."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        if any("poison" in text for text in texts):
            raise ValueError("no")
        return super().embed(texts)


def test_a_search_that_finds_little_tells_how_many_memories_have_no_text(
    open_store: Open, clock: ManualClock
) -> None:
    memory = open_store(clock=clock, embedder=Bag())
    memory.put(HOME, "bare", {"text": "tea", "cups": 2})
    found = memory.search(HOME, query="tea")
    assert (found, found.unindexed) == ([], 1)
    memory.put((*HOME, "below"), "bare", {"text": "tea", "cups": 3})
    memory.put(HOME, "brief", {"text": "tea"}, ttl_seconds=1)
    memory.put(HOME, "tea", {"text": "tea"}, index=True, wait_for_index=True)
    assert memory.search(HOME, query="tea").unindexed == 3
    assert memory.search(HOME, query="tea", exact=True).unindexed == 2
    assert memory.search(HOME, query="tea", filter={"cups": {"gte": 3}}).unindexed == 1
    assert memory.search(HOME, query="tea", limit=1).unindexed is None, "it found as many as were asked for"
    assert memory.search(HOME, query="tea", unranked=True).unindexed is None, "they are in the answer"
    assert memory.search(HOME).unindexed is None, "without a query they are found"
    clock.advance(0.5)
    before = to_datetime(clock())
    clock.advance(2)
    assert memory.search(HOME, query="tea").unindexed == 2, "what has expired is not there"
    for key, at in (("bare", HOME), ("bare", (*HOME, "below"))):
        memory.put(at, key, {"text": "tea"}, index=True, wait_for_index=True)
    assert memory.search(HOME, query="tea").unindexed is None
    assert memory.search(HOME, query="tea", as_of=before).unindexed == 3


def test_what_a_caller_may_not_see_is_not_counted(open_store: Open) -> None:
    memory, room = open_store(embedder=Bag()), Namespace(("org", "shared"))
    ann = memory.as_principal(Principal("ann", grants=(Grant(room),)))
    ann.put(room, "hers", {"text": "tea"})
    ann.put(("user", "ann"), "own", {"text": "tea"})
    assert ann.search(room, query="tea").unindexed == 1
    assert memory.as_user("bob").search((), query="tea").unindexed is None
    assert memory.as_user("bob").search(room, query="tea").unindexed is None


def test_memories_without_text_are_counted_up_to_a_bound(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = open_store(embedder=Bag())
    memory.batch([{"op": "put", "namespace": HOME, "key": f"k{n}", "value": {"n": n}} for n in range(30)])
    assert memory.search(HOME, query="tea").unindexed == 30
    monkeypatch.setattr(searcher, "MAX_COUNTED", 20)
    assert memory.search(HOME, query="tea").unindexed == 20
    monkeypatch.setattr(searcher, "MAX_EXAMINED", 10)
    assert memory.search(HOME, query="tea").unindexed == 10


def test_just_those_without_text_can_be_listed(open_store: Open) -> None:
    memory = open_store(embedder=Bag())
    for key in ("a", "b", "c"):
        memory.put(HOME, key, {"text": key}, index=key == "b")
    assert [each.key for each in memory.search(HOME, unindexed=True)] == ["a", "c"]
    assert [each.key for each in memory.search(HOME, unindexed=True, filter={"text": "c"})] == ["c"]
    assert [each.key for each in memory.list(HOME, unindexed=True, offset=1)] == ["c"]
    with pytest.raises(InvalidRequest, match="unindexed"):
        memory.search(HOME, query="tea", unindexed=True)


@pytest.mark.parametrize(
    ("mode", "ranked"),
    [("hybrid", "ranked by words alone"), ("keyword", "without a score"), ("semantic", "not ranked")],
)
def test_a_search_tells_how_many_memories_wait_for_their_vectors(
    open_store: Open, mode: SearchMode, ranked: str
) -> None:
    memory = open_store(embedder=Bag(), settings=IDLE)
    memory.put(HOME, "first", {}, index={"text": "tea"})
    assert "1 memory waits" in str(memory.search(HOME, query="tea", mode=mode).degraded)
    indexer = open_store(embedder=Bag())
    indexer.put(HOME, "blank", {}, index={"text": "  "}, wait_for_index=True)
    indexer.search(HOME, query="tea", wait_for_index=True)
    assert memory.search(HOME, query="tea", mode=mode).degraded is None
    indexer.close()  # it would hear of what comes now
    memory.put(HOME, "one", {"n": 1}, index={"text": "tea"})
    told = f"1 memory waits for its vectors and is {ranked}"
    assert memory.search(HOME, query="tea", mode=mode).degraded == told
    memory.put(HOME, "two", {"n": 2}, index={"text": "tea"})
    told = f"2 memories wait for their vectors and are {ranked}"
    assert memory.search(HOME, query="tea", mode=mode).degraded == told
    narrow = memory.search(HOME, query="tea", mode=mode, filter={"n": 2})
    assert narrow.degraded == f"1 memory waits for its vectors and is {ranked}", "of those it looks through"
    again = open_store(embedder=Bag())
    assert again.search(HOME, query="tea", mode=mode, wait_for_index=True).degraded is None
    assert memory.search(HOME, query="tea", mode=mode).degraded is None


def test_what_cannot_be_embedded_is_told_of_too(open_store: Open, clock: ManualClock) -> None:
    memory = open_store(embedder=Refusing(), clock=clock)
    memory.put(HOME, "fine", {}, index={"text": "tea"}, wait_for_index=True)
    assert memory.put(HOME, "bad", {}, index={"text": "poison"}, wait_for_index=True).indexed is False
    assert "1 memory waits" in str(memory.search(HOME, query="tea").degraded)

    def parked() -> bool:
        clock.advance(70)
        memory.put(HOME, "fine", {}, index={"text": "tea"})  # wakes the indexer
        return bool(memory.admin.index().parked == 1)

    until(parked)
    told = "1 memory could not be embedded and is ranked by words alone"
    until(lambda: memory.search(HOME, query="tea").degraded == told)


def test_a_write_that_waited_says_whether_it_can_be_found_by_meaning(open_store: Open) -> None:
    value = {"text": "tea"}
    for embedder, indexed in ((Bag(), True), (None, False)):
        memory = open_store(embedder=embedder)
        assert memory.put(HOME, "k", value, index=True, wait_for_index=True).indexed is indexed
        assert memory.put(HOME, "k", value, index=["absent"], wait_for_index=True).indexed is False
        assert memory.put(HOME, "k", value, index=True).indexed is None, "nobody waited"
        assert memory.put(HOME, "k", value, wait_for_index=True).indexed is None, "nothing was named"
        puts: list[dict[str, object]] = [
            {"op": "put", "namespace": HOME, "key": key, "value": value} for key in "ab"
        ]
        puts[0] = {**puts[0], "index": True}
        results = memory.batch([*puts, {"op": "get", "namespace": HOME, "key": "a"}], wait_for_index=True)
        assert [getattr(each, "indexed", None) for each in results] == [indexed, None, None]
        memory.close()  # it would hear of what the next one writes


def test_a_search_says_where_it_looked_when_the_policy_narrowed_the_prefix(
    open_store: Open, clock: ManualClock
) -> None:
    memory = open_store(clock=clock, embedder=Bag())
    alice = memory.as_user("alice")
    alice.put(("user", "alice"), "tea", {"text": "tea"}, index=True, wait_for_index=True)
    for query in ("tea", None):
        for elsewhere in ((), ("user", "bob"), ("org", "docs")):
            found = alice.search(elsewhere, query=query)
            assert found.namespace_prefix == ("user", "alice")
            assert [each.key for each in found] == ["tea"]
        assert alice.search(("user", "alice"), query=query).namespace_prefix is None
        assert memory.search(("user", "bob"), query=query).namespace_prefix is None, "an admin looks anywhere"
