"""Answers are bounded in bytes: one that ends at the bound has whole records, and says where to go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from alcove import (
    Alcove,
    Conflict,
    Get,
    InvalidRequest,
    Memory,
    Page,
    PayloadTooLarge,
    PermissionDenied,
    Put,
    Settings,
)
from alcove.core.cursor import MAX_PAGE_BYTES
from tests.contract.conftest import Open
from tests.support.clock import ManualClock
from tests.support.hashed_embedder import Bag

HOME = ("user", "alice")
COUNT = 12
FIT = MAX_PAGE_BYTES // 900_000


def value(n: int) -> dict[str, Any]:
    return {"n": n, "text": f"{n:x}" * 900_000}


@pytest.fixture
def filled(alice: Alcove) -> Alcove:
    for n in range(COUNT):
        alice.put(HOME, f"k{n:02}", value(n))
    return alice


def gets(*numbers: int) -> list[Get]:
    return [Get(namespace=HOME, key=f"k{n:02}") for n in numbers]


def pages(ask: Callable[[str | None], Page[Any]]) -> list[list[Any]]:
    """Every portion of an answer."""
    found = [ask(None)]
    while found[-1].after_cursor is not None:
        found.append(ask(found[-1].after_cursor))
    return [[*each] for each in found]


def test_a_batch_of_gets_ends_at_the_bound_and_goes_on_from_its_cursor(filled: Alcove) -> None:
    asked = gets(*range(COUNT), 99)
    found = pages(lambda after: filled.batch(asked, after_cursor=after))
    assert [len(page) for page in found] == [FIT, FIT, FIT + 1], "what is not there takes no room"
    results = [result for page in found for result in page]
    assert [result and result.value for result in results] == [*map(value, range(COUNT)), None]


def test_a_thousand_gets_of_one_value_are_not_a_gigabyte(filled: Alcove) -> None:
    found = filled.batch(gets(*[1] * 1000))
    assert len(found) == FIT
    assert found.after_cursor


def test_a_batch_that_has_written_goes_on_with_gets_alone(filled: Alcove) -> None:
    put = Put(namespace=HOME, key="new", value={})
    operations = [put, *gets(*range(FIT + 1))]
    found = filled.batch(operations)
    assert (len(found), found[0].revision) == (1 + FIT, 1)  # type: ignore[union-attr]
    rest = filled.batch(operations, after_cursor=found.after_cursor)
    assert (len(rest), rest.after_cursor) == (1, None)
    assert filled.get(HOME, "new").revision == 1  # type: ignore[union-attr]


def test_a_batch_that_could_not_tell_what_it_wrote_is_refused_whole(filled: Alcove) -> None:
    put = Put(namespace=HOME, key="new", value={})
    with pytest.raises(PayloadTooLarge) as refused:
        filled.batch([*gets(*range(FIT + 1)), put])
    assert refused.value.details["operation"] == FIT
    assert filled.get(HOME, "new") is None


def test_no_write_is_done_again_by_going_on(filled: Alcove) -> None:
    after = filled.batch(gets(*range(COUNT))).after_cursor
    puts = [Put(namespace=HOME, key="new", value={})] * COUNT
    with pytest.raises(InvalidRequest, match="after_cursor"):
        filled.batch(puts, after_cursor=after)
    for wrong in ("x", filled.events(HOME).after_cursor):
        with pytest.raises(InvalidRequest, match="after_cursor"):
            filled.batch(gets(1), after_cursor=wrong)


def test_a_repeated_batch_ends_where_it_ended(filled: Alcove) -> None:
    asked = gets(*range(COUNT))
    first, again = (filled.batch(asked, idempotency_key="once") for _ in range(2))
    assert (len(first), first.after_cursor) == (len(again), again.after_cursor)
    assert first == again
    with pytest.raises(Conflict):
        filled.batch(gets(1), idempotency_key="once")


def test_a_history_ends_at_the_bound_and_goes_on_from_its_cursor(alice: Alcove) -> None:
    for n in range(COUNT):
        alice.put(HOME, "k", value(n))
    alice.delete(HOME, "k")
    found = pages(lambda after: alice.history(HOME, "k", after_cursor=after))
    assert max(map(len, found)) <= FIT + 1
    versions = [version for page in found for version in page]
    assert [version.revision for version in versions] == [*range(COUNT + 1, 0, -1)]
    assert versions[-1].value == value(0)


def test_events_end_at_the_bound_and_say_that_there_is_more(filled: Alcove) -> None:
    page = filled.events(HOME, limit=200)
    found = [page]
    while page.more:
        page = filled.events(HOME, limit=200, after_cursor=page.after_cursor)
        found.append(page)
    assert [len(each.events) for each in found] == [FIT] * (COUNT // FIT)
    assert [event.value for each in found for event in each.events] == [*map(value, range(COUNT))]
    assert filled.events(HOME, limit=COUNT).more


def test_events_say_whether_there_is_more_beyond_the_limit(alice: Alcove) -> None:
    for n in range(3):
        alice.put(HOME, f"k{n}", {})
    assert [alice.events(HOME, limit=limit).more for limit in (2, 3, 4)] == [True, False, False]


@pytest.mark.parametrize("query", [None, "tea"])
def test_a_search_ends_at_the_bound_and_says_where_to_go_on(
    open_store: Open, clock: ManualClock, query: str | None
) -> None:
    memory = open_store(clock=clock, embedder=Bag()).as_user("alice")
    for n in range(COUNT):
        memory.put(HOME, f"k{n:02}", value(n), index={"text": "tea"}, wait_for_index=n == COUNT - 1)
    found: list[Memory] = []
    offset = 0
    while True:
        page = memory.search(HOME, query=query, limit=100, offset=offset)
        assert len(page) <= FIT
        found += page
        if page.next_offset is None:
            break
        assert page.next_offset == offset + len(page)
        offset = page.next_offset
    assert sorted(str(memory.key) for memory in found) == [f"k{n:02}" for n in range(COUNT)]
    assert memory.search(HOME, query=query, limit=2).next_offset is None


def test_a_list_has_no_values_and_so_no_such_bound(filled: Alcove) -> None:
    assert len(filled.list(HOME, limit=1000)) == COUNT


def test_a_review_ends_at_the_bound(memory: Alcove, filled: Alcove) -> None:
    found: list[Memory] = []
    after = None
    while page := memory.admin.memories_of("alice", limit=1000, after_cursor=after):
        if not page.items:
            break
        assert len(page.items) <= FIT
        found, after = found + page.items, page.after_cursor
    assert [each.value["n"] for each in found] == [*range(COUNT)]


def test_an_export_reads_no_more_at_a_time(filled: Alcove, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = filled.memories._engine
    read, pages = engine.scan_page, []

    def scan_page(*args: Any, **more: Any) -> Any:
        pages.append(read(*args, **more))
        return pages[-1]

    monkeypatch.setattr(engine, "scan_page", scan_page)
    assert [each.value["n"] for each in filled.export_memories(HOME)] == [*range(COUNT)]
    assert [*map(len, pages)] == [*[1] * COUNT, 0]


def test_an_export_ends_when_the_policy_shows_its_reader_something_else(
    memory: Alcove, filled: Alcove
) -> None:
    found = filled.export_memories(HOME)
    next(found)
    nobody = "package memories.filter\nattribute_filter := {}\n"
    memory.admin.put_policies({"filter": nobody})
    with pytest.raises(PermissionDenied):
        list(found)


def test_what_is_larger_than_the_bound_comes_alone_and_whole(open_store: Open, clock: ManualClock) -> None:
    memory = open_store(clock=clock, settings=Settings(sweep_interval=0, max_value_bytes=2 * MAX_PAGE_BYTES))
    memory, large = memory.as_user("alice"), {"text": "x" * (MAX_PAGE_BYTES + 1)}
    for _ in range(2):
        memory.put(HOME, "k00", large)
    assert [result.value for result in memory.batch(gets(0, 0))] == [large]  # type: ignore[union-attr]
    assert [version.value for version in memory.history(HOME, "k00")] == [large]
    assert [event.value for event in memory.events(HOME).events] == [large]
    assert [found.value for found in memory.search(HOME)] == [large]
