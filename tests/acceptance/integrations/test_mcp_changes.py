"""Clients are told when specs change, whichever worker they are connected to."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import types

from tests.support.mcp_clients import TAKES, at_url, rpc, run, tool_names
from tests.support.service import Service, serving
from tests.support.waiting import until
from tests.support.worker_connections import one_client_each

FIRST = "agents: [{name: bot, memory: {private: {}}}, {name: other, memory: {private: {}}}]"
THEN = "agents: [{name: bot, memory: {private: {}, facts: {}}}, {name: other, memory: {private: {}}}]"
WITHOUT = "agents: [{name: other, memory: {private: {}}}]"


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changing") / "agents.yaml"


@pytest.fixture(scope="module")
def two_workers(specs: Path) -> Iterator[Service]:
    specs.write_text(FIRST)
    with serving(specs.parent, "--workers", 2, "--agents", specs, "--embedder", "none") as service:
        yield service


def test_both_protocols_are_told_that_tools_have_changed_and_others_are_not(
    two_workers: Service, specs: Path
) -> None:
    specs.write_text(FIRST)
    url, heard, elsewhere = f"{two_workers.url}/mcp/bot", list[Any](), list[Any]()

    told = asyncio.Event()

    async def note(message: Any) -> None:
        heard.append(message)
        told.set()

    async def note_elsewhere(message: Any) -> None:
        elsewhere.append(message)

    async def talk() -> None:
        async with (
            at_url(url, mode="legacy", heard=note) as older,
            at_url(f"{two_workers.url}/mcp/other", mode="legacy", heard=note_elsewhere),
            at_url(url) as newer,
            newer.listen(tools_list_changed=True) as events,
        ):
            assert "learn_fact" not in await tool_names(older)
            for text in itertools.cycle((THEN, FIRST)):  # a stream may open later than the first change
                specs.write_text(text)
                with suppress(TimeoutError):
                    async with asyncio.timeout(4):
                        await told.wait()
                    break
            assert type(await anext(aiter(events))).__name__ == "ToolsListChanged"
            specs.write_text(THEN)
            for client in (older, newer):
                while "learn_fact" not in await tool_names(client):
                    await asyncio.sleep(0.05)

    run(talk())
    kinds = {type(each) for each in heard}
    assert types.ToolListChangedNotification in kinds
    assert {types.ResourceListChangedNotification, types.PromptListChangedNotification} <= kinds
    assert elsewhere == []


def test_an_agent_that_is_gone_is_told_of_and_refuses(two_workers: Service, specs: Path) -> None:
    specs.write_text(FIRST)
    until(lambda: rpc(two_workers, "/mcp/bot", "tools/list").json().get("result"))

    async def talk() -> None:
        async with (
            at_url(f"{two_workers.url}/mcp/bot") as client,
            client.listen(prompts_list_changed=True) as events,
        ):
            specs.write_text(WITHOUT)
            assert type(await anext(aiter(events))).__name__ == "PromptsListChanged"

    run(talk())
    until(lambda: "error" in rpc(two_workers, "/mcp/bot", "tools/list").json())
    specs.write_text(FIRST)
    until(lambda: rpc(two_workers, "/mcp/bot", "tools/list").json().get("result"))


def test_each_request_of_a_session_may_go_to_another_worker(two_workers: Service, specs: Path) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    bodies = [
        ("initialize", hello),
        ("notifications/initialized", None),
        ("tools/call", {"name": "remember", "arguments": {"key": "k", "content": "v"}}),
        ("tools/call", {"name": "recall", "arguments": {"key": "k"}}),
    ]
    asked = {"jsonrpc": "2.0", "id": 0, "method": "tools/list"}
    with one_client_each(two_workers) as clients:
        for each in clients:  # both have the specs that the last test left
            until(lambda each=each: "result" in each.post("/mcp/bot", json=asked).json())  # type: ignore[misc]
        headers, answers = {**TAKES}, list[httpx.Response]()
        for n, (method, params) in enumerate(bodies):
            body = {"jsonrpc": "2.0", "method": method, **({"id": n, "params": params} if params else {})}
            answers.append(clients[n % 2].post("/mcp/bot", json=body, headers=headers))
            if method == "initialize":
                headers["mcp-session-id"] = answers[0].headers["mcp-session-id"]
                headers["mcp-protocol-version"] = answers[0].json()["result"]["protocolVersion"]
    assert [each.status_code for each in answers] == [200, 202, 200, 200]
    assert '"v"' in answers[3].json()["result"]["content"][0]["text"]
