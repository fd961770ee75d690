"""The JSON Schema of spec files, for editors; `schema.json` beside this file is what it says."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import msgspec

from alcove.agents.specs import Specs


def json_schema() -> dict[str, Any]:
    """The schema of one file, with every field in both spellings."""
    (root,), components = msgspec.json.schema_components([Specs], ref_template="#/$defs/{name}")
    for component in components.values():
        properties = component.get("properties", {})
        component["properties"] = _both_spellings(properties)
    memory = components["Memory"]["properties"]
    for name in ("session_memory", "sessionMemory"):
        memory[name] = {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/SessionMemory"}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Agents and teams of Alcove",
        **root,
        "$defs": components,
    }


def rendered() -> str:
    """The text of `schema.json`."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"


def published() -> str:
    """The committed text, as it is given to editors."""
    return files("alcove.agents").joinpath("schema.json").read_text(encoding="utf-8")


def _both_spellings(properties: dict[str, Any]) -> dict[str, Any]:
    both = {}
    for name, schema in properties.items():
        both[name] = schema
        both[re.sub(r"_([a-z])", lambda match: match[1].upper(), name)] = schema
    return both
