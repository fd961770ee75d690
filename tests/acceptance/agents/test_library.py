"""Agents in five lines of Python, over the same service as REST."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove, AsyncAlcove, InvalidRequest, NotFound, Unavailable, connect
from alcove.agents.specs.reader import InvalidSpecs
from alcove.core.principal import JSON
from alcove.engine.rows import Row
from alcove.store.row_decoder import RowDecoder
from tests.support.concurrent_workers import QUIET
from tests.support.service import serving
from tests.support.store_inspection import raw_bytes

SPECS = """
agents:
  - {name: bot, memory: {private: {}, scratch: [workflow, agent]}}
  - {name: staff, shared_with: ["group:staff"], memory: {private: {}}}
"""


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    (file := tmp_path / "agents.yaml").write_text(SPECS)
    return file


def test_five_lines_suffice(path: Path, specs: Path) -> None:
    with Alcove(path, settings=QUIET) as memory:
        alice = memory.agents(specs).as_user("alice")
        assert alice.call("bot", "remember", key="tea", content="mint").result == {"key": "tea", "version": 1}
        assert alice.call("bot", "recall", key="tea").text.startswith('tea: "mint" (by bot for alice, ')
        with pytest.raises(NotFound):
            alice.call("staff", "remember", key="k", content="c")
        assert memory.agents(specs).as_user("alice", groups=["staff"]).call("staff", "list_memories")
        assert memory.as_user("alice").get("agent:bot:u:alice", "tea")


def test_arguments_of_a_tool_may_have_any_name(path: Path, specs: Path) -> None:
    names = ("self", "agents", "principal", "agent", "tool", "arguments", "operation", "do")
    named: dict[str, Any] = dict.fromkeys(names, 1)

    async def awaited() -> object:
        async with AsyncAlcove(path, settings=QUIET) as memory:
            return await memory.agents(specs).call("bot", "list_memories", **named)

    with Alcove(path, settings=QUIET) as memory:
        found = memory.agents(specs).call("bot", "list_memories", **named)
    assert asyncio.run(awaited()) == found
    with connect("http://127.0.0.1:1") as nobody, pytest.raises(Unavailable):
        nobody.agents().call("bot", "list_memories", **named)


def test_results_are_plain_json_values(path: Path, tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text(
        "agents: [{name: bot, memory: {private: {}, scratch: [agent], facts: {}, long_term: {}}}]"
    )
    calls: list[tuple[str, dict[str, Any]]] = [
        ("remember", {"key": "tea", "content": "mint"}), ("recall", {"key": "tea"}),
        ("search_memory", {"query": "mint"}), ("list_memories", {}),
        ("shared_memory_write", {"namespace": "agent", "key": "k", "value": [1]}),
        ("shared_memory_read", {"namespace": "agent", "key": "k"}),
        ("shared_memory_list", {"namespace": "agent"}),
        ("learn_fact", {"content": "tea is hot"}), ("recall_facts", {"query": "tea"}),
        ("memory_remember", {"content": "likes tea"}), ("memory_recall", {"query": "tea"}),
    ]  # fmt: skip
    with Alcove(path, settings=QUIET) as memory:
        agents = memory.agents(specs)
        for tool, arguments in calls:
            result = agents.call("bot", tool, **arguments).result
            assert json.loads(json.dumps(result)) == result, tool


def test_calls_are_on_record_once_the_store_is_closed(path: Path, specs: Path) -> None:
    with Alcove(path, settings=QUIET) as memory:
        memory.agents(specs).as_user("alice").call("bot", "list_memories")
    with Alcove(path, settings=QUIET) as memory:
        agents = memory.agents(specs).as_user("alice")
        assert [call.tool for call in agents.calls_of("bot")] == ["list_memories"]
        agents.call("bot", "remember", key="k", content="c")
        memory.wipe("alice")
        assert [*agents.calls_of("bot")] == []
    assert b"alice" not in raw_bytes(path)


def test_without_an_agent_named_noop_sees_what_nobody_wrote_and_others_do_not(
    path: Path, specs: Path
) -> None:
    line = b'{"namespace":["agent","bot","s"],"key":"old","value":{"content":"c"},"written_by":{"user":null}}'
    with Alcove(path, settings=QUIET) as memory:
        assert memory.import_memories([line]).imported == 1
        agents = memory.agents(specs)
        assert agents.call("bot", "recall", key="old").result["content"] == "c"
        with pytest.raises(NotFound):
            agents.as_user("alice").call("bot", "recall", key="old")
        agents.call("bot", "forget", key="old")
        with pytest.raises(NotFound):
            agents.call("bot", "recall", key="old")


def test_runs_are_opened_changed_and_closed(tmp_path: Path, specs: Path) -> None:
    own = Alcove(tmp_path / "own.db", settings=QUIET)
    with serving(tmp_path, "--agents", specs) as service, connect(service.url) as remote, own as memory:
        for agents in (memory.agents(specs), remote.agents()):
            run = agents.open_run("workflow", members=["bob"])
            assert (run.owner, run.members) == ("noop", ["bob", "noop"])
            assert agents.list_runs() == [run]
            assert agents.list_runs(offset=1) == []
            written: dict[str, Any] = {"namespace": "workflow", "key": "k", "instances": {"workflow": run.id}}
            assert agents.call("bot", "shared_memory_write", value=1, **written).result["version"] == 1
            assert agents.change_run("workflow", run.id, []).members == ["noop"]
            agents.close_run("workflow", run.id)
            with pytest.raises(NotFound):
                agents.call("bot", "shared_memory_read", **written)
            with pytest.raises(NotFound):
                agents.close_run("workflow", run.id)
        assert (
            vars(memory.agents(specs).transport)["services"]["Agents"]
            is vars(memory.as_user("alice").agents(specs).transport)["services"]["Agents"]
        )


def test_what_a_stranger_writes_below_a_run_costs_its_members_nothing(
    path: Path, specs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Row] = []
    value = RowDecoder.value

    def noted(opener: RowDecoder, row: Row) -> dict[str, JSON]:
        opened.append(row)
        return value(opener, row)

    monkeypatch.setattr(RowDecoder, "value", noted)
    with Alcove(path, settings=QUIET) as memory:
        alice = memory.agents(specs).as_user("alice")
        run = alice.open_run("workflow", members=["bob"])
        costs = []
        for room in (None, ["runs", "workflow", run.id, "u", "mallory"]):
            if room:
                puts = [{"op": "put", "namespace": room, "key": f"k{n}", "value": {}} for n in range(500)]
                memory.as_user("mallory").batch(puts)
            opened.clear()
            assert alice.change_run("workflow", run.id, ["bob"]).members == ["alice", "bob"]
            costs.append(len(opened))
        assert costs[1] <= costs[0]


def test_a_text_is_no_list_of_its_letters(path: Path, specs: Path) -> None:
    with Alcove(path, settings=QUIET) as memory:
        agents, awaited = memory.agents(specs), AsyncAlcove(path, settings=QUIET)
        with pytest.raises(InvalidRequest, match="members"):
            agents.open_run("workflow", "w", members="bob")
        agents.open_run("workflow", "w")
        with pytest.raises(InvalidRequest, match="members"):
            agents.change_run("workflow", "w", "bob")
        with pytest.raises(InvalidRequest, match="roles"):
            memory.api_keys.create(client="c", user="bob", roles="admin")
        with pytest.raises(InvalidRequest, match="roles"):
            awaited.as_user("bob", roles="admin")
        asyncio.run(awaited.close())


def test_wrong_specs_and_ids_are_refused(path: Path, specs: Path, tmp_path: Path) -> None:
    with Alcove(path, settings=QUIET) as memory:
        with pytest.raises(InvalidRequest, match="specs"):
            memory.agents()
        with pytest.raises(InvalidSpecs, match="nowhere"):
            memory.agents(tmp_path / "nowhere.yaml")
        agents = memory.agents(specs).as_user("alice")
        for wrong in ("\ud800", "", "x" * 513, "u"):
            for kind in ("workflow", "swarm"):
                with pytest.raises(InvalidRequest):
                    agents.call("bot", "shared_memory_write", namespace=kind, key="k", value=1,
                                instances={kind: wrong})  # fmt: skip
        with pytest.raises(InvalidRequest):
            agents.call("bot", "remember", key="k", content="c", session_id="\ud800")
        with pytest.raises(InvalidRequest):
            agents.call("bot", "remember", key="\ud800", content="c")
        assert len([*agents.calls_of("bot")]) == 10


def test_what_looks_like_a_membership_of_a_run_and_is_none_stands_in_nobodys_way(
    path: Path, specs: Path
) -> None:
    """A user may write below `runs` what ends with their name, and whatever an id cannot be."""
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        memory.as_user("alice").put(("runs", "workflow", "x" * 600, "u", "alice"), "membership", {"a": 1})
        assert memory.agents(specs).as_user("alice").list_runs() == []
        assert memory.admin.wipe("alice").removed["memories"] == 1


def test_of_threads_that_are_the_first_to_ask_for_agents_every_call_is_recorded(
    path: Path, specs: Path
) -> None:
    together = threading.Barrier(8)

    def look(memory: Alcove) -> None:
        together.wait()
        memory.agents(specs).as_user("alice").call("bot", "list_memories")

    with Alcove(path, settings=QUIET, embedder=None) as memory, ThreadPoolExecutor(8) as threads:
        list(threads.map(look, [memory] * 8))
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        assert len([*memory.agents(specs).as_user("alice").calls_of("bot")]) == 8
