"""Fields of records that other projects wrote: each is what it should be, or an error names it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from alcove.core.errors import InvalidRequest

T = TypeVar("T")
Record = Mapping[str, Any]
_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}


def record(given: object) -> Record:
    """A JSON object."""
    if not isinstance(given, Mapping):
        raise InvalidRequest("record", f"an object, not {_kind(given)}")
    return given


def text(given: Record, name: str) -> str | None:
    """A text; None where there is none or it is empty."""
    return _given(given, name, str) or None


def required(given: Record, name: str) -> str:
    """A text that says something."""
    found = text(given, name)
    if found is None or not found.strip():
        raise InvalidRequest(name, "a text that is not blank")
    return found


def mapping(given: Record, name: str) -> dict[str, Any]:
    """An object; empty where there is none."""
    return _given(given, name, dict) or {}


def listed(given: Record, name: str) -> list[Any]:
    """A list; empty where there is none."""
    return _given(given, name, list) or []


def texts(given: Record, name: str) -> list[str]:
    """A list of texts; empty where there is none."""
    found = listed(given, name)
    for each in found:
        if not isinstance(each, str):
            raise InvalidRequest(name, f"a list of texts, without {_kind(each)}")
    return found


def moment(given: Record, name: str) -> datetime | None:
    """A time in ISO 8601, or one that a database gave; without a zone it is UTC."""
    found = given.get(name)
    if found is None or found == "":
        return None
    try:
        when = found if isinstance(found, datetime) else datetime.fromisoformat(found)
        when = when.replace(tzinfo=UTC) if when.utcoffset() is None else when.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(name, f"a time such as 2026-01-31T12:00:00Z, not {str(found)[:40]!r}") from None
    return when if when.year > 1 else None  # Go spells "no time" as the first day of the calendar


def rest(given: Record, *known: str) -> dict[str, Any]:
    """The fields that are not among those known, and say something."""
    return {name: value for name, value in given.items() if name not in known and value not in (None, [], {})}


def _given(given: Record, name: str, kind: type[T]) -> T | None:
    """What a field says, if that is of this kind or nothing."""
    found = given.get(name)
    if found is not None and not isinstance(found, kind):
        raise InvalidRequest(name, f"{_KINDS[kind]}, not {_kind(found)}")
    return found


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "a number")
