"""Tools that search say that nothing fits, and do not show the least bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove
from tests.support.patience import until

ON = {"enabled": True}
SPECS = {"agents": [{"name": "bot", "memory": {"private": ON, "facts": ON, "long_term": ON}}]}
NOTHING = "Nothing that is kept here fits this question."
KEPT = [
    "She drinks green tea every morning.",
    "Her car is red and needs new tyres.",
    "Their dog fears thunder.",
]
KEEPING = {"search_memory": "remember", "recall_facts": "learn_fact", "memory_recall": "memory_remember"}


@pytest.mark.parametrize("tool", [*KEEPING])
def test_a_tool_that_searches_says_that_nothing_fits(tmp_path: Path, tool: str) -> None:
    with Alcove(tmp_path / "memory.db") as memory:
        alice = memory.agents(SPECS).as_user("alice")
        assert alice.call("bot", tool, query="anything").text == "Nothing found."
        for n, content in enumerate(KEPT):
            key: Any = {"key": f"note-{n}"} if tool == "search_memory" else {}
            alice.call("bot", KEEPING[tool], content=content, **key)
        until(lambda: memory.admin.index().waiting == 0)
        answer = alice.call("bot", tool, query="What does she drink in the morning?")
        assert [item["content"] for item in answer.result["items"]] == KEPT[:1]
        assert 0.1 < answer.result["items"][0]["relevance"] <= 1
        nonsense = alice.call("bot", tool, query="What is the boiling point of tungsten?")
        assert (nonsense.result["items"], nonsense.text) == (
            [],
            "Nothing that is kept here fits this question.",
        )
        every = alice.call("bot", tool, query="What is the boiling point of tungsten?", min_score=0)
        assert len(every.result["items"]) == 3


def test_what_is_not_embedded_is_not_judged_by_words_alone(tmp_path: Path) -> None:
    with Alcove(tmp_path / "memory.db", embedder=None) as memory:
        alice = memory.agents(SPECS).as_user("alice")
        alice.call("bot", "learn_fact", content=KEPT[0])
        answer = alice.call("bot", "recall_facts", query="her favourite beverage")
        assert len(answer.result["items"]) == 1
        strict = alice.call("bot", "recall_facts", query="her favourite beverage", min_score=0.5)
        assert strict.result["items"] == []
