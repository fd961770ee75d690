"""The JSON Schema of spec files, for editors: made from the forms in which specs are read.

`schema.json` beside the forms is what it says, and is written anew by
`ALCOVE_RECORD=1 python -m pytest tests/unit/test_agents_schema.py`.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec

from alcove.agents.spec_formats import LISTS, RESOURCES, PublishedAgent, WrittenAgent
from alcove.agents.specs import Team
from alcove.server.openapi import _told

_OURS = {
    "WrittenAgent": "Agent",
    "PublishedAgent": "Agent",
    "AgentSpec": "Agent",
    "AgentMetadata": "Agent",
    "WrittenMemory": "AgentMemory",
    "TeamSpec": "Team",
    "PrimitiveMemory": "Private",
}
"""Forms, and the records in which fields of the same names say the same."""


def json_schema() -> dict[str, Any]:
    """The schema of one document, in every form that is read."""
    forms = (LISTS, WrittenAgent, PublishedAgent, Team, *RESOURCES.values())
    references, parts = msgspec.json.schema_components(forms, ref_template="#/$defs/{name}")
    listed = parts["Lists"]["properties"]["agents"]["anyOf"][0]
    listed["items"] = {"anyOf": references[1:3]}
    for name, part in parts.items():
        for field, about in part["properties"].items():
            if "$ref" not in about and (told := _told(_OURS.get(name, name), field)):
                about.setdefault("description", told)
    marks = [{"required": [name]} for name in ("system_prompt", "systemPrompt", "primitives")]
    typed = {"required": ["memory"], "properties": {"memory": {"type": "object", "required": ["types"]}}}
    parts["PublishedAgent"]["anyOf"] = [*marks, typed]  # as `agent_form` tells it from others
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Agents and teams of Alcove",
        "anyOf": [*references, {"type": "null"}],
        "$defs": parts,
    }
    return _in_every_case(schema)  # type: ignore[no-any-return]


def _in_every_case(node: Any) -> Any:
    """A copy in which every property may be written in snake_case, in camelCase, or in a mixture."""
    if isinstance(node, list):
        return [*map(_in_every_case, node)]
    if not isinstance(node, dict):
        return node
    copy = {name: _in_every_case(each) for name, each in node.items()}
    if "properties" in node:
        named = copy["properties"].items()
        copy["properties"] = {alias: each for name, each in named for alias in _aliases(name)}
    return copy


def _aliases(name: str) -> list[str]:
    first, *others = name.split("_")
    endings = product(*((f"_{word}", word.capitalize()) for word in others))
    return ["".join((first, *each)) for each in endings]
