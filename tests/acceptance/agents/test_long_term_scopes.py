"""The two scopes of long-term memory: one entry for equal content, and `user` as a word for `all`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove, NotFound
from alcove.client.store import AgentsHandle
from tests.support.waiting import until

SPECS = """
agents:
  - {name: bot, memory: {long_term: {}}}
  - {name: other, memory: {long_term: {}}}
  - {name: small, memory: {long_term: {recall_budget: 3}}}
  - {name: wide, memory: {types: [{id: long_term, config: {scope: user, recall_budget: 7}}]}}
"""
TEA = "Drinks green tea every morning."
DRINKS = [
    "Drinks black coffee after lunch.",
    "Drinks a glass of water at night.",
    "Drinks hot chocolate in winter.",
    "Drinks lemonade in summer.",
]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Alcove]:
    with Alcove(tmp_path / "memory.db") as opened:
        yield opened


@pytest.fixture
def alice(memory: Alcove, tmp_path: Path) -> AgentsHandle:
    (tmp_path / "agents.yaml").write_text(SPECS)
    return memory.agents(tmp_path / "agents.yaml").as_user("alice")


def remember(alice: AgentsHandle, content: str, agent: str = "bot", **more: Any) -> str:
    return str(alice.call(agent, "memory_remember", content=content, **more).result["memory_id"])


def recall(alice: AgentsHandle, query: str = "What does she drink?", **more: Any) -> list[str]:
    items = alice.call("bot", "memory_recall", query=query, **more).result["items"]
    return [item["content"] for item in items]


def test_equal_content_in_both_scopes_takes_one_place_of_the_limit(
    memory: Alcove, alice: AgentsHandle
) -> None:
    for content in (TEA, *DRINKS):
        remember(alice, content)
        remember(alice, content, scope="all")
    until(lambda: memory.admin.index().waiting == 0)
    for limit in (1, 2, 5, 8):
        found = recall(alice, limit=limit)
        assert len({*found}) == len(found) == min(limit, 5)


def test_other_memories_fill_the_limit_even_where_many_are_equal(memory: Alcove, alice: AgentsHandle) -> None:
    user = memory.as_user("alice")
    for n in range(6):  # as an import may bring it
        value = {"content": TEA, "type": "fact", "tags": [], "scope": "all"}
        user.put("user:alice:long-term:all", f"all-mem0-{n}", value, index={"content": TEA})
    for content in (TEA, *DRINKS):
        remember(alice, content)
    until(lambda: memory.admin.index().waiting == 0)
    assert {*recall(alice, "Does she drink green tea every morning?", limit=5)} == {TEA, *DRINKS}


def test_forgetting_one_forgets_the_copy_that_recall_did_not_show(
    memory: Alcove, alice: AgentsHandle
) -> None:
    here, everywhere = remember(alice, TEA), remember(alice, TEA, scope="all")
    remember(alice, DRINKS[0])
    remember(alice, TEA, agent="other")
    for shown, copy in ((everywhere, here), (here, everywhere)):
        said = alice.call("bot", "memory_forget", memory_id=shown)
        assert said.result == {"memory_id": shown, "forgotten": True, "also_forgotten": [copy]}
        assert said.text == f"Forgot it, and the same content under {copy}."
        assert recall(alice) == [DRINKS[0]]
        with pytest.raises(NotFound):
            alice.call("bot", "memory_forget", memory_id=copy)
        (own,) = alice.call("other", "memory_recall", query="tea").result["items"]  # which stays
        assert (own["content"], own["scope"]) == (TEA, "agent")
        for scope in ("agent", "all"):
            remember(alice, TEA, scope=scope)
    remember(alice, "Likes C++.")
    alice.call("bot", "memory_forget", memory_id=remember(alice, "Likes C.", scope="all"))
    assert "Likes C++." in recall(alice, "Which languages does she like?")
    last = remember(alice, DRINKS[1])
    assert alice.call("bot", "memory_forget", memory_id=last).text == "Forgot it."


def test_a_context_shows_equal_content_once_and_fills_its_recall_budget(
    memory: Alcove, alice: AgentsHandle
) -> None:
    for content in (TEA, *DRINKS[:2]):
        remember(alice, content, agent="small")
        remember(alice, content, agent="small", scope="all")
    until(lambda: memory.admin.index().waiting == 0)
    context = alice.context("small", "s", "What does she drink?")
    sent = str(context.messages)
    assert [sent.count(content) for content in (TEA, *DRINKS[:2])] == [1, 1, 1]
    assert len(context.receipt.tiers["long_term"].items) == 3
    left_out = {(each.tier, each.why): each.count for each in context.receipt.left_out}
    assert left_out == {("long_term", "same content as another"): 3}


def test_a_standing_instruction_in_both_scopes_is_told_once(memory: Alcove, alice: AgentsHandle) -> None:
    rule = "Always reply in French."
    for scope in ("agent", "all"):
        remember(alice, rule, type="instruction", scope=scope)
    remember(alice, TEA)
    context = alice.context("bot", "s", "Hello")
    assert str(context.messages).count(rule) == 1
    assert len(context.receipt.tiers["standing"].items) == 1
    assert [item.id for item in context.receipt.tiers["long_term"].items]
    left_out = {(each.tier, each.why): each.count for each in context.receipt.left_out}
    assert left_out == {("long_term", "same content as another"): 1}


def test_user_is_another_word_for_all(memory: Alcove, alice: AgentsHandle) -> None:
    id = remember(alice, TEA, scope="user")
    assert id.startswith("all-")
    assert id == remember(alice, TEA, scope="all")
    (item,) = alice.call("other", "memory_recall", query="tea").result["items"]
    assert (item["memory_id"], item["scope"]) == (id, "all")


def test_a_spec_decides_where_memories_go_by_default(memory: Alcove, alice: AgentsHandle) -> None:
    assert remember(alice, TEA, agent="wide").startswith("all-")
    assert remember(alice, DRINKS[0], agent="wide", scope="agent").startswith("agent-")
    assert remember(alice, DRINKS[1]).startswith("agent-")
    assert alice.spec("wide").memory.long_term.recall_budget == 7
    for agent, default in (("wide", "all"), ("bot", "agent")):
        (told, *_) = alice.tools(agent, "mcp")
        scope = told["inputSchema"]["properties"]["scope"]
        assert (scope["enum"], scope["default"]) == (["agent", "all"], default)
