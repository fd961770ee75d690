"""How values go over the wire: types that only Python knows, and times that are spelled twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, field, structs

from alcove.core.clock import parse_moment, to_datetime
from alcove.core.namespace import Namespace
from alcove.core.records import Entry

Segments = Annotated[list[str], Meta(description="A namespace, segment by segment.")]
Instant = Annotated[str, Meta(description="A time in RFC 3339, with its zone.")]
SPELLED_TWICE = {"created_at": "createdAt", "expires_at": "expiresAt"}
"""Times of a memory whose second spelling is for clients of an older contract."""
_encode = msgspec.json.Encoder().encode


def on_wire(hint: Any) -> Any:
    """The type that JSON has for a parameter of a method: lists for sequences, text for moments."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is object:
        return Any
    if origin in (Union, UnionType):
        if _is_moment(parts):
            parts = (Instant, *(part for part in parts if part not in (str, datetime)))
        elif _is_address(parts):
            parts = (Segments, *(part for part in parts if part not in (str, Sequence[str])))
        return Union[tuple(map(on_wire, parts))]  # noqa: UP007  a union of types that are not known here
    if origin is Mapping:
        return dict[tuple(map(on_wire, parts))]  # type: ignore[misc]
    return list[on_wire(parts[0])] if origin in (Sequence, Iterable) else hint  # type: ignore[misc]


def fields_of(record: type[Struct]) -> list[Any]:
    """The fields of a record, as `defstruct` takes them."""
    return [
        (each.name, on_wire(each.type), field(default=each.default, default_factory=each.default_factory))  # type: ignore[call-overload]
        for each in structs.fields(record)
    ]


def sent(value: Any, hint: Any, name: str) -> object:
    """A parameter as a client sends it: a namespace by its segments, a moment as text."""
    parts = get_args(hint)
    if value is None:
        return None
    if _is_moment(parts):
        at = parse_moment(value, name)
        return None if at is None else to_datetime(at).isoformat()
    if _is_address(parts):
        return [*Namespace.checked(value, name)]
    if isinstance(value, Struct):
        return msgspec.json.decode(_encode(value))
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        return value
    return [msgspec.json.decode(_encode(each)) if isinstance(each, Struct) else each for each in value]


def _is_moment(parts: Sequence[Any]) -> bool:
    return datetime in parts and str in parts


def _is_address(parts: Sequence[Any]) -> bool:
    return Sequence[str] in parts and str in parts


def encoded(answer: object) -> bytes:
    """An answer as JSON; the times of memories in it are spelled twice."""
    if isinstance(answer, Entry):
        return _spelled_twice(answer)
    if isinstance(answer, Struct):
        for name in answer.__struct_fields__:
            items = getattr(answer, name)
            if isinstance(items, list) and any(isinstance(each, Entry) for each in items):
                raw = [msgspec.Raw(_spelled_twice(x)) if isinstance(x, Entry) else x for x in items]
                answer = msgspec.structs.replace(answer, **{name: raw})
    return _encode(answer)


def _spelled_twice(entry: Entry) -> bytes:
    created, expires = _encode(entry.created_at), _encode(entry.expires_at)
    return b"".join((_encode(entry)[:-1], b',"createdAt":', created, b',"expiresAt":', expires, b"}"))
