"""LangGraph's checkpoints in Alcove: its own tests of checkpointers, a real graph, and our promises."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import AsyncGenerator, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import alcove
from alcove.core.errors import InvalidRequest
from alcove.integrations.langgraph_threads import AlcoveSaver
from tests.support.service import serving
from tests.support.store_inspection import raw_bytes

WAYS = ("file", "url")


@pytest.fixture(params=WAYS)
def at(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a store is: in a file, or behind a real server, for which an app needs a key of its own."""
    if request.param == "file":
        yield str(tmp_path / "memory.db")
        return
    monkeypatch.setenv("ALCOVE_CHECKPOINT_KEY", "a secret of the app, which its users do not know")
    with serving(tmp_path) as service:
        yield service.url


def test_langgraphs_own_tests_of_checkpointers_pass(at: str) -> None:
    @checkpointer_test(name="AlcoveSaver")
    async def ours() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        async with AlcoveSaver(at) as saver:
            yield saver

    report = asyncio.run(validate(ours))
    assert report.passed_all(), [
        (name, each.failures) for name, each in report.results.items() if each.failures
    ]


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    name: str


def build() -> StateGraph[State]:
    builder = StateGraph(State)
    builder.add_node("greet", lambda state: {"said": [f"hello {state['name']}"]})
    builder.add_node("ask", lambda state: {"said": [interrupt("how are you?")]})
    builder.add_edge(START, "greet")
    builder.add_edge("greet", "ask")
    builder.add_edge("ask", END)
    return builder


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


def test_a_graph_goes_on_in_another_process_where_it_was_interrupted(at: str) -> None:
    with AlcoveSaver(at) as saver:
        asked = build().compile(checkpointer=saver).invoke({"name": "Ada"}, thread("a"))
        assert asked["__interrupt__"][0].value == "how are you?"
    with AlcoveSaver(at) as saver:
        graph = build().compile(checkpointer=saver)
        assert graph.invoke(Command(resume="well"), thread("a"))["said"] == ["hello Ada", "well"]
        history = [*graph.get_state_history(thread("a"))]
        assert [state.values.get("said", []) for state in history] == [
            ["hello Ada", "well"], ["hello Ada"], [], [],
        ]  # fmt: skip


def test_a_graph_goes_on_from_an_earlier_state_and_leaves_the_other_branch_as_it_is(at: str) -> None:
    with AlcoveSaver(at) as saver:
        graph = build().compile(checkpointer=saver)
        graph.invoke({"name": "Ada"}, thread("a"))
        graph.invoke(Command(resume="well"), thread("a"))
        end, before, *_ = graph.get_state_history(thread("a"))
        other = graph.update_state(before.config, {"said": ["changed"]}, as_node="greet")
        assert graph.get_state(other).values["said"] == ["hello Ada", "changed"]
        assert graph.get_state(end.config).values["said"] == ["hello Ada", "well"]


def test_event_loops_have_the_same_threads(at: str) -> None:
    async def run() -> list[str]:
        async with AlcoveSaver(at) as saver:
            graph = build().compile(checkpointer=saver)
            names = [f"t{n}" for n in range(5)]
            await asyncio.gather(*(graph.ainvoke({"name": name}, thread(name)) for name in names))
            going_on = (graph.ainvoke(Command(resume="ok"), thread(name)) for name in names)
            return [each["said"][0] for each in await asyncio.gather(*going_on)]

    assert asyncio.run(run()) == [f"hello t{n}" for n in range(5)]
    with AlcoveSaver(at) as saver:
        state = build().compile(checkpointer=saver).get_state(thread("t3"))
        assert state.values["said"] == ["hello t3", "ok"]


def test_a_state_may_be_larger_than_a_memory(at: str) -> None:
    large = "ä" * 3_000_000
    with AlcoveSaver(at) as saver:
        graph = build().compile(checkpointer=saver)
        graph.invoke({"name": large}, thread("a"))
        state = graph.get_state(thread("a"))
        assert state.values["name"] == large
        saver.copy_thread("a", "b")
        assert graph.get_state(thread("b")).values["name"] == large
        saver.delete_thread("a")
        assert graph.get_state(thread("a")).values == {}
        assert graph.get_state(thread("b")).values["name"] == large


def test_two_users_of_one_store_do_not_see_each_others_threads(tmp_path: Path) -> None:
    with alcove.Alcove(tmp_path / "m.db") as memory:
        alice, bob = (AlcoveSaver(memory.as_user(name)) for name in ("alice", "bob"))
        build().compile(checkpointer=alice).invoke({"name": "Alice"}, thread("a"))
        assert bob.get_tuple(thread("a")) is None
        assert [*bob.list(None)] == []
        bob.delete_thread("a")
        assert alice.get_tuple(thread("a")) is not None


def test_a_wipe_takes_a_users_threads_and_nothing_of_them_is_plain_before(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with alcove.Alcove(path) as memory:
        for name in ("alice", "bob"):
            graph = build().compile(checkpointer=AlcoveSaver(memory.as_user(name)))
            graph.invoke({"name": f"marker-{name}"}, thread("a"))
        assert b"marker-" not in raw_bytes(path)
        assert memory.wipe("alice").removed["memories"] > 0
        assert [*AlcoveSaver(memory.as_user("alice")).list(None)] == []
        assert len([*AlcoveSaver(memory.as_user("bob")).list(None)]) == 3


def test_pruning_keeps_the_last_state_alone(tmp_path: Path) -> None:
    with AlcoveSaver(tmp_path / "m.db") as saver:
        graph = build().compile(checkpointer=saver)
        graph.invoke({"name": "Ada"}, thread("a"))
        saver.prune(["a"])
        assert len([*saver.list(thread("a"))]) == 1
        assert graph.invoke(Command(resume="well"), thread("a"))["said"] == ["hello Ada", "well"]
        with pytest.raises(InvalidRequest, match="strategy"):
            saver.prune(["a"], strategy="some")


class Deltas(TypedDict, total=False):
    said: Annotated[list[str], DeltaChannel(lambda state, writes: [*state, *chain(*writes)])]


def test_a_channel_of_deltas_is_put_together_and_not_pruned(at: str) -> None:
    builder = StateGraph(Deltas)
    builder.add_node("say", lambda state: {"said": [f"line {len(state['said'])}"]})
    builder.add_edge(START, "say")
    builder.add_edge("say", END)
    with AlcoveSaver(at) as saver:
        graph, theirs = (builder.compile(checkpointer=each) for each in (saver, InMemorySaver()))
        for n in range(4):
            done = [each.invoke({"said": [f"question {n}"]}, thread("a")) for each in (graph, theirs)]
            assert done[0] == done[1]
        assert len(done[0]["said"]) == 8
        assert graph.get_state(thread("a")).values == done[0]
        with pytest.raises(NotImplementedError, match="DeltaChannel"):
            saver.prune(["a"])


def test_ids_of_any_length_are_listed_from_the_last_to_the_first(tmp_path: Path) -> None:
    ids = ["1", "10", "100", "2", "20", "1a", "1-", "~", " "]
    with AlcoveSaver(tmp_path / "m.db") as saver:
        for id in ids:
            saver.put(thread("a"), {**empty_checkpoint(), "id": id}, {}, {})
        assert [each.checkpoint["id"] for each in saver.list(thread("a"))] == sorted(ids, reverse=True)
        with pytest.raises(InvalidRequest, match="checkpoint_id"):
            saver.put(thread("a"), {**empty_checkpoint(), "id": "é"}, {}, {})


def test_threads_that_write_at_once_each_keep_their_own(tmp_path: Path) -> None:
    with AlcoveSaver(tmp_path / "m.db") as saver:
        graph = build().compile(checkpointer=saver)

        def talk(name: str) -> None:
            graph.invoke({"name": name}, thread(name))
            graph.invoke(Command(resume="ok"), thread(name))

        talking = [threading.Thread(target=talk, args=(f"t{n}",)) for n in range(8)]
        for each in talking:
            each.start()
        for each in talking:
            each.join()
        for n in range(8):
            assert graph.get_state(thread(f"t{n}")).values["said"] == [f"hello t{n}", "ok"]
