"""The definition of a tool: its function, the schema of its arguments, and its form for each provider."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct, structs

from alcove.agents.tools.answers import Answer
from alcove.agents.tools.arguments import HIDDEN_ARGUMENT, HIDDEN_CHOICES, argument_record
from alcove.agents.tools.turn import Turn
from alcove.core.decoding import convert
from alcove.core.errors import InvalidRequest
from alcove.core.validation import to_invalid_request

log = logging.getLogger("alcove")
Format = Literal["openai", "responses", "anthropic", "mcp"]
"""OpenAI's chat API or its Responses API, Anthropic's API, or MCP."""
FORMATS: tuple[Format, ...] = get_args(Format)
_SCHEMA_FIELD = {"anthropic": "input_schema", "mcp": "inputSchema"}
"""The field for the schema of a tool's arguments, where it is not `parameters`."""


@dataclass(frozen=True)
class Tool:
    """A function whose parameters after the turn are the tool's arguments."""

    name: str
    description: str
    run: Callable[..., Answer]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Arguments that take one of a few names of the spec; a default counts if it is among them."""
    leading_arguments: tuple[tuple[str, Any], ...] = ()
    """Names and types of arguments before those of the function."""
    defaults: tuple[tuple[str, str], ...] = ()
    """Defaults of arguments that the spec decides, by name."""
    is_read_only: bool = False
    """Whether it only reads, and so waits for no commit."""
    uses_scratch_room: bool = False
    """Whether it works in the scratch room that its argument `namespace` names."""
    when_to_use: str = ""
    """Its purpose and the cost of a wrong choice, for agents that have several tools that store things."""

    @functools.cached_property
    def arguments(self) -> type[Struct]:
        """The record of the arguments."""
        return argument_record(self.run, self.leading_arguments, self.defaults)

    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, without references, in keywords that every provider takes."""
        schema = msgspec.json.schema_components([self.arguments])[1]["Arguments"]
        merged = {name: _merge_nullable(argument) for name, argument in schema["properties"].items()}
        properties = {name: _simplify(each) for name, each in merged.items() if HIDDEN_ARGUMENT not in each}
        required = [*schema["required"]]
        for name, names in self.choices.items():
            properties[name]["enum"] = [*names]
            if properties[name].get("default", names[0]) not in names:
                del properties[name]["default"]
                required.append(name)
        return {"type": "object", "properties": properties, "required": required}

    def call(self, turn: Turn, arguments: Mapping[str, Any]) -> Answer:
        """Runs the tool with those of the arguments that it declares."""
        record = self.arguments
        if undeclared := sorted(arguments.keys() - {*record.__struct_fields__}):
            names = ", ".join(undeclared)[:200]
            log.info("%s: dropped arguments that it does not declare: %s", self.name, names)
        try:
            values = structs.asdict(convert({**arguments}, record))
        except msgspec.ValidationError as error:
            raise to_invalid_request(error, record, "arguments") from None
        for name, names_allowed in self.choices.items():
            if values[name] not in names_allowed:
                raise InvalidRequest(name, f"one of {', '.join(names_allowed)}")
        return self.run(turn, **values)


def render_tool(tool: Tool, format: str) -> dict[str, Any]:
    """A tool in the form that a provider takes."""
    if format not in FORMATS:
        raise InvalidRequest("format", f"one of {', '.join(FORMATS)}")
    schema = _SCHEMA_FIELD.get(format, "parameters")
    definition = {"name": tool.name, "description": tool.description, schema: tool.parameters()}
    if format == "openai":
        return {"type": "function", "function": definition}
    return {"type": "function", **definition, "strict": False} if format == "responses" else definition


def _merge_nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an argument without `anyOf`, also where the argument may be null."""
    alternatives = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return {**schema, **(alternatives[0] if alternatives else {})}


def _simplify(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an argument without what some provider refuses: bounds, which a call checks, and null.

    A default stays where it is a name; the defaults of limits show in the answers.
    """
    if "enum" in schema:
        choices = [each for each in schema["enum"] if each not in schema.get(HIDDEN_CHOICES, ())]
        schema = {**schema, "type": "string", "enum": choices}
    return {
        keyword: schema[keyword]
        for keyword in ("type", "description", "enum", "items", "default")
        if keyword in schema and (keyword != "default" or isinstance(schema[keyword], str))
    }
