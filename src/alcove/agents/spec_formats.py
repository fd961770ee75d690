"""The forms in which specs may be written: our own, and four that other programs have published.

Each form is a record, whose fields say what may stand there and, with `At`, where in our own records it
belongs. `spec_reading` reads files by them, and `tests/support/spec_schema.py` makes the JSON Schema for
editors from them (`schema.json` beside this file). The published forms are `primitives.memory` on an agent,
`systemPrompt` for its instructions, `memory.types` with ids and configs, and
`apiVersion / kind / metadata / spec`.

Every name may be written in snake_case or in camelCase.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from msgspec import Meta, Struct, defstruct

from alcove.agents import specs
from alcove.agents.specs import PRIVATE_TEMPLATE, Agent, Count, MemoryScope, Name, Team, Template


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
        "annotations", "description", "display_name", "labels", "max_iterations", "max_tokens", "max_turns",
        "mcp_servers", "metadata", "model", "model_config", "provider", "provider_overrides", "tags",
        "temperature", "tools", "top_p",
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


class Hooks(Struct, frozen=True):
    """What happens around each turn; only the storing of turns is ours."""

    auto_memory: Annotated[bool, At(("auto_memory",))] = False


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
    recall_budget: Annotated[Count, At((*_LONG_TERM, "recall_budget"))] = 50
    scope: Annotated[MemoryScope, At((*_LONG_TERM, "scope"))] = "agent"


class LongTermMemory(Struct, forbid_unknown_fields=True, tag_field="id", tag="long_term"):
    """What is known for good."""

    enabled: bool = True
    config: Annotated[LongTermConfig | None, At(_LONG_TERM)] = None


_Type = Annotated[WorkingMemory, At(_CONVERSATION)] | Annotated[LongTermMemory, At(_LONG_TERM)]
_Version = Annotated[
    str | float | None, At(("version",), means=lambda written: None if written is None else str(written))
]


def _form(name: str, *fields: Any, base: type[Struct] | None = None) -> Any:
    """A record with further fields, or with more types for some, than another has."""
    bases = (base,) if base else None
    return defstruct(name, fields, bases=bases, kw_only=True, forbid_unknown_fields=True)


_WrittenMemory = _form(
    "WrittenMemory",
    ("session_memory", specs.SessionMemory | bool, specs.SessionMemory(enabled=False)),
    ("types", Annotated[tuple[_Type, ...], At()], ()),
    base=specs.AgentMemory,
)
WrittenAgent = _form(
    "WrittenAgent", ("version", _Version, None), ("memory", _WrittenMemory | None, None), base=Agent
)
PublishedAgent = _form(
    "PublishedAgent",
    ("system_prompt", Annotated[str, At(("instructions",))], ""),
    ("primitives", Annotated[Primitives, At()], Primitives()),
    ("hooks", Annotated[Hooks, At()], Hooks()),
    *_FOREIGN,
    base=WrittenAgent,
)
_UNNAMED = ("name", Name, "")  # what is in the metadata is not required here
_AgentSpec = _form("AgentSpec", _UNNAMED, base=PublishedAgent)
_TeamMetadata = _form("TeamMetadata", ("name", Name), ("namespace", Unused, None), *_FOREIGN)
_AgentMetadata = _form("AgentMetadata", ("version", _Version, None), base=_TeamMetadata)


def _resource(kind: str, metadata: Any, *spec: Any) -> Any:
    return _form(
        f"{kind}Resource",
        ("api_version", Annotated[str | None, At()], None),
        ("kind", Annotated[Literal[kind], At()]),
        ("spec", *spec),
        ("metadata", Annotated[metadata, At()]),
    )


_FIELDS = At(expected="a block of fields, or nothing")
_TeamSpec = _form("TeamSpec", _UNNAMED, base=Team)
RESOURCES = {
    "Agent": _resource("Agent", _AgentMetadata, Annotated[_AgentSpec | None, _FIELDS], None),
    "Team": _resource("Team", _TeamMetadata, Annotated[_TeamSpec, At()]),
}
"""A document that is one agent or team, with its name in its metadata, by its `kind`."""
LISTS = _form(
    "Lists",
    ("agents", tuple[WrittenAgent, ...] | None, None),  # type: ignore[valid-type]
    ("teams", tuple[Team, ...] | None, None),
    ("knowledge", tuple[specs.Knowledge, ...] | None, None),
)
"""A document with any number of each."""


def agent_form(item: object) -> Any:
    """The form that an agent is written in: only a published one may say things to other programs."""
    written = {snake(name): each for name, each in item.items()} if isinstance(item, dict) else {}
    memory = written.get("memory")
    typed = isinstance(memory, dict) and "types" in memory
    return PublishedAgent if typed or {"system_prompt", "primitives"} & written.keys() else WrittenAgent


@functools.lru_cache(4096)
def snake(name: str) -> str:
    """A name in snake_case, however it is written."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: "_" + m[1].lower(), name)
