"""Coming from Letta, Zep and Graphiti: files that the models of their own packages wrote."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove
from tests.support.command import Command
from tests.support.concurrent_workers import QUIET
from tests.support.other_projects import FILES, written

MARCH = datetime(2025, 3, 1, 9, tzinfo=UTC)
SPECS = "agents: [{name: scout, memory: {long_term: {}, conversation: {}, session_memory: true}}]"


@pytest.fixture
def command(path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("ALCOVE_EMBEDDER", "none")  # nothing here is looked for by meaning
    Alcove(path, settings=QUIET, embedder=None).close()
    return Command(str(path))


def held(command: Command, *prefix: str) -> list[Any]:
    with Alcove(command.path, settings=QUIET, embedder=None) as store:
        user = prefix[-1] if prefix[0] == "turns" else prefix[1]
        return [*store.as_user(user).search(prefix)]


def left(told: dict[str, Any]) -> dict[str, int]:
    return {each["kind"]: each["count"] for each in told["not_mapped"]}


def test_blocks_are_long_term_memories_and_the_rest_is_told_of(command: Command) -> None:
    told = command.json("import", "--from", "letta", FILES / "letta.af", "--user", "ann")
    assert told["imported"] == 2
    assert left(told) == {"tool": 1, "system prompt": 1, "block": 1, "message": 8}
    human, persona = held(command, "user", "ann", "long-term", "all")
    assert human.key == "all-letta-Samantha-human"
    assert human.value["content"] == "Name: Änne. Drinks green tea."
    assert (human.value["tags"], human.value["metadata"]) == (["human"], {"source": "form"})
    assert human.created_at == datetime(2025, 3, 2, 9, tzinfo=UTC)
    assert persona.value["origin"]["description"] == "Who I am"
    assert command.json("import", "--from", "letta", FILES / "letta.af", "--user", "ann")["imported"] == 0


def test_nothing_of_letta_is_brought_unless_it_is_said_for_whom(command: Command) -> None:
    told = command.json("import", "--from", "letta", FILES / "letta.af", "--agent", "scout")
    assert told["imported"] == 0
    assert left(told) == {"tool": 1, "system prompt": 1, "block": 1, "message": 8} | {"block": 1}


def test_a_conversation_with_letta_goes_on_with_an_agent_of_ours(command: Command, tmp_path: Path) -> None:
    words = "import", "--from", "letta", FILES / "letta.af", "--user", "ann", "--agent", "scout"
    told = command.json(*words)
    assert (told["imported"], told["failures"]) == (7, 0)
    assert left(told) == {
        "tool": 1, "system prompt": 1, "block": 1, "message": 1, "thought": 1, "reasoning": 1,
    }  # fmt: skip
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    scout = Command(command.at, options=("--agents", specs, "--as-user", "ann"))
    shown = scout.json("session", "show", "scout", "letta-Samantha")
    said = [(each["role"], each.get("content")) for each in shown["said"]]
    assert said == [
        ("user", "Ich heiße Änne ☕"), ("assistant", "Hallo Änne!"), ("assistant", None), ("tool", "[]"),
        ("assistant", "I know nothing of tea yet."),
    ]  # fmt: skip
    assert shown["said"][2]["tool_calls"][0]["function"]["name"] == "archival_memory_search"
    assert shown["last_at"].startswith("2025-03-01T09:00:23")
    scout.run("session", "add", "scout", "letta-Samantha", '{"role": "user", "content": "I am back"}')
    assert command.json(*words)["imported"] == 0
    again = scout.json("session", "show", "scout", "letta-Samantha")["said"]
    assert [each.get("content") for each in again] == [*(content for _, content in said), "I am back"]
    assert "Hallo Änne!" in scout.says("context", "scout", "letta-Samantha", "and now?", "--json")


def test_the_first_kind_of_agent_file_and_passages_are_read_as_well(command: Command) -> None:
    command.run("import", "--from", "letta", FILES / "letta-first.af", "--user", "bo", "--agent", "scout")
    [block] = held(command, "user", "bo", "long-term", "agent", "scout")
    assert (block.value["content"], block.value["metadata"]) == ("Name: Bo", {"a": 1})
    [turn] = held(command, "turns", "scout", "u", "bo")
    assert turn.value == {"role": "user", "content": "Hello there", "at": "2025-03-01T09:00:00Z"}
    command.run("import", "--from", "letta", FILES / "letta-passages.json", "--user", "cy")
    oslo, bees = held(command, "user", "cy", "long-term", "all")
    assert oslo.value["content"] == "Änne went to Oslo in May."
    assert (oslo.value["tags"], oslo.value["metadata"], bees.created_at) == (
        ["travel-notes"],
        {"page": 0},
        MARCH,
    )


def test_a_broken_message_holds_up_no_other(command: Command, tmp_path: Path) -> None:
    said = [
        {"role": "user", "content": "first", "created_at": "2025-01-01T00:00:00Z"},
        {"role": "user", "content": {"odd": 1}},
        {"role": "tool", "content": "answers nothing"},
        {
            "role": "assistant",
            "content": "last",
            "tool_calls": [{"id": 1}],
            "created_at": "2025-01-01T00:00:00Z",
        },
        {"role": "assistant", "content": "end", "created_at": "2025-01-01T00:00:00Z"},
    ]
    file = written(tmp_path / "x.af", {"agents": [{"name": "x", "messages": said}], "blocks": [{"value": 5}]})
    told = command.json("import", "--from", "letta", file, "--user", "ann", "--agent", "scout", code=1)
    assert told["imported"] == 2
    assert {each["record"]: each["error"] for each in told["failed"]} == {
        "blocks[0]": "value: expected a text, not a number",
        "messages[1]": "text: expected a text, not an object",
        "messages[3]": "name: expected a text that is not blank",
    }
    assert left(told) == {"message": 1}


def test_facts_and_nodes_of_graphiti_are_memories_of_the_group(command: Command) -> None:
    told = command.json("import", "--from", "zep", FILES / "graphiti.json")
    assert (told["imported"], told["failures"]) == (3, 0)
    assert left(told) == {"episodic edge": 1, "fact": 1, "node": 1, "message": 2, "episode": 1}
    node, fact = held(command, "user", "aenne", "long-term", "all")
    assert (node.value["content"], node.value["metadata"]) == ("Änne: Lives in Köln.", {"age": 41})
    assert fact.value["content"] == "Änne lives in Köln ☕"
    assert fact.value["valid_at"] == "2025-03-01T09:00:00+00:00"
    assert fact.value["origin"]["target_node_name"] == "Köln"
    assert "fact_embedding" not in fact.value["origin"]
    assert (fact.created_at, fact.expires_at) == (MARCH, None)
    [rents] = held(command, "user", "bo", "long-term", "all")
    assert rents.expires_at == datetime(2099, 1, 1, tzinfo=UTC)
    told = command.json("import", "--from", "zep", FILES / "graphiti.json", "--agent", "scout")
    assert (told["imported"], told["unchanged"]) == (2, 3)
    later, earlier = held(command, "turns", "scout", "u", "aenne")
    assert (earlier.value["role"], earlier.value["content"]) == ("user", "Ich wohne in Köln")
    assert (later.value["role"], later.value["content"]) == ("assistant", "Schön!")


def test_zep_says_whose_things_are_by_user_graph_and_thread(command: Command) -> None:
    words = "import", "--from", "zep", FILES / "zep.json", "--agent", "scout"
    told = command.json(*words)
    assert told["imported"] == 5
    assert [(each["kind"], each["count"]) for each in told["not_mapped"]] == [
        ("fact", 1), ("fact", 1), ("metadata object", 1), ("message", 1), ("episode", 1),
    ]  # fmt: skip
    assert [each.value["content"] for each in held(command, "user", "bo")] == ["Bo keeps bees"]
    later, earlier = held(command, "turns", "scout", "u", "aenne")
    assert earlier.namespace[-1] == "zep-first-talk"
    assert (earlier.value["name"], earlier.value["content"]) == ("Änne", "Ich wohne in Köln")
    assert later.created_at == datetime(2025, 3, 1, 9, 0, 5, 123456, tzinfo=UTC)
    assert command.json(*words)["imported"] == 0
    assert command.json(*words, "--user", "zoe")["imported"] == 1  # the fact of a graph that nobody has


@pytest.mark.parametrize("kind", ["edges", "nodes", "messages"])
def test_a_list_or_a_page_of_one_kind_is_enough(command: Command, tmp_path: Path, kind: str) -> None:
    records = json.loads((FILES / "zep.json").read_text())[kind]
    counts = []
    for shape in (records, {"items": records}, {kind: {"items": records}}):
        user = uuid.uuid4().hex
        file = written(tmp_path / "page.json", shape)
        counts.append(
            command.json("import", "--from", "zep", file, "--user", user, "--agent", "scout")["imported"]
        )
    assert counts == [{"edges": 3, "nodes": 1, "messages": 2}[kind]] * 3


def test_older_sessions_of_zep_and_one_thread_alone_are_read(command: Command, tmp_path: Path) -> None:
    said = [
        {
            "uuid": "m",
            "role": "Änne",
            "role_type": "user",
            "content": "Hi",
            "created_at": "2023-05-01T00:00:00Z",
        }
    ]
    session = {"session_id": "s1", "user_id": "ann", "messages": said}
    thread = {"user_id": "bo", "messages": said, "total_count": 1}
    for name, document in (("a", {"sessions": [session]}), ("b", thread)):
        command.run("import", "--from", "zep", written(tmp_path / name, document), "--agent", "scout")
    [turn], [other] = held(command, "turns", "scout", "u", "ann"), held(command, "turns", "scout", "u", "bo")
    assert (turn.namespace[-1], turn.value["name"], other.namespace[-1]) == ("zep-s1", "Änne", "zep")
