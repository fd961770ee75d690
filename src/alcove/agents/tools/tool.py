"""The definition of a tool: its function, the schema of its arguments, and its form for each provider."""

from __future__ import annotations

import functools
import logging
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from inspect import signature
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct, defstruct, structs

from alcove.agents.rooms import Turn
from alcove.agents.tools.answers import Answer
from alcove.core.decoding import convert
from alcove.core.errors import InvalidRequest
from alcove.core.validation import NOT_BLANK, parse_min_relevance, to_invalid_request

log = logging.getLogger("alcove")
Format = Literal["openai", "responses", "anthropic", "mcp"]
"""OpenAI's chat API or its Responses API, Anthropic's API, or MCP."""
FORMATS: tuple[Format, ...] = get_args(Format)
_SCHEMA_FIELD = {"anthropic": "input_schema", "mcp": "inputSchema"}
"""The field for the schema of a tool's arguments, where it is not `parameters`."""
TEXTS = tomllib.loads((files("alcove.agents.tools") / "tools.toml").read_text("utf-8"))
READ_ONLY_TOOLS = frozenset(name for name, texts in TEXTS.items() if texts.get("is_read_only"))
"""The names of the tools that only read: their calls need not wait for those that write."""

# Types of arguments

MAX_HITS = 100
"""Memories that a call gives at most, as a search of the service does."""
HIDDEN_ARGUMENT = "hidden_argument"
"""Marks, in its schema, an argument that calls may pass but models do not see."""
HIDDEN_CHOICES = "hidden_choices"
"""Lists, in the schema of an argument with a few choices, those that models do not see."""
NewKey = Annotated[str, Meta(min_length=1, max_length=1024, description="A short name.")]
Key = Annotated[str, Meta(min_length=1, max_length=1024, description="Its key.")]
Content = Annotated[str, Meta(pattern=NOT_BLANK, description="In full sentences.")]
Query = Annotated[str, Meta(pattern=NOT_BLANK, description="In your own words.")]
Limit = Annotated[int, Meta(ge=1, le=MAX_HITS, description=f"1 to {MAX_HITS}.")]
MinRelevance = Annotated[float, Meta(ge=0, le=1, extra_json_schema={HIDDEN_ARGUMENT: True})] | None
"""Programs may pass it; a model does not see it, because it would cost tokens in each turn."""
Offset = Annotated[int, Meta(ge=0, le=10**9, description="How many to skip.")]


@dataclass(frozen=True)
class Tool:
    """A function whose parameters after the turn are the tool's arguments."""

    name: str
    run: Callable[..., Answer]
    description: str
    when_to_use: str = ""
    """Its purpose and the cost of a wrong choice, for agents that have several tools that store things."""
    is_read_only: bool = False
    """Whether it only reads, and so waits for no commit."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Arguments that take one of a few names of the spec; a default counts if it is among them."""
    leading_arguments: tuple[tuple[str, Any], ...] = ()
    """Names and types of arguments before those of the function."""
    defaults: tuple[tuple[str, str], ...] = ()
    """Defaults of arguments that the spec decides, by name."""

    @functools.cached_property
    def arguments(self) -> type[Struct]:
        """The record of the arguments."""
        return _argument_record(self.run, self.leading_arguments, self.defaults)

    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, without references, in keywords that every provider takes."""
        schema = msgspec.json.schema_components([self.arguments])[1]["Arguments"]
        simple = {name: _simplify(argument) for name, argument in schema["properties"].items()}
        properties = {name: each for name, each in simple.items() if each}
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
        for name, choices in self.choices.items():
            if values[name] not in choices:
                raise InvalidRequest(name, f"one of {', '.join(choices)}")
        if "min_score" in values:
            values["min_relevance"] = parse_min_relevance(values["min_relevance"], values.pop("min_score"))
        return self.run(turn, **values)


def make_tool(
    run: Callable[..., Answer],
    name: str | None = None,
    words: Mapping[str, object] = MappingProxyType({}),
    **options: Any,
) -> Tool:
    """A tool with its texts from `tools.toml`; its name is that of the function unless another is given.

    `words`: fill the placeholders of the description. `options`: other fields of the tool.
    """
    texts = TEXTS[name := name or run.__name__]
    return Tool(name, run, **{**texts, "description": texts["description"].format(**words)}, **options)


def render_tool(tool: Tool, format: str) -> dict[str, Any]:
    """A tool in the form that a provider takes."""
    if format not in FORMATS:
        raise InvalidRequest("format", f"one of {', '.join(FORMATS)}")
    schema = _SCHEMA_FIELD.get(format, "parameters")
    definition = {"name": tool.name, "description": tool.description, schema: tool.parameters()}
    if format == "openai":
        return {"type": "function", "function": definition}
    return {"type": "function", **definition, "strict": False} if format == "responses" else definition


@functools.cache
def _argument_record(
    run: Callable[..., Any], leading: tuple[tuple[str, Any], ...], defaults: tuple[tuple[str, str], ...]
) -> type[Struct]:
    """A record of `leading` arguments and the parameters of a function after its first, the turn.

    `defaults` replace those of the function. Agents with the same defaults share a record.
    """
    hints, fields = get_type_hints(run, include_extras=True), list[Any](leading)
    for parameter in [*signature(run).parameters.values()][1:]:
        if parameter.kind is not parameter.VAR_KEYWORD:
            default = dict(defaults).get(parameter.name, parameter.default)
            optional = () if default is parameter.empty else (default,)
            fields.append((parameter.name, hints[parameter.name], *optional))
            if parameter.name == "min_relevance":
                fields.append(("min_score", hints[parameter.name], None))  # its name in earlier versions
    return defstruct("Arguments", fields)


def _simplify(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an argument without what some provider refuses: bounds, which a call checks, and null.

    A default stays where it is a name; the defaults of limits show in the answers. Empty for an argument
    that models do not see.
    """
    alternatives = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    schema = {**schema, **(alternatives[0] if alternatives else {})}
    if HIDDEN_ARGUMENT in schema:
        return {}
    if "enum" in schema:
        choices = [each for each in schema["enum"] if each not in schema.get(HIDDEN_CHOICES, ())]
        schema = {**schema, "type": "string", "enum": choices}
    return {
        keyword: schema[keyword]
        for keyword in ("type", "description", "enum", "items", "default")
        if keyword in schema and (keyword != "default" or isinstance(schema[keyword], str))
    }
