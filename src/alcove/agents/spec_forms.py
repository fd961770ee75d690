"""The forms in which specs may be written: our own, and four that other programs have published.

Each form is a record, whose fields say what may stand there and, with `At`, where in our own records it
belongs. `spec_reading` reads files by them, and `json_schema` makes the schema for editors from them
(`schema.json` beside this file). The published forms are `primitives.memory` on an agent, `systemPrompt` for
its instructions, `memory.types` with ids and configs, and `apiVersion / kind / metadata / spec`.

Every name may be written in snake_case or in camelCase.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct, defstruct

from alcove.agents.specs import (
    PRIVATE_TEMPLATE,
    Agent,
    Count,
    Knowledge,
    Memory,
    Name,
    SessionMemory,
    Team,
    Template,
)


class At(NamedTuple):
    """Where in our own record a field of another form belongs, and what it says there."""

    path: tuple[str, ...] = ()
    """Empty for a block whose fields are the record's own, and for what the record does not have."""
    means: Callable[[Any], object] = lambda written: written
    """What is said there, from what is written."""
    unless_off: bool = False
    """Whether it counts only where the block that it stands in is not off."""
    expected: str | None = None
    """What it takes, in words, where they are not to be its fields."""


Unused: TypeAlias = Annotated[Any, Meta(description="Not used here.")]
"""What a published form says to other programs: left out with a warning."""
_FOREIGN = [
    (name, Unused, None)
    for name in (
        "annotations", "description", "display_name", "labels", "max_iterations", "max_tokens", "mcp_servers",
        "metadata", "model", "model_config", "provider", "tags", "temperature", "tools", "top_p",
    )
]  # fmt: skip
_CONVERSATION, _LONG_TERM = ("memory", "conversation"), ("memory", "long_term")


class PrimitiveMemory(Struct, forbid_unknown_fields=True):
    """A private room and pools."""

    enabled: bool = True
    namespace: Template = PRIVATE_TEMPLATE
    shared_namespaces: Annotated[tuple[Template, ...], At(("memory", "pools"), unless_off=True)] = ()


class Primitives(Struct, frozen=True):
    """What an agent is made of; only its memory is ours."""

    memory: Annotated[PrimitiveMemory | None, At(("memory", "private"))] = None


class WorkingMemoryConfig(Struct, forbid_unknown_fields=True):
    max_tokens: Count | None = None
    compaction_strategy: Annotated[
        Literal["summarize", "truncate"], At((*_CONVERSATION, "summarize"), means="summarize".__eq__)
    ] = "truncate"


class WorkingMemory(Struct, forbid_unknown_fields=True, tag_field="id", tag="working_memory"):
    """The conversation."""

    enabled: bool = True
    config: Annotated[WorkingMemoryConfig | None, At(_CONVERSATION)] = None


class LongTermConfig(Struct, forbid_unknown_fields=True):
    max_memories: Annotated[Count, At((*_LONG_TERM, "recall_budget"))] = 50


class LongTermMemory(Struct, forbid_unknown_fields=True, tag_field="id", tag="long_term"):
    """What is known for good."""

    enabled: bool = True
    config: Annotated[LongTermConfig | None, At(_LONG_TERM)] = None


_Type = Annotated[WorkingMemory, At(_CONVERSATION)] | Annotated[LongTermMemory, At(_LONG_TERM)]
_Version = Annotated[
    str | float | None,
    Meta(description="Shown, not used."),
    At(("version",), means=lambda written: None if written is None else str(written)),
]


def _form(name: str, *fields: Any, base: type[Struct] | None = None) -> Any:
    """A record with further fields, or with more types for some, than another has."""
    bases = (base,) if base else None
    return defstruct(name, fields, bases=bases, kw_only=True, forbid_unknown_fields=True)


_WrittenMemory = _form(
    "WrittenMemory",
    ("session_memory", SessionMemory | bool, SessionMemory(enabled=False)),
    ("types", tuple[_Type, ...], ()),
    base=Memory,
)
_WrittenAgent = _form(
    "WrittenAgent", ("version", _Version, None), ("memory", _WrittenMemory | None, None), base=Agent
)
_PublishedAgent = _form(
    "PublishedAgent",
    ("system_prompt", Annotated[str, At(("instructions",))], ""),
    ("primitives", Annotated[Primitives, At()], Primitives()),
    *_FOREIGN,
    base=_WrittenAgent,
)
_UNNAMED = ("name", Name, "")  # what is in the metadata is not required here
_AgentSpec = _form("AgentSpec", _UNNAMED, base=_PublishedAgent)
_TeamMetadata = _form("TeamMetadata", ("name", Name), ("namespace", Unused, None), *_FOREIGN)
_AgentMetadata = _form("AgentMetadata", ("version", _Version, None), base=_TeamMetadata)
_API_VERSION = ("api_version", Annotated[str | None, At()], None)
RESOURCES = {
    "Agent": _form(
        "AgentResource",
        _API_VERSION,
        ("kind", Annotated[Literal["Agent"], At()]),
        ("spec", Annotated[_AgentSpec | None, At(expected="a block of fields, or nothing")], None),
        ("metadata", Annotated[_AgentMetadata, At()]),
    ),
    "Team": _form(
        "TeamResource",
        _API_VERSION,
        ("kind", Annotated[Literal["Team"], At()]),
        ("spec", Annotated[_form("TeamSpec", _UNNAMED, base=Team), At()]),
        ("metadata", Annotated[_TeamMetadata, At()]),
    ),
}
"""A document that is one agent or team, with its name in its metadata, by its `kind`."""
LISTS = _form(
    "Lists",
    ("agents", tuple[_WrittenAgent, ...] | None, None),  # type: ignore[valid-type]
    ("teams", tuple[Team, ...] | None, None),
    ("knowledge", tuple[Knowledge, ...] | None, None),
)
"""A document with any number of each."""


def agent_form(names: set[str], memory: object) -> Any:
    """The form of an agent with these fields: only a published one may say things to other programs."""
    published = not names.isdisjoint(("system_prompt", "primitives"))
    return _PublishedAgent if published or (isinstance(memory, dict) and "types" in memory) else _WrittenAgent


def json_schema() -> dict[str, Any]:
    """The schema of one document, in every form that is read."""
    forms = (LISTS, _WrittenAgent, _PublishedAgent, Team, *RESOURCES.values())
    references, parts = msgspec.json.schema_components(forms, ref_template="#/$defs/{name}")
    listed = parts["Lists"]["properties"]["agents"]["anyOf"][0]
    listed["items"] = {"anyOf": references[1:3]}
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
