"""The JSON Schema of spec files, for editors; `schema.json` beside this file is what it says.

Our own fields are read off the records; what `spec_aliases` takes of the published forms is added to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from itertools import product
from typing import Any, TypeAlias

import msgspec

from alcove.agents.spec_aliases import FOREIGN, KINDS, LISTS, STRATEGIES, TYPES
from alcove.agents.specs import Specs

Schema: TypeAlias = dict[str, Any]
_NULL: Schema = {"type": "null"}
_UNUSED: Schema = {"description": "Not used here."}


def json_schema() -> Schema:
    """The schema of one document, in every form that the loader takes."""
    _, parts = msgspec.json.schema_components([Specs], ref_template="#/$defs/{name}")
    specs, agent, memory = (parts[name]["properties"] for name in ("Specs", "Agent", "Memory"))
    memory["session_memory"] = _either({"type": "boolean"}, memory["session_memory"])
    memory["types"] = {"type": "array", "items": _either(*(_type(id, parts) for id in TYPES))}
    agent["memory"] = _either(agent["memory"], _NULL)
    agent["version"] = _either(*agent["version"].pop("anyOf"), {"type": "number"})
    parts["PublishedAgent"] = _published(parts)
    an_agent = {"$ref": "#/$defs/PublishedAgent", "required": ["name"], "anyOf": _MARKS}
    specs["agents"]["items"] = _either(specs["agents"]["items"], an_agent)
    specs.update({name: _either(specs[name], _NULL) for name in LISTS})
    parts["Resource"] = _resource(parts)
    whole = ({"$ref": f"#/$defs/{name}"} for name in ("Specs", "Agent", "Team", "Resource"))
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Agents and teams of Alcove",
        **_either(*whole, an_agent, _NULL),
        "$defs": parts,
    }
    return _in_every_case(schema)  # type: ignore[no-any-return]


def rendered() -> str:
    """The text of `schema.json`."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"


def published() -> str:
    """The committed text, as it is given to editors."""
    return files("alcove.agents").joinpath("schema.json").read_text(encoding="utf-8")


_MARKS: list[Schema] = [
    *({"required": [name]} for name in ("system_prompt", "systemPrompt", "primitives")),
    {"required": ["memory"], "properties": {"memory": {"type": "object", "required": ["types"]}}},
]
"""What tells an agent of a published form, which may say things to other programs."""


def _published(parts: Schema) -> Schema:
    agent, private = parts["Agent"]["properties"], parts["Private"]["properties"]
    pools = parts["Memory"]["properties"]["pools"]
    memory = {"enabled": private["enabled"], "namespace": private["namespace"], "shared_namespaces": pools}
    primitives = {"type": "object", "properties": {"memory": _either(_block(memory), _NULL)}}
    ours = {**agent, "system_prompt": agent["instructions"], "primitives": primitives}
    return _block({**dict.fromkeys(sorted(FOREIGN), _UNUSED), **ours})


def _resource(parts: Schema) -> Schema:
    agent, team = parts["Agent"]["properties"], {**parts["Team"], "required": ["workers"]}
    unused = dict.fromkeys(sorted({*FOREIGN, "namespace"}), _UNUSED)
    metadata = _block({**unused, "name": agent["name"], "version": agent["version"]}, ["name"])
    kinds = {"apiVersion": {"type": ["string", "null"]}, "kind": {"enum": [*KINDS]}}
    spec = _either({"$ref": "#/$defs/PublishedAgent"}, team, _NULL)
    return _block({**kinds, "metadata": metadata, "spec": spec}, ["kind", "metadata"])


def _type(id: str, parts: Schema) -> Schema:
    """One of `memory.types`, whose settings stand for fields of our blocks."""
    settings = {}
    for name, (block, field) in TYPES[id].items():
        part = parts["Memory"]["properties"][block]["$ref"].rpartition("/")[2]
        settings[name] = parts[part]["properties"][field]
        if name == "compaction_strategy":
            settings[name] = {"enum": [*STRATEGIES]}
    config = _either(_block(settings), _NULL)
    return _block({"id": {"const": id}, "enabled": {"type": "boolean"}, "config": config}, ["id"])


def _block(properties: Schema, required: Sequence[str] = ()) -> Schema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas]}


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
