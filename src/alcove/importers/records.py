"""Fields of records that other projects wrote: each has the expected type, or an error names it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from alcove.core.errors import InvalidRequest

T = TypeVar("T")
Record = Mapping[str, Any]
_TYPE_NAMES = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}


def check_record(value: object) -> Record:
    """The value, if it is a JSON object."""
    if not isinstance(value, Mapping):
        raise InvalidRequest("record", f"an object, not {_type_name(value)}")
    return value


def text(record: Record, name: str) -> str | None:
    """A text; None if it is missing or empty."""
    return _check_type(record, name, str) or None


def required_text(record: Record, name: str) -> str:
    """A text that is not blank."""
    value = text(record, name)
    if value is None or not value.strip():
        raise InvalidRequest(name, "a text that is not blank")
    return value


def mapping(record: Record, name: str) -> dict[str, Any]:
    """An object; empty if it is missing."""
    return _check_type(record, name, dict) or {}


def items(record: Record, name: str) -> list[Any]:
    """A list; empty if it is missing."""
    return _check_type(record, name, list) or []


def texts(record: Record, name: str) -> list[str]:
    """A list of texts; empty if it is missing."""
    values = items(record, name)
    for value in values:
        if not isinstance(value, str):
            raise InvalidRequest(name, f"a list of texts, without {_type_name(value)}")
    return values


def time(record: Record, name: str) -> datetime | None:
    """A time in ISO 8601, or as a database returns it; without a zone it is UTC."""
    value = record.get(name)
    if value is None or value == "":
        return None
    try:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        time = time.replace(tzinfo=UTC) if time.utcoffset() is None else time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(name, f"a time such as 2026-01-31T12:00:00Z, not {str(value)[:40]!r}") from None
    return time if time.year > 1 else None  # the first day of the calendar is Go's "no time"


def other_fields(record: Record, *names: str) -> dict[str, Any]:
    """The fields besides `names` that are not empty."""
    return {
        name: value for name, value in record.items() if name not in names and value not in (None, [], {})
    }


def _check_type(record: Record, name: str, kind: type[T]) -> T | None:
    value = record.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequest(name, f"{_TYPE_NAMES[kind]}, not {_type_name(value)}")
    return value


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), "a number")
