"""A tool: what a model is told of it, what it takes, and what it does within one turn's rooms."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from alcove.agents.rooms import Rooms
from alcove.agents.runs import Runs
from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.store.memories import Memories
from alcove.store.validation import choices

log = logging.getLogger("alcove")


class Answer(NamedTuple):
    """What a call gives: a structured result, and the same in words for the model."""

    result: Any
    text: str


@dataclass(frozen=True)
class Turn:
    """Everything a tool works with; bound before the model is asked, so that no argument can change it."""

    memories: Memories
    runs: Runs
    rooms: Rooms
    caller: Principal
    """The user, for whom the agent acts."""
    tools: Mapping[str, Tool] = field(default_factory=dict)
    _within: dict[tuple[object, ...], Principal] = field(default_factory=dict)

    def within(self, room: Namespace, *, written_by: tuple[str | None, ...] | None = None) -> Principal:
        """The agent acting for the user, with a grant for one room of this turn and for nothing else."""
        if known := self._within.get((room, written_by)):
            return known
        caller, agent = self.caller, self.rooms.agent.name
        grant = Grant(room, ("read",), written_by) if written_by else self.rooms.grant(room)
        who = Principal(caller.user_id, caller.client_id, caller.claims, agent, (grant,))
        self._within[room, written_by] = who
        return who


@dataclass(frozen=True)
class Tool:
    """One tool, whoever it is rendered for."""

    name: str
    description: str
    arguments: type[Struct]
    run: Callable[[Turn, Any], Answer]
    choices: Mapping[str, tuple[str, ...]] | None = None
    """Arguments that take one of a few names, which the spec knows."""
    required: tuple[str, ...] = ()
    """Arguments that are required for this agent, although they have a default for others."""
    reads: bool = False
    """Whether it only reads, and so waits for no commit."""
    scratch: bool = False
    """Whether it works in the scratch room that its argument `namespace` names."""
    choose: str = ""
    """What it is for and what a wrong choice costs, where an agent has other tools that keep things."""

    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, in one piece and in words that every provider takes."""
        (reference,), parts = msgspec.json.schema_components([self.arguments])
        schema: dict[str, Any] = parts[reference["$ref"].rpartition("/")[2]]
        properties = {name: _plain(about) for name, about in schema["properties"].items()}
        for name, names in (self.choices or {}).items():
            properties[name]["enum"] = [*names]
        for name in self.required:
            properties[name].pop("default", None)
        required = [*schema.get("required", []), *self.required]
        return {"type": "object", "properties": properties, "required": required}

    def called(self, turn: Turn, given: Mapping[str, Any]) -> Answer:
        """Runs the tool with those of the arguments that it declares."""
        declared = self.arguments.__struct_fields__
        if dropped := sorted(set(given) - set(declared)):
            log.info(
                "%s: dropped arguments that it does not declare: %s", self.name, ", ".join(dropped)[:200]
            )
        arguments = {name: given[name] for name in declared if name in given}
        for name in self.required:
            if name not in arguments:
                raise InvalidRequest(name, f"one of {', '.join((self.choices or {}).get(name, ()))}")
        try:
            parsed = msgspec.convert(arguments, self.arguments)
        except msgspec.ValidationError as error:
            refusal = _refusal(str(error))
            allowed = choices(self.arguments, refusal.field) if "enum" in refusal.expected else None
            raise InvalidRequest(refusal.field, allowed or refusal.expected) from None
        for name, names in (self.choices or {}).items():
            if getattr(parsed, name) not in names:
                raise InvalidRequest(name, f"one of {', '.join(names)}")
        return self.run(turn, parsed)


def rendered(tool: Tool, format: str) -> dict[str, Any]:
    """A tool as a provider wants to be told of it."""
    about = {"name": tool.name, "description": tool.description}
    match format:
        case "openai":
            return {"type": "function", "function": {**about, "parameters": tool.parameters()}}
        case "anthropic":
            return {**about, "input_schema": tool.parameters()}
        case "mcp":
            return {**about, "inputSchema": tool.parameters()}
        case _:
            raise InvalidRequest("format", "openai, anthropic or mcp")


def _plain(about: Mapping[str, Any]) -> dict[str, Any]:
    """One argument without what some provider refuses: bounds, which a call checks, and null for absence.

    A default is told where it is a name; how many there are by default shows.
    """
    alternatives = [each for each in about.get("anyOf", ()) if each != {"type": "null"}]
    told = {**about, **(alternatives[0] if alternatives else {})}
    if "enum" in told:
        told["type"] = "string"
    if not isinstance(told.get("default"), str):
        told.pop("default", None)
    return {name: told[name] for name in ("type", "description", "enum", "items", "default") if name in told}


def _refusal(complaint: str) -> InvalidRequest:
    """The validator's words, with the argument first."""
    what, _, where = complaint.partition(" - at `$.")
    if "missing required field" in what:
        return InvalidRequest(what.split("`")[1], "to be given")
    expected = "text that is not blank" if "regex" in what else what.removeprefix("Expected ")[:200]
    return InvalidRequest(where.rstrip("`") or "arguments", expected)
