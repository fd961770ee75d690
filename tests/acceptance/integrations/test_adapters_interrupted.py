"""Adapters whose work is cut short, or changed under their hands, at a moment that the test chooses.

What a reader finds afterwards is a whole earlier state or a whole later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.store.base import PutOp

from alcove import Alcove
from alcove.client.store import Store
from alcove.integrations.anthropic_memory import AlcoveMemoryTool
from alcove.integrations.langgraph import AlcoveStore
from alcove.integrations.langgraph_threads import AlcoveSaver
from tests.support.concurrent_workers import QUIET
from tests.support.langgraph_stores import OWN

THREAD = "t"


class Cut(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def memory(path: Path) -> Iterator[Alcove]:
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        yield memory


def disturbed(store: Store, name: str, before: Callable[[int, Any], None]) -> Store:
    """A handle that, before each call of one of its methods, has something else done.

    `before` is told which call it is, from 1, and its first argument.
    """
    handle = store.as_user(store.whoami().user)
    done, calls = getattr(handle, name), 0

    def call(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        before(calls, args[0] if args else None)
        return done(*args, **named)

    setattr(handle, name, call)
    return handle


def at(thread: str = THREAD) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def put(saver: AlcoveSaver, thread: str, step: int, **values: Any) -> None:
    checkpoint, versions = empty_checkpoint(), {name: saver.get_next_version(None, None) for name in values}
    checkpoint["channel_values"], checkpoint["channel_versions"] = values, versions  # type: ignore[typeddict-item]
    saver.put(at(thread), checkpoint, {"source": "loop", "step": step, "parents": {}}, versions)  # type: ignore[arg-type]


def values(saver: AlcoveSaver, thread: str = THREAD) -> list[dict[str, Any]]:
    """What each checkpoint of a thread holds, the newest first."""
    return [each.checkpoint["channel_values"] for each in saver.list(at(thread))]


# A process that ends


@pytest.mark.parametrize("transactions", [0, 1, 2])
def test_a_put_that_is_cut_short_leaves_no_checkpoint_without_its_values(
    memory: Alcove, transactions: int
) -> None:
    def cut(call: int, _: Any) -> None:
        if call > transactions:
            raise Cut

    whole = AlcoveSaver(memory)
    put(whole, THREAD, 0, x="before")
    with pytest.raises(Cut):  # it would be three
        put(AlcoveSaver(disturbed(memory, "batch", cut)), THREAD, 1, **{f"c{n}": "x" for n in range(2500)})
    assert values(whole) == [{"x": "before"}]


def test_a_copy_that_is_cut_short_has_no_checkpoint_without_its_values(
    memory: Alcove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("alcove.integrations.adapter.MAX_BATCH", 100)

    def cut(call: int, _: Any) -> None:
        if call == 2:
            raise Cut

    whole = AlcoveSaver(memory)
    for n in range(60):
        put(whole, THREAD, n, x=n)
    with pytest.raises(Cut):
        AlcoveSaver(disturbed(memory, "batch", cut)).copy_thread(THREAD, "copy")
    assert [each for each in values(whole, "copy") if "x" not in each] == []


def test_a_delete_that_is_cut_short_leaves_no_checkpoint_without_its_values(memory: Alcove) -> None:
    def cut(call: int, _: Any) -> None:
        if call == 2:
            raise Cut

    whole = AlcoveSaver(memory)
    put(whole, THREAD, 0, x=0)
    put(whole, THREAD, 1, **{f"c{n}": "x" for n in range(1100)})
    with pytest.raises(Cut):
        AlcoveSaver(disturbed(memory, "batch", cut)).delete_thread(THREAD)
    assert values(whole) == []
    whole.delete_thread(THREAD)
    assert memory.list(("user", "noop")) == []


# Somebody else, meanwhile


def test_a_checkpoint_that_is_put_during_a_prune_keeps_its_values(memory: Alcove) -> None:
    def meanwhile(_: int, where: Any) -> None:
        if where[-1] == "at" and len(values(saver)) == 2:
            put(saver, THREAD, 2, x="third")

    saver = AlcoveSaver(memory)
    put(saver, THREAD, 0, x="first")
    put(saver, THREAD, 1, x="second")
    AlcoveSaver(disturbed(memory, "search", meanwhile)).prune([THREAD])
    assert values(saver)[0] == {"x": "third"}


@pytest.mark.parametrize("value", ["small", b"z" * 1_500_000, "z" * 1_500_000], ids=["one", "bytes", "parts"])
def test_a_thread_that_is_deleted_while_it_is_read_is_read_whole_or_not_at_all(
    memory: Alcove, value: Any
) -> None:
    def meanwhile(call: int, _: Any) -> None:
        if call == (1 if value == "small" else 2):
            saver.delete_thread(THREAD)

    saver = AlcoveSaver(memory)
    put(saver, THREAD, 0, x=value)
    found = AlcoveSaver(disturbed(memory, "batch", meanwhile)).get_tuple(at())
    assert found is None or found.checkpoint["channel_values"] == {"x": value}


def test_a_copy_of_a_thread_that_is_pruned_meanwhile_is_whole(memory: Alcove) -> None:
    def meanwhile(call: int, _: Any) -> None:
        if call == 2:
            saver.prune([THREAD])

    saver = AlcoveSaver(memory)
    for n in range(120):
        put(saver, THREAD, n, x=n)
    AlcoveSaver(disturbed(memory, "search", meanwhile)).copy_thread(THREAD, "copy")
    assert [each for each in values(saver, "copy") if "x" not in each] == []


def test_a_history_that_is_listed_while_its_graph_runs_has_nothing_twice(memory: Alcove) -> None:
    saver = AlcoveSaver(memory)
    for n in range(120):
        put(saver, THREAD, n, x=n)
    seen = []
    for each in saver.list(at()):
        seen.append(each.metadata["step"])
        if len(seen) == 100:
            put(saver, THREAD, 1000, x=1000)
    assert len(seen) == len({*seen})


def test_a_search_for_many_misses_nothing_that_was_there_all_the_time(memory: Alcove) -> None:
    def meanwhile(call: int, _: Any) -> None:
        if call == 2:
            store.batch([PutOp(("n",), f"k{n:03}", None) for n in range(5)])

    store = AlcoveStore(memory, root=OWN)
    store.batch([PutOp(("n",), f"k{n:03}", {}) for n in range(150)])
    found = AlcoveStore(disturbed(memory, "search", meanwhile), root=OWN).search(("n",), limit=1000)
    assert {f"k{n:03}" for n in range(5, 150)} <= {each.key for each in found}


def test_puts_from_threads_and_two_event_loops_are_all_there(memory: Alcove) -> None:
    store = AlcoveStore(memory, root=OWN)

    async def some(name: str) -> None:
        await asyncio.gather(*(store.aput((name,), f"k{n}", {"n": n}) for n in range(20)))

    async def both() -> None:
        other = asyncio.to_thread(asyncio.run, some("other"))
        await asyncio.gather(some("one"), other, asyncio.to_thread(store.put, ("thread",), "k", {}))

    asyncio.run(both())
    assert [len(store.search((name,), limit=100)) for name in ("one", "other", "thread")] == [20, 20, 1]


# Anthropic's memory tool


def test_a_folder_of_more_than_four_mebibytes_is_renamed(memory: Alcove) -> None:
    tool, room = AlcoveMemoryTool(memory, "assistant"), ("agent", "assistant", "u", "noop", "memories")
    content = {"content": "🍵" * 64_000}
    for n in range(17):
        memory.put(room, f"/memories/old/{n:02}", content)
    assert tool.call({"command": "rename", "old_path": "/memories/old", "new_path": "/memories/new"})
    assert len(memory.list(room)) == 17
