"""A tool: what a model is told of it, what it takes, and what it does within one turn's rooms."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Struct, defstruct, structs

from alcove.agents.rooms import Rooms
from alcove.agents.runs import Runs
from alcove.agents.tools.answers import Answer
from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.records import Entry, FoundMemories, Memory
from alcove.store.memories import Memories
from alcove.store.validation import refusal

log = logging.getLogger("alcove")
SCHEMA_FIELD = {"openai": "parameters", "anthropic": "input_schema", "mcp": "inputSchema"}
"""The providers, and what each calls the schema of a tool's arguments."""


class Room(NamedTuple):
    """A room that a tool works in, as the agent acting for the user, with a grant for this room alone."""

    memories: Memories
    who: Principal
    at: Namespace

    def get(self, key: str) -> Memory | None:
        return self.memories.get(self.who, self.at, key)

    def put(self, key: str, value: dict[str, Any], index: dict[str, str]) -> Entry:
        return self.memories.put(self.who, self.at, key, value, index=index)

    def delete(self, key: str) -> bool:
        """Whether there was anything to delete."""
        return self.memories.delete(self.who, self.at, key).deleted

    def search(self, **asked: Any) -> FoundMemories:
        return self.memories.search(self.who, self.at, **asked, exact=self.alone)

    @property
    def alone(self) -> bool:
        """Whether a room is its namespace alone: a user's is, since a key says nothing of what lies below."""
        return self.at.owner is not None


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

    def room(self, at: Namespace | None) -> Room:
        """One of this turn's rooms; an agent without the room has no tool that asks for it."""
        assert at is not None
        return Room(self.memories, self.within(at), at)


@dataclass(frozen=True)
class Tool:
    """One tool, whoever it is rendered for: a function whose parameters after the turn are its arguments."""

    name: str
    description: str
    run: Callable[..., Answer]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Arguments that take one of a few names, which the spec knows; a default counts if it is among them."""
    before: tuple[tuple[str, Any], ...] = ()
    """Names and types of arguments before those of the function."""
    reads: bool = False
    """Whether it only reads, and so waits for no commit."""
    scratch: bool = False
    """Whether it works in the scratch room that its argument `namespace` names."""
    choose: str = ""
    """What it is for and what a wrong choice costs, where an agent has other tools that keep things."""

    @functools.cached_property
    def arguments(self) -> type[Struct]:
        """The record of the arguments."""
        return _arguments(self.run, self.before)

    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, in one piece and in words that every provider takes."""
        schema = msgspec.json.schema_components([self.arguments])[1]["Arguments"]
        properties = {name: _plain(about) for name, about in schema["properties"].items()}
        required = [*schema["required"]]
        for name, names in self.choices.items():
            properties[name]["enum"] = [*names]
            if properties[name].get("default", names[0]) not in names:
                del properties[name]["default"]
                required.append(name)
        return {"type": "object", "properties": properties, "required": required}

    def called(self, turn: Turn, given: Mapping[str, Any]) -> Answer:
        """Runs the tool with those of the arguments that it declares."""
        record = self.arguments
        if dropped := sorted(given.keys() - {*record.__struct_fields__}):
            names = ", ".join(dropped)[:200]
            log.info("%s: dropped arguments that it does not declare: %s", self.name, names)
        try:
            arguments = structs.asdict(msgspec.convert({**given}, record))
        except msgspec.ValidationError as error:
            raise refusal(error, record, "arguments") from None
        for name, allowed in self.choices.items():
            if arguments[name] not in allowed:
                raise InvalidRequest(name, f"one of {', '.join(allowed)}")
        return self.run(turn, **arguments)


@functools.cache
def _arguments(run: Callable[..., Answer], before: tuple[tuple[str, Any], ...]) -> type[Struct]:
    """The record of a function's parameters after the turn; a tool has one, for whichever agent."""
    hints = get_type_hints(run, include_extras=True)
    fields: list[Any] = [*before]
    for parameter in [*signature(run).parameters.values()][1:]:
        if parameter.kind is not parameter.VAR_KEYWORD:
            told = (parameter.name, hints[parameter.name])
            fields.append(told if parameter.default is parameter.empty else (*told, parameter.default))
    record = defstruct("Arguments", fields)
    msgspec.json.Decoder(record)  # two threads that are the first to convert to a record crash msgspec 0.22
    return record


def rendered(tool: Tool, format: str) -> dict[str, Any]:
    """A tool as a provider wants to be told of it."""
    if format not in SCHEMA_FIELD:
        raise InvalidRequest("format", "openai, anthropic or mcp")
    about = {"name": tool.name, "description": tool.description, SCHEMA_FIELD[format]: tool.parameters()}
    return {"type": "function", "function": about} if format == "openai" else about


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
