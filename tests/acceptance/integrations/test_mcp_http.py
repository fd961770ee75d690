"""`/mcp/{agent}` for the official client: tools, the prompt, who sees what, and what failures say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from mcp import MCPError

from tests.support.agent_service import Player, Table
from tests.support.mcp_clients import MODES, at_url, called, failed, refused, rpc, run, tool_names
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS, token

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def url(table: Table, agent: str = "bot", **chosen: str) -> str:
    query = "&".join(f"{name}={quote(each, safe='')}" for name, each in chosen.items())
    return f"{table.service.url}/mcp/{quote(agent, safe='')}{'?' * bool(query)}{query}"


@pytest.mark.parametrize("mode", MODES)
def test_tools_are_those_of_the_agent_and_do_what_they_do_over_rest(table: Table, mode: str) -> None:
    alice = table.player()

    async def talk() -> list[str]:
        async with at_url(url(table), alice.token, mode=mode) as client:
            assert "Stored 'tea'" in await called(client, "remember", key="tea", content="green")
            assert (
                await called(client, "recall", key="tea")
                == alice.tried("bot", "recall", key="tea").json()["text"]
            )
            tools = {each.name: each for each in (await client.list_tools()).tools}
            hints = {
                name: each.annotations and each.annotations.read_only_hint for name, each in tools.items()
            }
            assert (hints["recall"], hints["remember"]) == (True, False)
            can = client.server_capabilities
            assert [each and each.list_changed for each in (can.tools, can.prompts, can.resources)] == [
                True
            ] * 3
            return [*tools]

    names = run(talk())
    told = alice.see("/v1/agents/bot/tools", format="mcp")["tools"]
    assert names == [each["name"] for each in told]
    assert alice.call("bot", "recall", key="tea")["content"] == "green"
    calls = alice.see("/v1/agents/bot/calls")["calls"]
    assert [each["tool"] for each in calls].count("remember") == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_service_without_specs_has_agents_of_any_name_with_the_long_term_tools(
    tmp_path: Path, mode: str
) -> None:
    async def talk(url: str) -> tuple[list[str], str]:
        alice, bob = (token(name) for name in ("alice", "bob"))
        async with at_url(url, alice, mode=mode) as client:
            names = await tool_names(client)
            said = await called(client, "memory_remember", content="Drinks green tea")
            assert "Remembered it" in said
            assert "green tea" in await called(client, "memory_recall", query="tea")
        async with at_url(url, bob, mode=mode) as client:
            return names, await called(client, "memory_recall", query="tea")

    with serving(tmp_path, *FLAGS, "--embedder", "none") as service:
        names, others = run(talk(f"{service.url}/mcp/helper"))
        nobody = rpc(service, "/mcp/u", "initialize", token("alice"), params=HELLO).json()
    assert names == ["memory_remember", "memory_recall", "memory_forget"]
    assert others == "Nothing found."
    assert nobody["error"]["message"] == "there is no agent 'u'"


def test_two_users_at_once_never_see_each_other(table: Table) -> None:
    players = [table.player(), table.player()]

    async def talk(player: Player) -> tuple[str, list[str]]:
        async with at_url(url(table), player.token) as client:
            for n in range(10):
                await called(client, "remember", key=f"k{n}", content=f"{player.name} says {n}")
            said = await called(client, "list_memories", limit=100)
            return said, [each.uri for each in (await client.list_resources()).resources]

    async def both() -> Any:
        return await asyncio.gather(*map(talk, players))

    for player, other, (said, uris) in zip(players, players[::-1], run(both()), strict=True):
        own = [each for each in uris if player.name in each]  # pools are everybody's
        assert said.count(f"{player.name} says") == len(own) == 10
        assert other.name not in said
        assert not [each for each in uris if other.name in each]


@pytest.mark.parametrize("mode", MODES)
def test_session_team_and_run_are_chosen_in_the_query(table: Table, mode: str) -> None:
    alice, session, run_id = table.player(), table.new_id(), table.new_id()

    async def talk() -> None:
        async with at_url(url(table, "isolated"), alice.token, mode=mode) as client:
            assert "session_id" in await failed(client, "remember", key="k", content="v")
        async with at_url(url(table, "isolated", session=session), alice.token, mode=mode) as client:
            await called(client, "remember", key="k", content="v")
        async with at_url(url(table, "bot", team="crew"), alice.token, mode=mode) as client:
            assert "share_finding" in await tool_names(client)
        async with at_url(url(table, "bot", workflow=run_id), alice.token, mode=mode) as client:
            await called(client, "shared_memory_write", namespace="workflow", key="k", value=1)

    run(talk())
    where = {"session_id": session}
    assert alice.call("isolated", "recall", key="k", where=where)["content"] == "v"
    assert alice.see("/v1/runs")["runs"][0]["id"] == run_id


def test_an_agent_of_any_name_is_reached(table: Table) -> None:
    async def talk() -> None:
        async with at_url(url(table, "odd/name:1"), table.player().token) as client:
            await called(client, "remember", key="k", content="v")

    run(talk())


@pytest.mark.parametrize("mode", MODES)
def test_the_prompt_gives_the_message_with_what_is_remembered(table: Table, mode: str) -> None:
    alice = table.player()
    alice.call("bot", "remember", key="tea", content="drinks green tea")

    async def talk() -> Any:
        async with at_url(url(table), alice.token, mode=mode) as client:
            (prompt,) = (await client.list_prompts()).prompts
            assert prompt.name == "context"
            assert [(each.name, each.required) for each in prompt.arguments or ()] == [("message", True)]
            with pytest.raises(MCPError, match="message: expected a text"):
                await client.get_prompt("context", {})
            with pytest.raises(MCPError, match="name: expected context"):
                await client.get_prompt("poem", {"message": "Hello"})
            return await client.get_prompt("context", {"message": "What do I drink?"})

    said = run(talk())
    texts = [each.content.text for each in said.messages]
    body = {"session_id": "mcp", "message": "What do I drink?"}
    context = alice.ask("POST", "/v1/agents/bot/context", json=body).json()
    assert texts == [each["content"] for each in context["messages"]]
    assert "drinks green tea" in "".join(texts)
    assert texts[-1] == "What do I drink?"
    assert {each.role for each in said.messages} == {"user"}


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_fails_says_why_in_one_line(table: Table, mode: str) -> None:
    async def talk() -> None:
        async with at_url(url(table), table.player().token, mode=mode) as client:
            assert "there is nothing under 'x'" in await failed(client, "recall", key="x")
            assert await failed(client, "remember", key=3) == "error: key: expected `str`, got `int`"
            assert await failed(client, "explode") == "error: bot has no tool 'explode'"
            where = {"namespace": "workflow", "key": "k"}
            assert "workflow" in await failed(client, "shared_memory_read", **where)
            assert "one of" in await failed(client, "read_from_pool", pool="nope", key="k")

    run(talk())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("agent", ["nobody", "secret"])
def test_an_agent_that_is_not_there_or_not_yours_is_told_at_once(table: Table, mode: str, agent: str) -> None:
    async def talk() -> None:
        async with at_url(url(table, agent), table.player().token, mode=mode):
            pass

    assert f"there is no agent '{agent}'" in refused(talk())
    answer = rpc(table.service, f"/mcp/{agent}", "initialize", table.player().token, params=HELLO)
    assert answer.status_code == 200
    assert answer.json()["error"]["message"] == f"there is no agent '{agent}'"


def test_who_names_no_agent_is_told_which_there_are(table: Table) -> None:
    alice = table.player()
    answer = rpc(table.service, "/mcp", "initialize", alice.token, params=HELLO)
    assert answer.status_code == 404
    said = answer.json()["error"]["message"]
    assert said.startswith("expected an agent's name after /mcp/; you may use bot, bot-2")
    assert "secret" not in said


@pytest.mark.parametrize("bad", [None, "nonsense"])
def test_without_a_token_it_is_401_as_everywhere(table: Table, bad: str | None) -> None:
    for answer, plain in (
        (rpc(table.service, "/mcp/bot", "tools/list", bad), table.service.look(bad)),
        (table.service.call("GET", "/mcp/bot", bad), table.service.look(bad)),
    ):
        assert answer.status_code == plain.status_code == 401
        assert answer.headers["www-authenticate"] == plain.headers["www-authenticate"] == "Bearer"
        error = answer.json()["error"]
        assert error["message"] == plain.json()["error"]
        assert error["data"]["code"] == "unauthenticated"
        assert error["data"]["request_id"] == answer.headers["x-request-id"]


def test_the_official_client_hears_why_it_is_refused(table: Table) -> None:
    async def talk() -> None:
        async with at_url(url(table)):
            pass

    assert "the bearer token is missing" in refused(talk())


def test_each_request_is_in_the_log_by_its_declared_path(table: Table) -> None:
    alice = table.player()
    answer = rpc(table.service, "/mcp/bot?session=s1", "tools/list", alice.token)
    (line,) = table.service.requests(answer.headers["x-request-id"])
    assert (line["path"], line["user"], line["status"]) == ("/mcp/{agent}", alice.name, 200)


def test_it_is_not_in_the_openapi_document(service: Service) -> None:
    assert not [path for path in service.call("GET", "/openapi.json").json()["paths"] if "mcp" in path]
