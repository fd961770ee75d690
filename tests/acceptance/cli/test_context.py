"""Conversations, contexts and knowledge on the command line, on a file and on a URL alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Command, on_either
from tests.support.conversation_service import written
from tests.support.waiting import until


@pytest.fixture(params=["file", "url"])
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Command]:
    with on_either(request.param, tmp_path, written(tmp_path)) as command:
        yield command


def test_a_conversation_is_kept_shown_ended_and_deleted(front: Command) -> None:
    said = front.says("session", "add", "talk", "monday", "user=Hello there", "assistant=Hi!")
    assert said == "2 messages added, 2 in all\n"
    function = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    call = json.dumps({"role": "assistant", "tool_calls": [function]})
    assert front.json("session", "add", "talk", "monday", call) == {"added": 1, "messages": 3}
    assert "messages[0].role: expected " in front.refuses("session", "add", "talk", "monday", "nobody=x")
    assert front.says("session", "list", "talk").splitlines()[1].split()[:2] == ["monday", "3"]
    shown = front.says("session", "show", "talk", "monday", "--limit", "2").splitlines()
    assert len(shown) == 2
    assert shown[0].endswith("assistant: Hi!")
    assert front.says("session", "end", "talk", "monday") == "ended monday, 3 messages\n"
    assert "--yes" in front.refuses("session", "delete", "talk", "monday")
    assert (
        front.says("session", "delete", "talk", "monday", "--yes") == "deleted 1 conversation, 3 messages\n"
    )
    front.refuses("session", "show", "talk", "monday", code=1)
    front.says("session", "add", "talk", "a", "user=x")
    assert front.says("session", "keep", "talk", "0", "--yes") == "deleted 1 conversation, 1 message\n"


def test_a_context_is_shown_with_its_receipt(front: Command) -> None:
    front.says("session", "add", "talk", "s", "user=My dog is called Rex", "assistant=Nice")
    said = front.says("context", "talk", "s", "What is my dog called?", "--budget", "500")
    assert "[system]\nYou talk." in said
    assert "[user]\nMy dog is called Rex" in said
    assert "of 500 tokens (o200k_base)" in said
    assert front.json("context", "talk", "s", "Hello")["receipt"]["tiers"]["conversation"]["items"]
    assert "budget_tokens: expected at least" in front.refuses("context", "talk", "s", "x", "--budget", "3")


def test_a_summary_is_shown_and_forgotten(front: Command) -> None:
    front.says("session", "add", "rolling", "s", "user=I moved to Lisbon in May 2026.", "assistant=Noted.")
    front.says("session", "end", "rolling", "s")
    if front.remote:
        until(lambda: front.json("summary", "show", "rolling")["conversations"])
    assert "user: I moved to Lisbon in May 2026." in front.says("summary", "show", "rolling")
    assert front.says("summary", "forget", "rolling", "--yes") == "forgotten\n"
    assert front.says("summary", "show", "rolling") == "0 conversations\n"


def test_knowledge_is_synced_shown_searched_and_put(front: Command, tmp_path: Path) -> None:
    synced = front.says("knowledge", "sync", "manuals").splitlines()
    assert synced[0].split()[:4] == ["source", "documents", "chunks", "waiting"]
    assert synced[1].split()[:4] == ["manuals", "1", "2", "0"]
    assert [line.split()[0] for line in front.says("knowledge", "status").splitlines()[1:]] == [
        "manuals",
        "secrets",
    ]
    found = front.says(
        "knowledge", "search", "manuals", "how often is it descaled?", "--limit", "1"
    ).splitlines()
    assert "espresso.md" in found[1]
    assert front.says("knowledge", "search", "manuals", "descaled", "--threshold", "1", code=0)
    (tmp_path / "bike.md").write_text("# Bike\n\nOil the chain.\n")
    assert front.says("knowledge", "put", "manuals", tmp_path / "bike.md") == "bike.md: 1 chunk\n"
    assert "bike.md" in front.says("knowledge", "documents", "manuals")
    assert "Oil the chain." in front.says("knowledge", "show", "manuals", "bike.md")
    assert front.says("knowledge", "remove", "manuals", "bike.md", "--yes") == "removed bike.md\n"
    front.refuses("knowledge", "show", "manuals", "bike.md", code=1)
    (tmp_path / "manuals" / "broken.pdf").write_bytes(b"no pdf")
    assert front.says("knowledge", "sync", "manuals", code=1)
