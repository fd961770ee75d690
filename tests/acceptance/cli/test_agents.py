"""Agents on the command line, on a file and on a URL alike."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Command, on_either
from tests.support.service import COMMAND, environment, serving
from tests.support.waiting import PATIENCE, until

SPECS = """
agents:
  - name: researcher
    role: finds sources
    memory: {private: {}, pools: ["org:docs"], scratch: [workflow, agent], facts: {}}
  - name: a/b
    shared_with: [alice]
    memory: {private: {}}
teams:
  - {name: crew, workers: [researcher]}
"""


@pytest.fixture(params=["file", "url"])
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Command]:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    with on_either(request.param, tmp_path, specs) as command:
        yield command


def test_agents_and_teams_are_listed(front: Command) -> None:
    said = front.says("agents")
    assert "researcher" in said
    assert "finds sources" in said
    assert "private, 1 pool, workflow, agent, facts" in said
    assert "a/b" not in said
    assert [agent["name"] for agent in front.lines("agents")] == ["researcher"]
    assert [team["name"] for team in front.lines("agents", "--teams")] == ["crew"]
    assert "team:crew" in front.says("agents", "--teams")


def test_runs_are_listed(front: Command) -> None:
    assert front.lines("runs") == []
    given = ("namespace=workflow", "key=log", "value=1", "--instance", "workflow=w1")
    front.says("call", "researcher", "shared_memory_write", *given)
    assert front.lines("runs") == [{"kind": "workflow", "id": "w1", "owner": "noop", "members": ["noop"]}]
    assert "w1" in front.says("runs")


def test_runs_are_opened_changed_and_closed(front: Command) -> None:
    assert front.says("run", "open", "workflow", "w1", "--member", "bob") == "workflow w1: bob, noop\n"
    (changed,) = front.lines("run", "change", "workflow", "w1", "--member", "carol")
    assert changed == {"kind": "workflow", "id": "w1", "owner": "noop", "members": ["carol", "noop"]}
    (made,) = front.lines("run", "open", "debate")
    assert len(str(made["id"])) >= 16
    assert "--yes" in front.refuses("run", "close", "workflow", "w1")
    assert front.says("run", "close", "workflow", "w1", "--yes") == "closed workflow w1\n"
    assert "no workflow" in front.refuses("run", "close", "workflow", "w1", "--yes", code=1)
    front.refuses("run", "open", "party")
    assert [run["id"] for run in front.lines("runs")] == [made["id"]]


WRITE = ("call", "researcher", "shared_memory_write", "namespace=workflow", "value=1", "--instance")


def test_a_room_is_counted_and_emptied(front: Command) -> None:
    front.says(*WRITE, "workflow=w1", "key=log")
    (stats,) = front.lines("room", "stats", "researcher", "workflow", "w1")
    assert (stats["room"], stats["keys"], stats["writes"]) == ("workflow:w1", 1, 1)
    lines = front.says("room", "stats", "researcher", "workflow", "w1").splitlines()
    assert [line.split()[0] for line in lines] == ["room", "keys", "bytes", "reads", "writes", "conflicts"]
    assert "--yes" in front.refuses("room", "reset", "researcher", "workflow", "w1")
    assert front.says("room", "reset", "researcher", "workflow", "w1", "--yes") == "emptied workflow w1\n"
    assert front.lines("room", "stats", "researcher", "workflow", "w1")[0]["keys"] == 0
    assert "instance" in front.refuses("room", "stats", "researcher", "workflow")
    assert "kind" in front.refuses("room", "stats", "researcher", "party")


def test_a_room_is_watched(front: Command, tmp_path: Path) -> None:
    front.says(*WRITE, "workflow=w1", "key=before")
    said = tmp_path / "watched"
    words = ["room", "watch", "researcher", "workflow", "w1", "--at", front.at, *front.options]
    with said.open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, *map(str, words)], stdout=output, stderr=subprocess.STDOUT, env=environment()
        )
        try:
            until(lambda: front.says(*WRITE, "workflow=w1", "key=probe") and b"probe" in said.read_bytes())
            front.says(*WRITE, "workflow=w1", "key=later")
            until(lambda: b"later" in said.read_bytes())
            process.send_signal(2)
            assert process.wait(PATIENCE) == 0, said.read_text()
        finally:
            process.kill()
            process.wait()
    assert "before" not in said.read_text()


def test_specs_are_checked_without_a_store(tmp_path: Path) -> None:
    command = Command(str(tmp_path / "memory.db"))
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    assert command.says("agents", "check", specs) == "ok: 2 agents, 1 team\n"
    told = command.json("agents", "check", specs)
    assert told == {"agents": ["a/b", "researcher"], "teams": ["crew"], "warnings": []}
    specs.write_text("agents: [{name: a, colour: red}, {name: u}]")
    said = command.refuses("agents", "check", specs)
    assert f"{specs}: agents[0].colour: unknown field" in said
    assert f"{specs}: agents[1].name: expected" in said
    specs.write_text("agents: [{name: a, memory: {knowledge: {sources: [nowhere]}}}]")
    assert "no file configures 'nowhere'" in command.run("agents", "check", specs).stderr
    assert "at most 1 segments" in command.refuses("agents", "check", deep(tmp_path), "--max-depth", 3)
    assert "exists" in command.refuses("agents", "check", tmp_path / "gone.yaml")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["agents.yaml", "deep.yaml"]


def test_specs_of_other_projects_are_converted_to_our_own_form(tmp_path: Path) -> None:
    command = Command(str(tmp_path / "memory.db"))
    (specs := tmp_path / "theirs.yaml").write_text(
        "apiVersion: example.dev/v1\n"
        "kind: Agent\n"
        "metadata: {name: helper, version: 2, labels: {a: b}}\n"
        "spec:\n"
        '  systemPrompt: "Be kind.\\nBe short."\n'
        "  memory: {types: [{id: long_term, config: {max_memories: 30}}], session_memory: true}\n"
    )
    converted = command.run("agents", "convert", specs)
    assert converted.stdout == (
        "agents:\n- name: helper\n  version: '2'\n  instructions: |-\n    Be kind.\n    Be short.\n"
        "  memory:\n    long_term:\n      recall_budget: 30\n    session_memory:\n      enabled: true\n"
    )
    assert converted.stderr == f"warning: {specs}: metadata.labels: not used here\n"
    assert command.json("agents", "convert", specs)["agents"][0]["version"] == "2"
    specs.write_text("{name: a, systemPrompt: x, colour: red}")
    assert "colour: unknown field" in command.refuses("agents", "convert", specs)
    assert [each.name for each in tmp_path.iterdir()] == ["theirs.yaml"]


def deep(folder: Path) -> Path:
    (file := folder / "deep.yaml").write_text("agents: [{name: a, memory: {private: {namespace: 'a:b'}}}]")
    return file


def test_an_agent_is_shown(front: Command) -> None:
    (spec,) = front.lines("agent", "researcher")
    assert spec["role"] == "finds sources"
    said = front.says("agent", "researcher", "tools")
    assert "key, content" in said
    assert "query, [limit]" in said
    tools = front.lines("agent", "researcher", "tools", "--format", "anthropic", "--team", "crew")
    assert {"share_finding", "remember"} <= {str(tool["name"]) for tool in tools}
    assert set(tools[0]) == {"name", "description", "input_schema"}
    assert "no agent 'a/b'" in front.refuses("agent", "a/b", code=1)
    assert "no agent" in front.refuses("agent", "nosuch", "tools", code=1)


def test_a_tool_is_called_and_the_call_is_on_record(front: Command) -> None:
    assert "Stored '7'" in front.says(
        "call", "researcher", "remember", "key=7", "content=42", "--session", "s"
    )
    (answer,) = front.lines("call", "researcher", "recall", '{"key": "7"}')
    assert set(answer) == {"result", "text"}
    assert answer["result"]["content"] == "42"
    run = ("--instance", "workflow=w1")
    front.says("call", "researcher", "shared_memory_write", "namespace=workflow", "key=k", "value=[1]", *run)
    (read,) = front.lines("call", "researcher", "shared_memory_read", "namespace=workflow", "key=k", *run)
    assert read["result"]["value"] == [1]
    assert "for the team" in front.says(
        "call", "researcher", "share_finding", "key=k", "content=c", "--team", "crew"
    )
    assert "list_memories" in front.refuses("call", "researcher", "recall", "key=nothing", code=1)
    assert "content" in front.refuses("call", "researcher", "remember", "key=k")
    assert "org:docs" in front.refuses("call", "researcher", "list_pool", "pool=org")
    assert "no tool" in front.refuses("call", "researcher", "memory_recall", "query=q", code=1)
    rooms = {str(room["room"]): room["memories"] for room in front.lines("agent", "researcher", "memory")}
    assert (rooms["private"], rooms["workflow"], rooms["team"]) == (1, 1, 1)
    assert "agent:researcher:u:noop" in front.says("agent", "researcher", "memory")
    calls = front.lines("agent", "researcher", "calls")
    assert len(calls) == 9
    assert (calls[-1]["tool"], calls[-1]["session"]) == ("remember", "s")
    assert len(front.lines("agent", "researcher", "calls", "--limit", 2)) == 2
    assert "not_found" in front.says("agent", "researcher", "calls")


def test_on_a_file_somebody_else_may_be_acted_for(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    command = Command(str(tmp_path / "memory.db"))
    command.says(
        "call", "a/b", "remember", "key=k", "content=c", "--as-user", "alice", ALCOVE_AGENTS=str(specs)
    )
    told = command.says("call", "a/b", "recall", "key=k", "--as-user", "alice", ALCOVE_AGENTS=str(specs))
    assert told.startswith('k: "c" (by a/b for alice, ')
    assert "--agents" in command.refuses("agents")
    specs.write_text("agents: [{name: u}]")
    assert "agents[0]" in command.refuses("agents", "--agents", specs)


def test_a_server_has_its_own_specs(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        command = Command(service.url, service.at)
        assert "the server has its own" in command.refuses("agents", "--agents", "agents.yaml")
        assert command.says("agents", "--json", ALCOVE_AGENTS="agents.yaml") == ""
