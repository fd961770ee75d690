"""The schema for editors says what the loader takes."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from alcove.agents import schema
from alcove.agents.spellings import normalise

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


def test_the_committed_schema_is_the_one_the_records_make() -> None:
    assert schema.published() == schema.rendered()


def test_the_schema_takes_both_spellings_of_every_field() -> None:
    jsonschema_rs.validate(schema.json_schema(), OURS)
    assert normalise(OURS).wrong == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"agents": [{}]},
        {"agents": [{"name": "a", "memory": {"facts": {"max_facts": 0}}}]},
        {"agents": [{"name": "a", "memory": {"scratch": ["attic"]}}]},
        {"agents": [{"name": "a", "colour": "red"}]},
        {"teams": [{"name": "t", "workers": []}]},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(wrong: dict[str, Any]) -> None:
    assert not jsonschema_rs.is_valid(schema.json_schema(), wrong)
