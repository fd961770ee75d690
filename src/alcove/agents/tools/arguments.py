"""The arguments of tools: types that several tools share, and the record of a tool's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import signature
from typing import Annotated, Any, get_type_hints

from msgspec import Meta, Struct, defstruct

from alcove.core.validation import NOT_BLANK

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
MinRelevance = Annotated[float, Meta(ge=0, le=1, extra_json_schema={HIDDEN_ARGUMENT: True})]
"""Programs may pass it; a model does not see it, because it would cost tokens in each turn."""
Offset = Annotated[int, Meta(ge=0, le=10**9, description="How many to skip.")]


@functools.cache
def argument_record(
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
    return defstruct("Arguments", fields)
