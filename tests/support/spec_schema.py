"""The JSON Schema of spec files, for editors: made from the records and the table of published spellings.

`schema.json` beside the specs is what it says, and is written anew by
`ALCOVE_RECORD=1 python -m pytest tests/unit/test_agents_schema.py`.
"""

from __future__ import annotations

import tomllib
from copy import deepcopy
from importlib.resources import files
from itertools import product
from typing import Any

import msgspec

from alcove.agents.specs.reader import ACCEPTED_TOO, OTHER_PROGRAMS
from alcove.agents.specs.records import Agent, Knowledge, Team
from alcove.server.openapi import _field_text

_TABLE = tomllib.loads((files("alcove.agents.specs") / "aliases.toml").read_text("utf-8"))
_ALIASES, _CHOICES, _GROUPS = _TABLE["aliases"], _TABLE["choices"], _TABLE["groups"]
_NULL = {"type": "null"}
_IGNORED = {"description": "Not used here."}
_ACCEPTED_TOO = {"a number": {"type": "number"}, "true or false": {"type": "boolean"}}


def json_schema() -> dict[str, Any]:
    """The schema of one document, in every spelling that is read."""
    parts = msgspec.json.schema_components((Agent, Team, Knowledge), ref_template="#/$defs/{name}")[1]
    for record, part in parts.items():
        for field, about in part["properties"].items():
            if "$ref" not in about and (told := _field_text(record, field)):
                about.setdefault("description", told)
    aliases = _Aliases(parts)
    parts["PublishedAgent"] = aliases.published_agent()
    lists = {name: _list(_ref(name.removesuffix("s").capitalize())) for name in ("teams", "knowledge")}
    lists["agents"] = _list({"anyOf": [_ref("Agent"), _ref("PublishedAgent")]})
    parts["Lists"] = _block({name: _or_null(each) for name, each in lists.items()})
    for kind, spec in (("Agent", "PublishedAgent"), ("Team", "Team")):
        parts[f"{kind}Spec"] = {**parts[spec], "title": f"{kind}Spec", "required": []}
        parts[f"{kind}Spec"].pop("anyOf", None)
        metadata = aliases.group("resource.metadata")
        if kind == "Team":
            del metadata["properties"]["version"]
        fields = {
            "api_version": _or_null({"type": "string"}),
            "kind": {"enum": [kind]},
            "metadata": {**metadata, "required": ["name"]},
            "spec": _or_null(_ref(f"{kind}Spec")) if kind == "Agent" else _ref(f"{kind}Spec"),
        }
        parts[f"{kind}Resource"] = _block(fields, required=["kind", "metadata"])
    documents = ("Lists", "Agent", "PublishedAgent", "Team", "AgentResource", "TeamResource")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Agents and teams of Alcove",
        "anyOf": [*map(_ref, documents), _NULL],
        "$defs": parts,
    }
    return _in_every_case(schema)  # type: ignore[no-any-return]


class _Aliases:
    """The table of published spellings, as properties of blocks."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts
        memory = parts["AgentMemory"]["properties"]
        for (*above, field), accepted in ACCEPTED_TOO.items():
            block = memory if above else parts["Agent"]["properties"]
            known = block[field].pop("anyOf", None) or [{"$ref": block[field].pop("$ref")}]
            block[field]["anyOf"] = [*known, _ACCEPTED_TOO[accepted]]
        parts["Agent"]["properties"]["memory"] = _or_null(_ref("AgentMemory"))

    def published_agent(self) -> dict[str, Any]:
        """An agent with the fields of published spellings, of which it has at least one."""
        agent = deepcopy(self._parts["Agent"])
        memory = deepcopy(self._parts["AgentMemory"])
        memory["properties"]["types"] = self.group("memory.types")
        ignored = dict.fromkeys(OTHER_PROGRAMS, _IGNORED)
        names = [name for name in _children("") if name not in ("memory", "resource")]
        agent["properties"] |= {**{name: self._field(name) for name in names}, **ignored}
        agent["properties"]["memory"] = _or_null(memory)
        marks = [name for each in names for name in _spellings(each)]
        typed = {"required": ["memory"], "properties": {"memory": {"type": "object", "required": ["types"]}}}
        agent["anyOf"] = [*({"required": [mark]} for mark in marks), typed]
        return {**agent, "title": "PublishedAgent"}

    def group(self, path: str) -> dict[str, Any]:
        """A block that only groups aliases; of `memory.types` the list of them."""
        fields = {name: self._field(f"{path}.{name}") for name in _children(path)}
        if path == "memory.types":
            for id, block in fields.items():
                block["properties"]["id"] = {"enum": [id]}
                block["required"] = ["id"]
            return _list({"anyOf": [*fields.values()]})
        ignored = [*OTHER_PROGRAMS, *_GROUPS[path]]
        block = _block({**dict.fromkeys(ignored, _IGNORED), **fields})
        return _block(fields) | {"additionalProperties": True} if "*" in ignored else block

    def _field(self, path: str) -> dict[str, Any]:
        if path in _GROUPS:
            return self.group(path)
        if path in _CHOICES:
            return {"enum": [*_CHOICES[path]]}
        schema = self._own(_ALIASES[path])
        if below := {name: self._field(f"{path}.{name}") for name in _children(path)}:
            schema = deepcopy(schema)
            schema["properties"] |= below
        return _or_null(schema) if path in _TABLE["nullable"] else schema

    def _own(self, path: str) -> dict[str, Any]:
        """The schema of what is at a path of our own form."""
        schema: dict[str, Any] = _ref("Agent")
        for name in (*path.split("."), None):
            options = [schema, *schema.get("anyOf", ())]
            reference = next((each["$ref"] for each in options if "$ref" in each), None)
            block = self._parts[reference.rpartition("/")[2]] if reference else schema
            if name is None:
                return deepcopy(block)
            schema = block["properties"][name]
        raise AssertionError


def _children(path: str) -> list[str]:
    start = f"{path}." if path else ""
    below = (each.removeprefix(start).partition(".")[0] for each in _ALIASES if each.startswith(start))
    return [*dict.fromkeys(below)]


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, _NULL]}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _block(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    known = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**known, "required": required} if required else known


def _in_every_case(node: Any) -> Any:
    """A copy in which every property may be written in snake_case, in camelCase, or in a mixture."""
    if isinstance(node, list):
        return [*map(_in_every_case, node)]
    if not isinstance(node, dict):
        return node
    copy = {name: _in_every_case(each) for name, each in node.items()}
    if "properties" in node:
        named = copy["properties"].items()
        copy["properties"] = {spelling: each for name, each in named for spelling in _spellings(name)}
    return copy


def _spellings(name: str) -> list[str]:
    first, *others = name.split("_")
    endings = product(*((f"_{word}", word.capitalize()) for word in others))
    return ["".join((first, *each)) for each in endings]
