"""Checks values against the fields of our records; unlike a decoder, it reports every mistake."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, structs

from alcove.agents.specs.aliases import ACCEPTED_TOO, alias_names, unknown_field
from alcove.agents.specs.problems import Path, dotted
from alcove.agents.specs.records import Agent, AgentMemory
from alcove.core.decoding import convert


def find_mistakes(value: object, kind: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """The places in a value that do not fit a type, each with a message."""
    record = next((option for option in _options(kind) if _is_record(option)), None)
    item = next((get_args(option)[0] for option in _options(kind) if get_origin(option) is tuple), None)
    if record and isinstance(value, dict):
        fields = structs.fields(record)
        names = [field.name for field in fields]
        for name in value:
            if name not in names:
                aliases = alias_names(path) if record in (Agent, AgentMemory) else []
                yield (*path, name), unknown_field(name, dict.fromkeys((*names, *aliases)))
        for field in fields:
            place = (*path, field.name)
            if field.name in value:
                yield from find_mistakes(value[field.name], field.type, place)
            elif field.required:
                yield place, f"expected {describe_type(field.type)}; it is required"
    elif item is not None and isinstance(value, list):
        for index, each in enumerate(value):
            yield from find_mistakes(each, item, (*path, index))
        if not value and not _fits(value, kind):
            yield path, "expected a list that is not empty"
    elif not _fits(value, kind):
        other = f" or {ACCEPTED_TOO[dotted(path)]}" if dotted(path) in ACCEPTED_TOO else ""
        yield path, f"expected {describe_type(kind)}{other}"


def describe_type(kind: Any) -> str:
    """What a field takes, in words."""
    bare, options = _bare(kind), _options(kind)
    if len(options) > 1:
        return " or ".join(map(describe_type, options))
    if _is_record(bare):
        return f"a block with {', '.join(field.name for field in structs.fields(bare))}"
    if get_origin(bare) is Literal:
        return f"one of {', '.join(get_args(bare))}"
    if get_origin(bare) is tuple:
        return "a list"
    limits = [each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Meta)]
    between = next((f" from {limit.ge} to {limit.le}" for limit in limits if limit.ge is not None), "")
    longest = next((f" of 1 to {limit.max_length} characters" for limit in limits if limit.max_length), "")
    return {
        bool: "true or false", int: f"a whole number{between}", float: f"a number{between}",
        str: f"text{longest}", type(None): "nothing",
    }[bare]  # fmt: skip


def _fits(value: object, kind: Any) -> bool:
    try:
        convert(value, kind)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def _bare(kind: Any) -> Any:
    """A type without its annotations."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _options(kind: Any) -> tuple[Any, ...]:
    """The types of which a value may have any."""
    bare = _bare(kind)
    return get_args(bare) if get_origin(bare) in (Union, types.UnionType) else (bare,)


def _is_record(kind: Any) -> bool:
    return isinstance(_bare(kind), type(Struct))
