"""The schema for editors says what the loader takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from alcove.agents.specs import loading
from tests.support.spec_schema import json_schema
from tests.unit.conftest import SCHEMA

COMMITTED = Path(loading.__file__).parents[1] / "schema.json"
OURS: dict[str, Any] = {
    "agents": [
        {
            "name": "researcher",
            "shared_with": ["*"],
            "memory": {
                "private": {"namespace": "agent:{agent_name}:{session_id}"},
                "scratch": ["agent"],
                "session_memory": True,
                "facts": {"maxFacts": 10},
            },
        }
    ],
    "teams": [{"name": "team", "workers": ["researcher"], "sharedMemoryNamespace": None}],
    "knowledge": [{"name": "handbook", "path": "docs"}],
}


PUBLISHED: list[dict[str, Any]] = [
    {
        "agents": [
            {
                "name": "a",
                "model": "m",
                "primitives": {
                    "memory": {"enabled": True, "namespace": "a:{session_id}", "shared_namespaces": ["org"]},
                    "tools": {"any": 1},
                },
            },
            {"name": "b", "primitives": {"memory": None}, "memory": None, "version": 2},
        ],
        "teams": None,
        "knowledge": None,
    },
    {
        "name": "helper",
        "role": "assistant",
        "system_prompt": "Be kind.",
        "max_tokens": 10,
        "auto_memory": True,
        "shared_with": None,
        "memory": {
            "conversation": {"window_size": 12, "max_tokens": None},
            "knowledge": {"sources": ["faq"], "retrieval_limit": 3, "similarity_threshold": 1},
            "long_term": {"recall_budget": 5},
            "session_memory": {"idle_seconds": 9},
        },
    },
    {
        "agents": [
            {
                "name": "planner",
                "temperature": 0.2,
                "memory": {
                    "session_memory": True,
                    "types": [
                        {
                            "id": "working_memory",
                            "config": {"max_tokens": 20, "compaction_strategy": "truncate"},
                        },
                        {"id": "long_term", "enabled": False, "config": {"max_memories": 4}},
                    ],
                },
            }
        ]
    },
    {
        "apiVersion": "v1",
        "kind": "Agent",
        "metadata": {"name": "courier", "version": 1.5, "labels": {"a": "b"}, "namespace": "n"},
        "spec": {"memory": {"facts": {"max_facts": 7}}, "mcp_servers": []},
    },
    {"kind": "Agent", "metadata": {"name": "idle"}, "spec": None},
    {
        "apiVersion": None,
        "kind": "Team",
        "metadata": {"name": "crew"},
        "spec": {"workers": ["helper"], "shared_memory_namespace": "team:x", "mode": "parallel"},
    },
    {"name": "pair", "workers": ["helper"], "shared_with": []},
]


def test_the_committed_schema_is_the_one_the_records_make() -> None:
    """Written anew with `ALCOVE_RECORD=1`."""
    made = msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"
    if os.environ.get("ALCOVE_RECORD"):
        COMMITTED.write_text(made, encoding="utf-8")
    assert COMMITTED.read_text(encoding="utf-8") == made


def test_the_schema_takes_both_spellings_of_every_field() -> None:
    SCHEMA.validate(OURS)
    assert loading.build_catalogue(Path("."), {Path("agents.yaml"): yaml.safe_dump(OURS).encode()}, 5)


@settings(deadline=None)
@given(document=st.sampled_from([OURS, *PUBLISHED]), data=st.data())
def test_the_schema_takes_every_spelling_that_the_loader_takes(
    document: dict[str, Any], data: st.DataObject
) -> None:
    """Each name with an underscore in camelCase or not, one after the other."""

    def respelled(node: Any) -> Any:
        if isinstance(node, list):
            return [*map(respelled, node)]
        if not isinstance(node, dict):
            return node
        return {respelling(name): respelled(each) for name, each in node.items()}

    def respelling(name: str) -> str:
        first, *others = name.split("_")
        return first + "".join(
            word.capitalize() if data.draw(st.booleans()) else f"_{word}" for word in others
        )

    written = respelled(document)
    files: dict[Path, bytes | str] = {Path("agents.yaml"): yaml.safe_dump(written).encode()}
    if written.get("name") != "helper":
        files[Path("helper.yaml")] = b"name: helper"  # whom teams name
    loading.build_catalogue(Path("."), files, 5)
    SCHEMA.validate(written)


@pytest.mark.parametrize(
    "wrong",
    [
        {"agents": [{"name": "a", "model": "m"}]},
        {"agents": [{"name": "a", "primitives": {"memory": {"spaces": []}}}]},
        {"agents": [{"name": "a", "memory": {"types": [{"id": "dreams"}]}}]},
        {"kind": "Agent", "metadata": {}},
        {"kind": "Robot", "metadata": {"name": "a"}},
        {"kind": "Agent", "metadata": {"name": "a"}, "spec": {"colour": "red"}},
        {"agents": [{}]},
        {"agents": [{"name": "a", "memory": {"facts": {"max_facts": 0}}}]},
        {"agents": [{"name": "a", "memory": {"scratch": ["attic"]}}]},
        {"agents": [{"name": "a", "colour": "red"}]},
        {"teams": [{"name": "t", "workers": []}]},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(wrong: dict[str, Any]) -> None:
    assert not SCHEMA.is_valid(wrong)
