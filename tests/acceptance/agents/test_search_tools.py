"""Tools that search give the best `limit`, mark what may not fit, and hide only what `min_relevance` cuts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove, InvalidRequest
from alcove.client.store import AgentsHandle
from tests.support.waiting import until

ON = {"enabled": True}
SPECS = {
    "agents": [
        {"name": "bot", "memory": {"private": ON, "pools": ["org:docs"], "facts": ON, "long_term": ON}},
    ],
    "teams": [{"name": "crew", "workers": ["bot"]}],
}
MARK = "may not fit"
KEPT = [
    "She drinks green tea every morning.",
    "Her car is red and needs new tyres.",
    "Their dog fears thunder.",
]
TOOLS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "search_memory": ("remember", {}, {}),
    "search_pool": ("share_to", {"pool": "org:docs"}, {}),
    "search_shared": ("share_finding", {}, {"team": "crew"}),
    "recall_facts": ("learn_fact", {}, {}),
    "memory_recall": ("memory_remember", {}, {}),
}
"""Each tool that searches: the one that stores, the arguments that both take, and where calls are made."""
ROOMS = {
    "search_memory": "agent:bot:u:alice",
    "search_pool": "org:docs",
    "search_shared": "team:crew",
    "recall_facts": "facts:bot:u:alice",
    "memory_recall": "user:alice:long-term:all",
}
"""The namespace that each of them searches."""
DIET = "I am allergic to peanuts."
COLLEAGUES = "Works with Marie on the onboarding project."
OTHERS = [
    "User's company is Acme Corp.",
    "Prefers concise answers over long ones.",
    "Lives in Lyon, near the river.",
    "Has two children, Ana and Leo.",
    "Plays the cello in an amateur orchestra.",
    "Drives an old blue van.",
    "Reads science fiction before going to sleep.",
    "Learns Portuguese with an app.",
    "Runs ten kilometres every Sunday.",
    "Grows tomatoes on the balcony.",
]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Alcove]:
    with Alcove(tmp_path / "memory.db") as opened:
        yield opened


@pytest.fixture
def alice(memory: Alcove) -> AgentsHandle:
    return memory.agents(SPECS).as_user("alice")


def store(memory: Alcove, alice: AgentsHandle, tool: str, contents: list[str]) -> None:
    storing, arguments, where = TOOLS[tool]
    for n, content in enumerate(contents):
        key: Any = {} if tool in ("recall_facts", "memory_recall") else {"key": f"note-{n}"}
        alice.call("bot", storing, content=content, **key, **arguments, **where)
    until(lambda: memory.admin.index().waiting == 0)


def load(memory: Alcove, tool: str, key: str, content: str, index: dict[str, str] | None = None) -> None:
    """Imports a memory into the room that a tool searches."""
    line = {"namespace": ROOMS[tool].split(":"), "key": key, "value": {"content": content, "type": "fact"}}
    assert memory.import_memories([json.dumps(line | {"index": index}).encode()]).imported == 1


def search(alice: AgentsHandle, tool: str, query: str, **more: Any) -> tuple[list[dict[str, Any]], str]:
    """The items that a tool finds, and its text for the model."""
    _, arguments, where = TOOLS[tool]
    answer = alice.call("bot", tool, query=query, **arguments, **where, **more)
    return answer.result["items"], answer.text


@pytest.mark.parametrize("tool", [*TOOLS])
def test_a_question_unrelated_to_everything_gets_the_best_limit_each_marked(
    memory: Alcove, alice: AgentsHandle, tool: str
) -> None:
    assert search(alice, tool, "anything") == ([], "Nothing found.")
    store(memory, alice, tool, KEPT)
    unrelated = "What is the boiling point of tungsten?"
    for limit in (1, 2, 3):
        items, text = search(alice, tool, unrelated, limit=limit)
        assert len(items) == limit
        assert all(0 <= item["relevance"] < 1 for item in items)
        assert all(MARK in line for line in text.splitlines())
    items, text = search(alice, tool, "What does she drink in the morning?")
    assert {item["content"] for item in items} == {*KEPT}
    assert items[0]["content"] == KEPT[0]
    first, *others = text.splitlines()
    assert MARK not in first
    assert all(MARK in line for line in others)


@pytest.mark.parametrize("tool", [*TOOLS])
def test_only_min_relevance_cuts(memory: Alcove, alice: AgentsHandle, tool: str) -> None:
    store(memory, alice, tool, KEPT)
    query = "What does she drink in the morning?"
    items, _ = search(alice, tool, query, min_relevance=0.1)
    assert [item["content"] for item in items] == KEPT[:1]
    assert items == search(alice, tool, query, min_score=0.1)[0]
    assert items == search(alice, tool, query, min_relevance=0.1, min_score=0.1)[0]
    assert search(alice, tool, query, min_relevance=1) == ([], "Nothing found.")
    assert len(search(alice, tool, query, min_relevance=0)[0]) == 3
    with pytest.raises(InvalidRequest, match=r"min_score: expected .*min_relevance"):
        search(alice, tool, query, min_relevance=0.1, min_score=0.2)
    told = next(each for each in alice.tools("bot", "mcp", "crew") if each["name"] == tool)
    assert not {"min_relevance", "min_score"} & {*told["inputSchema"]["properties"]}


@pytest.mark.parametrize(
    ("query", "content"),
    [("what are my dietary restrictions?", DIET), ("Who are the user's colleagues?", COLLEAGUES)],
)
@pytest.mark.parametrize("tool", ["memory_recall", "recall_facts", "search_memory"])
def test_a_question_in_other_words_finds_its_memory(
    memory: Alcove, alice: AgentsHandle, tool: str, query: str, content: str
) -> None:
    store(memory, alice, tool, [DIET, COLLEAGUES, *OTHERS])
    items, _ = search(alice, tool, query)
    assert len(items) == 5
    assert content in [item["content"] for item in items]


def test_a_memory_in_another_language_is_found_among_a_few(memory: Alcove, alice: AgentsHandle) -> None:
    spanish = "Soy alérgica a los cacahuetes."
    german = "Mein Bruder heißt Jonas und wohnt in Bremen."
    store(memory, alice, "memory_recall", [spanish, german, *OTHERS[:3]])
    for query, content in (("What am I allergic to?", spanish), ("What is my brother called?", german)):
        items, _ = search(alice, "memory_recall", query)
        assert content in [item["content"] for item in items]


def test_filters_give_everything_that_matches_whatever_its_relevance(
    memory: Alcove, alice: AgentsHandle
) -> None:
    store(memory, alice, "memory_recall", OTHERS)
    for n, content in enumerate(KEPT):
        scope = ("agent", "all")[n % 2]
        alice.call("bot", "memory_remember", content=content, type="preference", tags=["home"], scope=scope)
    unindexed = {"content": "Keeps bees.", "type": "preference", "tags": ["home"]}
    memory.as_user("alice").put("user:alice:long-term:all", "all-bees", unindexed)
    until(lambda: memory.admin.index().waiting == 0)
    unrelated = "What is the boiling point of tungsten?"
    for conditions in ({"type": "preference"}, {"tags": ["home"]}, {"type": "preference", "tags": ["home"]}):
        items, _ = search(alice, "memory_recall", unrelated, limit=20, **conditions)
        assert {item["content"] for item in items} == {*KEPT, "Keeps bees."}


def test_both_scopes_are_merged_by_relevance_and_each_keeps_the_order_of_its_search(
    memory: Alcove, alice: AgentsHandle
) -> None:
    for n, content in enumerate([DIET, COLLEAGUES, *OTHERS]):
        alice.call("bot", "memory_remember", content=content, scope=("agent", "all")[n % 2])
    until(lambda: memory.admin.index().waiting == 0)
    query = "what are my dietary restrictions?"
    items, _ = search(alice, "memory_recall", query, limit=12)
    assert len(items) == 12
    for scope, room in (("agent", "agent:bot"), ("all", "all")):
        alone = memory.as_user("alice").search(f"user:alice:long-term:{room}", query=query, limit=12)
        assert [item["memory_id"] for item in items if item["scope"] == scope] == [m.key for m in alone]
    most = max(items, key=lambda item: item["relevance"])
    assert most in search(alice, "memory_recall", query, limit=2)[0]


@pytest.mark.parametrize("tool", [*TOOLS])
def test_a_larger_limit_only_adds_to_what_a_smaller_one_gives(
    memory: Alcove, alice: AgentsHandle, tool: str
) -> None:
    contents = [DIET, COLLEAGUES, *OTHERS, *KEPT]
    if tool == "memory_recall":
        for n, content in enumerate(contents):
            alice.call("bot", "memory_remember", content=content, scope=("agent", "all")[n % 2])
        alice.call("bot", "memory_remember", content=DIET, scope="all")
        until(lambda: memory.admin.index().waiting == 0)
    else:
        store(memory, alice, tool, contents)
    for query in (
        "what are my dietary restrictions?",
        "Who are the user's colleagues?",
        "How does she get to work?",
        "What does she do in her free time?",
        "What is the boiling point of tungsten?",
        "Write an e-mail to the landlord.",
    ):
        most = [each["content"] for each in search(alice, tool, query, limit=len(contents))[0]]
        assert len(most) == len(contents)
        for limit in range(1, len(contents)):
            items, _ = search(alice, tool, query, limit=limit)
            assert [each["content"] for each in items] == most[:limit], (query, limit)


@pytest.mark.parametrize("tool", [*TOOLS])
def test_what_has_no_index_text_comes_last_and_is_marked(
    memory: Alcove, alice: AgentsHandle, tool: str
) -> None:
    load(memory, tool, "bees", "Keeps bees.")  # as a put over REST without `index` may store it, too
    items, text = search(alice, tool, "bees")
    assert [item["content"] for item in items] == ["Keeps bees."]
    assert not {"score", "relevance"} & {*items[0]}
    assert MARK in text
    store(memory, alice, tool, KEPT)
    items, text = search(alice, tool, "What does she drink in the morning?")
    assert len(items) == 4
    assert items[0]["content"] == KEPT[0]
    assert items[-1]["content"] == "Keeps bees."
    assert MARK in text.splitlines()[-1]
    assert len(search(alice, tool, "bees", limit=3)[0]) == 3
    assert "Keeps bees." not in str(search(alice, tool, "bees", min_relevance=0.01))


def test_a_list_marks_nothing(memory: Alcove, alice: AgentsHandle) -> None:
    load(memory, "search_memory", "bees", "Keeps bees.")
    assert MARK not in alice.call("bot", "list_memories").text


@pytest.mark.parametrize("room", ["agent:bot:u:alice:abc123", "agent:bot:abc123:u:alice"])
def test_a_search_of_child_namespaces_gives_what_has_no_index_text_last(
    memory: Alcove, alice: AgentsHandle, room: str
) -> None:
    user = memory.as_user("alice")
    user.put(room, "bees", {"content": "Keeps bees."})
    user.put(room, "tea", {"content": KEPT[0]}, index={"content": KEPT[0]}, wait_for_index=True)
    user.put(room, "wasps", {"content": "Fears wasps."})
    items, text = search(alice, "search_memory", "What does she drink?")
    assert [item["key"] for item in items] == ["tea", "wasps", "bees"], "the newest of the others first"
    assert [MARK in line for line in text.splitlines()[1:]] == [True, True]
    assert [item["key"] for item in search(alice, "search_memory", "tea", limit=2)[0]] == ["tea", "wasps"]
    assert "bees" not in str(search(alice, "search_memory", "bees", min_relevance=0.01))


@pytest.mark.parametrize("tool", [*TOOLS])
@pytest.mark.parametrize("indexed", [True, False])
def test_an_answer_that_is_too_large_for_all_hits_says_so(
    memory: Alcove, alice: AgentsHandle, tool: str, indexed: bool
) -> None:
    for n in range(9):
        index = {"content": f"Note {n}"} if indexed else None
        load(memory, tool, f"all-{n}", f"Note {n}: " + "word " * 150_000, index)
    until(lambda: memory.admin.index().waiting == 0)
    _, arguments, where = TOOLS[tool]
    answer = alice.call("bot", tool, query="note", limit=9, **arguments, **where)
    count = len(answer.result["items"])
    assert 1 < count < 9
    note = f"Only the best {count} are shown: more would be too large for one answer."
    assert answer.text.splitlines()[count:] == [note]
    assert answer.result["degraded"] == note
    answer = alice.call("bot", tool, query="note", limit=count, **arguments, **where)
    assert len(answer.result["items"]) == count
    assert "degraded" not in answer.result


def test_without_an_embedder_nothing_is_hidden_either(tmp_path: Path) -> None:
    with Alcove(tmp_path / "memory.db", embedder=None) as memory:
        alice = memory.agents(SPECS).as_user("alice")
        alice.call("bot", "learn_fact", content=KEPT[0])
        items, text = search(alice, "recall_facts", "her favourite beverage")
        assert [item["content"] for item in items] == KEPT[:1]
        assert MARK in text
        assert search(alice, "recall_facts", "her favourite beverage", min_relevance=0.5)[0] == []
