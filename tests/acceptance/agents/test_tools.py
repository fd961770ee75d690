"""Tools over REST: what providers are told of them, what they take, and what is taken down of their calls."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from splintr import Tokenizer

from tests.support.agent_service import Table
from tests.support.service import assert_error
from tests.support.waiting import until

TOOLS = {
    "private": ["remember", "recall", "search_memory", "forget", "list_memories"],
    "pools": ["share_to", "read_from_pool", "search_pool", "list_pool"],
    "team": ["share_finding", "read_shared", "search_shared", "list_shared"],
    "scratch": [f"shared_memory_{verb}" for verb in ("write", "read", "list", "delete")],
    "facts": ["learn_fact", "recall_facts", "forget_fact"],
    "long-term": ["memory_remember", "memory_recall", "memory_forget"],
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "remember": {"key": "k", "content": "c"},
    "search_memory": {"query": "q", "limit": 3},
    "share_to": {"pool": "org:docs", "key": "k", "content": "c"},
    "shared_memory_write": {
        "key": "k",
        "value": {"a": [1, None]},
        "namespace": "agent",
        "metadata": {"m": 1},
    },
    "shared_memory_list": {"namespace": "agent", "pattern": "*"},
    "learn_fact": {"content": "c"},
    "memory_remember": {"content": "c", "type": "fact", "tags": ["a"], "scope": "all"},
    "memory_recall": {"query": "q", "tags": ["a"]},
}


def parts(tool: dict[str, Any], format: str) -> tuple[str, str, dict[str, Any]]:
    match format:
        case "openai":
            assert set(tool) == {"type", "function"}
            return tool["function"]["name"], tool["function"]["description"], tool["function"]["parameters"]
        case "anthropic":
            return tool["name"], tool["description"], tool["input_schema"]
        case _:
            return tool["name"], tool["description"], tool["inputSchema"]


@pytest.mark.parametrize("format", ["openai", "anthropic", "mcp"])
def test_tools_are_rendered_as_json_schema_that_their_own_arguments_fit(table: Table, format: str) -> None:
    alice = table.player("alice")
    tools = alice.see("/v1/agents/bot/tools", format=format, team="crew")["tools"]
    rendered = {name: (about, schema) for name, about, schema in (parts(tool, format) for tool in tools)}
    assert list(rendered) == [name for names in TOOLS.values() for name in names]
    for name, (about, schema) in rendered.items():
        assert len(about) > 20, name
        jsonschema_rs.meta.validate(schema)
        assert schema["type"] == "object"
        assert set(schema["required"]) <= set(schema["properties"])
        assert all("description" in str(each) for each in schema["properties"].values()), name
        validator = jsonschema_rs.validator_for(schema)
        if name in ARGUMENTS:
            validator.validate(ARGUMENTS[name])
            assert alice.call("bot", name, **ARGUMENTS[name]) is not None
        if schema["required"]:
            assert not validator.is_valid({})
    _, write = rendered["shared_memory_write"]
    kinds = ["global", "workflow", "swarm", "debate", "session", "agent"]
    assert (write["properties"]["namespace"]["enum"], write["properties"]["namespace"]["default"]) == (
        kinds, "global")  # fmt: skip
    assert "namespace" not in write["required"]
    assert "every user" in rendered["shared_memory_write"][0]
    assert rendered["share_to"][1]["properties"]["pool"]["enum"] == ["org:docs", "project:bot-shared"]
    assert "summaries" in rendered["memory_forget"][0]
    tools = alice.see("/v1/agents/bot-2/tools", format=format)["tools"]
    others = {name: schema for name, _, schema in (parts(each, format) for each in tools)}
    assert "namespace" in others["shared_memory_read"]["required"]
    assert others["shared_memory_read"]["properties"]["namespace"]["enum"] == ["workflow", "session", "agent"]


@pytest.mark.parametrize("format", ["openai", "anthropic", "mcp"])
def test_schemas_hold_only_what_every_provider_takes(table: Table, format: str) -> None:
    for tool in table.player().see("/v1/agents/bot/tools", format=format, team="crew")["tools"]:
        name, _, schema = parts(tool, format)
        for argument, about in schema["properties"].items():
            at = f"{name}.{argument}"
            assert set(about) <= {"type", "description", "enum", "items", "default"}, at
            assert about["description"], at
            assert isinstance(about.get("type"), str) or at == "shared_memory_write.value", at
            assert "enum" not in about or (about["type"] == "string" and about["enum"]), at
            assert "items" not in about or about["items"] == {"type": "string"}, at
            assert about.get("default", "") is not None, at


def test_absent_arguments_may_be_null_and_bounds_are_checked_by_the_call(table: Table) -> None:
    alice = table.player("alice")
    assert alice.call("bot", "learn_fact", content="tea", key=None)["key"]
    assert alice.call("bot", "memory_recall", query="tea", type=None, tags=None) == {"items": []}
    nothing = dict.fromkeys(("metadata", "expected_version"))
    assert alice.call("bot", "shared_memory_write", namespace="agent", key="k", value=None, **nothing)
    for limit in (0, 101):
        assert alice.refused(400, "bot", "list_memories", limit=limit).startswith("limit")


def test_the_tools_of_an_agent_with_everything_cost_at_most_1900_tokens(table: Table) -> None:
    tools = table.player().see("/v1/agents/bot/tools", team="crew")["tools"]
    assert len(tools) == 23
    told = json.dumps(tools, separators=(",", ":"), ensure_ascii=False)
    assert len(Tokenizer.from_pretrained("o200k_base").encode(told)) <= 1900


def test_a_model_is_told_which_tool_keeps_what_and_what_a_wrong_choice_costs(table: Table) -> None:
    alice = table.player("alice")

    def about(agent: str, **more: str) -> dict[str, str]:
        tools = alice.see(f"/v1/agents/{agent}/tools", format="mcp", **more)["tools"]
        return {tool["name"]: tool["description"] for tool in tools}

    told = about("bot", team="crew")
    assert "other agents never learn it" in told["remember"]
    assert "newest 3 stay" in told["learn_fact"]
    assert "what must last gets lost" in told["learn_fact"]
    assert "passing details come up for ever" in told["memory_remember"]
    assert len({told[name] for name in ("remember", "learn_fact", "memory_remember")}) == 3
    for name in ("share_to", "share_finding"):
        assert "other users read: never anything private" in told[name]
    assert "other agents" not in about("plain")["remember"], "it has nothing to choose from"
    _, _, schema = parts(
        next(tool for tool in alice.see("/v1/agents/bot/tools", format="mcp")["tools"]
             if tool["name"] == "memory_remember"), "mcp")  # fmt: skip
    assert "never other users" in schema["properties"]["scope"]["description"]


def test_an_agent_has_just_the_tools_its_spec_enables(table: Table) -> None:
    alice = table.player("alice")
    for agent, rooms in (("plain", ["private"]), ("fighter", ["scratch"]), ("third", ["private", "facts"])):
        names = [each["function"]["name"] for each in alice.see(f"/v1/agents/{agent}/tools")["tools"]]
        assert names == [name for room in rooms for name in TOOLS[room]]
        for tool in {name for names in TOOLS.values() for name in names} - set(names):
            assert "has no tool" in alice.refused(404, agent, tool)
    assert "has no tool" in alice.refused(404, "bot", "drop_table")
    assert_error(alice.ask("GET", "/v1/agents/bot/tools?format=xml"), 400, "invalid_request")


def test_arguments_that_a_tool_does_not_declare_are_dropped_and_logged(table: Table) -> None:
    alice, bob = table.player("alice"), table.player("bob")
    more = {"user_id": bob.name, "namespace": f"agent:bot:u:{bob.name}", "path": "/etc", "agent": "bot-2"}
    alice.call("bot", "remember", key="dropped", content="mine", session_id="s", **more)
    assert alice.call("bot", "recall", key="dropped", user_id=bob.name)["content"] == "mine"
    bob.refused(404, "bot", "recall", key="dropped")
    logged = until(lambda: [line for line in table.service.lines if "dropped arguments" in str(line)])
    assert any("remember" in str(line) and "user_id" in str(line) for line in logged)


@pytest.mark.parametrize(
    ("tool", "given", "field"),
    [
        ("remember", {"key": "k"}, "content"),
        ("remember", {"key": 7, "content": "c"}, "key"),
        ("remember", {"key": "", "content": "c"}, "key"),
        ("remember", {"key": "x" * 1025, "content": "c"}, "key"),
        ("remember", {"key": "é" * 513, "content": "c"}, "key"),
        ("search_memory", {"query": "q", "limit": 101}, "limit"),
        ("search_memory", {"query": "q", "limit": "5"}, "limit"),
        ("search_memory", {"query": "  "}, "query: expected text that is not blank"),
        ("remember", {"key": "k", "content": " \n"}, "content: expected text that is not blank"),
        ("memory_remember", {"content": "c", "tags": [7]}, "tags"),
        ("shared_memory_write", {"key": "k"}, "value"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    table: Table, tool: str, given: dict[str, Any], field: str
) -> None:
    said = table.player().refused(400, "bot", tool, **given)
    assert said.startswith(field), said


@pytest.mark.parametrize(
    "body",
    [
        {"arguments": []},
        {"arguments": {}, "user_id": "bob"},
        {"session_id": 7},
        {"instances": {"workflow": 7}},
        {"instances": {"agent": "a"}},
        {"instances": {"planet": "a"}},
        {"session_id": "s" * 513},
        {"instances": {"workflow": "w" * 513}},
    ],
)
def test_a_wrong_body_is_refused(table: Table, body: dict[str, Any]) -> None:
    alice = table.player()
    assert_error(alice.ask("POST", "/v1/agents/bot/tools/list_memories", json=body), 400, "invalid_request")


def test_calls_are_taken_down_without_content(table: Table) -> None:
    alice, bob, session = table.player("alice"), table.player("bob"), table.new_id()
    alice.call("bot", "remember", where={"session_id": session}, key="keyword", content="the content")
    alice.refused(404, "bot", "recall", key="another keyword")
    alice.refused(404, "bot", "made up by a model")
    bob.call("bot", "list_memories")
    calls = alice.see("/v1/agents/bot/calls")["calls"]
    assert [(call["tool"], call["outcome"], call["session"]) for call in reversed(calls)] == [
        ("remember", "ok", session),
        ("recall", "not_found", None),
        ("unknown", "not_found", None),
    ]
    for call in calls:
        assert set(call) == {"at", "agent", "user", "tool", "session", "room", "outcome", "ms"}
        assert (call["user"], call["agent"]) == (alice.name, "bot")
        assert call["ms"] > 0
    assert "keyword" not in str(calls)
    assert "content" not in str(calls)
    assert len(alice.see("/v1/agents/bot/calls", limit=1)["calls"]) == 1
    everybody = {call["user"] for call in table.admin.see("/v1/agents/bot/calls", limit=1000)["calls"]}
    assert {alice.name, bob.name} <= everybody
    forged = {"at": "x", "tool": "forged"}
    assert alice.put("calls", "bot", "u", alice.name, key="0", value=forged).status_code == 200
    assert len(alice.see("/v1/agents/bot/calls")["calls"]) == 3
    assert table.admin.see("/v1/agents/bot/calls")["calls"]
    assert alice.see("/v1/agents/bot/rooms/global")


def test_agents_are_shown_as_their_specs(table: Table) -> None:
    alice = table.player("alice")
    shown = {agent["name"]: agent for agent in alice.see("/v1/agents")["agents"]}
    assert shown["bot"] == alice.see("/v1/agents/bot")
    assert shown["bot"]["memory"]["facts"]["max_facts"] == 3
    assert alice.see("/v1/agents/odd%2Fname%3A1")["name"] == "odd/name:1"
