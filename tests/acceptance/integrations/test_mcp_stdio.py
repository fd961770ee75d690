"""`alcove mcp` as a process: on a file and on a URL, with nothing but the protocol on its stdout."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from alcove import Alcove
from tests.support.agent_service import Table
from tests.support.mcp_clients import at_stdio, called, failed, run, tool_names
from tests.support.service import COMMAND, alcove, environment, serving

SPECS = """
agents:
  - name: bot
    memory: {private: {}, pools: ["org:docs"], scratch: [workflow]}
"""
CHANGED = SPECS.replace("private: {},", "private: {}, facts: {},")
LONG_TERM = ["memory_remember", "memory_recall", "memory_forget"]
ON_FILE = ("--at", "memory.db", "--agents", "agents.yaml", "--as-user", "alice")


def test_on_a_file_everything_works_and_changed_specs_are_told(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)

    async def talk() -> None:
        words = ("--agent", "bot", *ON_FILE, "--instance", "workflow=w1")
        async with at_stdio(tmp_path, *words) as client:
            assert client.protocol_version == "2026-07-28"
            await called(client, "remember", key="tea", content="green")
            await called(client, "share_to", pool="org:docs", key="cups", content="three")
            await called(client, "shared_memory_write", namespace="workflow", key="k", value=1)
            assert "no tool 'explode'" in await failed(client, "explode")
            found = {each.uri for each in (await client.list_resources()).resources}
            assert found == {"alcove://agent/bot/u/alice/tea", "alcove://org/docs/cups"}
            for uri in found:
                (content,) = (await client.read_resource(uri)).contents
                assert '"content":' in content.text  # type: ignore[union-attr]
            prompt = await client.get_prompt("context", {"message": "What do I drink?"})
            assert "green" in str(prompt.messages)
            async with client.listen(tools_list_changed=True) as events:
                specs.write_text(CHANGED)
                assert type(await anext(aiter(events))).__name__ == "ToolsListChanged"
            assert "learn_fact" in await tool_names(client)

    run(talk())
    with Alcove(tmp_path / "memory.db", embedder=None) as store:
        memory = store.as_user("alice").get("agent:bot:u:alice", "tea")
        assert memory
        assert memory.value == {"content": "green"}
    assert (tmp_path / "stderr").read_text() == "A new store: memory.db, with its key in memory.db.key\n"


def test_without_specs_an_agent_of_any_name_has_the_long_term_tools(tmp_path: Path) -> None:
    async def talk(user: str) -> str:
        words = ("--agent", "helper", "--at", "memory.db", "--as-user", user)
        async with at_stdio(tmp_path, *words) as client:
            assert await tool_names(client) == LONG_TERM
            await called(client, "memory_remember", content=f"{user} drinks green tea")
            prompt = await client.get_prompt("context", {"message": "What do I drink?"})
            assert f"{user} drinks green tea" in str(prompt.messages)
            return await called(client, "memory_recall", query="tea")

    assert "bob" not in run(talk("alice"))
    assert "alice" not in run(talk("bob"))
    with Alcove(tmp_path / "memory.db", embedder=None) as store:
        (found,) = (
            store.as_user("alice").agent("helper").call("memory_recall", {"query": "tea"}).result["items"]
        )
        assert found["content"] == "alice drinks green tea"
    refused = alcove("mcp", "--agent", "u", "--at", tmp_path / "memory.db", env={"ALCOVE_EMBEDDER": "none"})
    assert (refused.returncode, refused.stderr) == (1, "alcove: there is no agent 'u'\n")


def test_on_a_url_without_specs_it_is_the_same(tmp_path: Path) -> None:
    async def talk(url: str) -> None:
        async with at_stdio(tmp_path, "--agent", "helper", "--at", url) as client:
            assert await tool_names(client) == LONG_TERM
            await called(client, "memory_remember", content="Drinks green tea")

    with serving(tmp_path, "--embedder", "none") as service:
        run(talk(service.url))


def test_on_a_url_it_is_whoever_the_token_says(table: Table, tmp_path: Path) -> None:
    alice, session = table.player(), table.new_id()

    async def talk() -> None:
        words = ("--agent", "bot", "--at", table.service.url, "--token", alice.token)
        places = ("--team", "crew", "--session", session)
        async with at_stdio(tmp_path, *words, *places, mode="legacy") as client:
            await called(client, "remember", key="tea", content="green")
            await called(client, "share_finding", key=alice.name, content="found")
            await called(client, "shared_memory_write", namespace="session", key="k", value=1)
            assert "there is nothing under" in await failed(client, "recall", key="x")
            uris = [each.uri for each in (await client.list_resources()).resources]
            assert f"alcove://agent/bot/u/{alice.name}/tea" in uris
            prompt = await client.get_prompt("context", {"message": "What do I drink?"})
            assert "green" in str(prompt.messages)

    run(talk())
    assert alice.call("bot", "recall", key="tea")["content"] == "green"
    where = {"session_id": session}
    assert alice.call("bot", "shared_memory_read", where=where, namespace="session", key="k")["value"] == 1


def test_stdout_has_nothing_but_the_protocol_and_ends_with_stdin(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    said = "".join(f"{json.dumps(each)}\n" for each in lines) + "garbage\n[1\n"
    with subprocess.Popen(
        [*COMMAND, "mcp", "--agent", "bot", *ON_FILE], cwd=tmp_path, env=environment(ALCOVE_EMBEDDER="none"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        process.stdin.write(said)
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        time.sleep(0.3)  # it has looked at them by then
        specs.write_text(CHANGED)
        told = {json.loads(process.stdout.readline())["method"] for _ in range(3)}
        rest, complaints = process.communicate(timeout=30)
    assert [each["id"] for each in answers] == [1, 2]
    assert told == {f"notifications/{each}/list_changed" for each in ("tools", "resources", "prompts")}
    assert answers[0]["result"]["serverInfo"]["name"] == "alcove"
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in rest.splitlines())
    assert process.returncode == 0
    assert "Traceback" not in complaints


def test_what_is_not_there_is_told_before_anything_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    where = ("--at", tmp_path / "memory.db", "--agents", specs)
    env = {"ALCOVE_EMBEDDER": "none"}

    def refused(*words: str) -> tuple[int, str, str]:
        done = alcove("mcp", *words, *where, env=env)
        return done.returncode, done.stdout, done.stderr.splitlines()[-1]

    assert refused("--agent", "nobody") == (1, "", "alcove: there is no agent 'nobody'")
    no_team = "alcove: there is no team 'x' with the worker 'bot'"
    assert refused("--agent", "bot", "--team", "x") == (1, "", no_team)
    assert refused()[:2] == (2, "")
    monkeypatch.setitem(sys.modules, "mcp", None)
    missing = "alcove: alcove mcp needs mcp: pip install '.[mcp]' in a clone of Alcove"
    assert refused("--agent", "bot") == (2, "", missing)
