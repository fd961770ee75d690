"""The JSON types and values of parameters, such as namespaces and times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, field, structs

from alcove.core.clock import parse_moment, to_datetime
from alcove.core.namespace import Namespace

Segments = Annotated[list[str], Meta(description="A namespace, segment by segment.")]
Instant = Annotated[str, Meta(description="A time in RFC 3339, with its zone.")]
_encode = msgspec.json.Encoder().encode


def json_type(hint: Any) -> Any:
    """The type in JSON of a method's parameter: a list for a sequence, a string for a moment."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is object:
        return Any
    if origin in (Union, UnionType):
        if _is_moment(parts):
            parts = (Instant, *(part for part in parts if part not in (str, datetime)))
        elif _is_namespace(parts):
            parts = (Segments, *(part for part in parts if part not in (str, Sequence[str])))
        return Union[tuple(map(json_type, parts))]  # noqa: UP007  a union of types known at run time only
    if origin is Mapping:
        return dict[tuple(map(json_type, parts))]  # type: ignore[misc]
    return list[json_type(parts[0])] if origin in (Sequence, Iterable) else hint  # type: ignore[misc]


def fields_of(record: type[Struct]) -> list[Any]:
    """The fields of a record, as `defstruct` takes them."""
    return [
        (each.name, json_type(each.type), field(default=each.default, default_factory=each.default_factory))  # type: ignore[call-overload]
        for each in structs.fields(record)
    ]


def to_json_value(value: Any, hint: Any, name: str) -> object:
    """An argument as a client sends it: a namespace as its segments, a moment as text.

    `hint` is the type of the parameter; `name` is the parameter's name, for errors.
    """
    parts = get_args(hint)
    if value is None:
        return None
    if _is_moment(parts):
        moment = parse_moment(value, name)
        return None if moment is None else to_datetime(moment).isoformat()
    if _is_namespace(parts):
        return [*Namespace.checked(value, name)]
    if isinstance(value, Struct):
        return msgspec.json.decode(_encode(value))
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        return value
    return [msgspec.json.decode(_encode(each)) if isinstance(each, Struct) else each for each in value]


def _is_moment(parts: Sequence[Any]) -> bool:
    return datetime in parts and str in parts


def _is_namespace(parts: Sequence[Any]) -> bool:
    return Sequence[str] in parts and str in parts
