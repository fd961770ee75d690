"""The first step of the road: every argument is what the contract says, or an error names it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from alcove.core.clock import SECOND
from alcove.core.errors import InvalidRequest, PayloadTooLarge
from alcove.core.index_texts import extract_texts
from alcove.core.namespace import Namespace
from alcove.core.records import (
    KINDS,
    MAX_KEY_BYTES,
    MAX_TTL_SECONDS,
    BatchOperation,
    Delete,
    EventKind,
    Get,
    Put,
    Touch,
)
from alcove.core.settings import Settings

MAX_QUERY_BYTES = 64 * 1024
MAX_NESTING = 100
NOT_BLANK = r"\S"
"""The pattern of text with something in it."""
NOTHING: Mapping[str, object] = MappingProxyType({})
_COMPLAINT = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_LEAST, _MOST = -(2**63), 2**63 - 1
_CARRIED = frozenset((str, bool, type(None)))
_OPERATIONS: dict[str, type[BatchOperation]] = {"put": Put, "get": Get, "delete": Delete, "touch": Touch}


class Location(NamedTuple):
    """The place of one memory, and its two parts as engines store them."""

    namespace: Namespace
    ns: bytes
    key: bytes


def location(namespace: object, key: object, settings: Settings) -> Location:
    """A namespace of 1 to `max_depth` segments and a key."""
    checked, ns = Namespace.encoded(namespace)
    if not 1 <= len(checked) <= settings.max_depth:
        most = checked.depth(settings.max_depth)
        if not 1 <= len(checked) <= most:
            raise InvalidRequest("namespace", f"1 to {most} segments, not {len(checked)}")
    encoded = text(key, "key")
    if not 1 <= len(encoded) <= MAX_KEY_BYTES:
        raise InvalidRequest("key", f"1 to {MAX_KEY_BYTES} bytes, not {len(encoded)}")
    return Location(checked, ns, encoded)


def text(value: object, field: str) -> bytes:
    """The UTF-8 bytes of a string."""
    if type(value) is not str:  # a subclass may spell itself otherwise
        raise InvalidRequest(field, f"a string, not {_type(value)}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "text without lone surrogates") from None


def query(given: object) -> None:
    """A question in words; what is longer than a field of an index can be is no question."""
    if len(text(given, "query")) > MAX_QUERY_BYTES:
        raise InvalidRequest("query", f"at most {MAX_QUERY_BYTES} bytes")
    if not str(given).strip():
        raise InvalidRequest("query", "something to look for")


def kinds(given: object) -> list[EventKind] | None:
    """Some kinds of events; None where all are meant."""
    if given is None:
        return None
    if not isinstance(given, list | tuple) or not given or not all(kind in KINDS for kind in given):
        raise InvalidRequest("kinds", f"a list of some of {', '.join(KINDS)}")
    return [*given]


def value(given: object, settings: Settings) -> bytes:
    """A JSON object as compact JSON."""
    if type(given) is not dict and not isinstance(given, Mapping):
        raise InvalidRequest("value", f"a JSON object, not {_type(given)}")
    return json(given if type(given) is dict else dict(given), "value", most=settings.max_value_bytes)


def json(given: object, field: str, *, most: int | None = None) -> bytes:
    """Compact JSON of plain data, which reads back equal; its size is looked at before what is in it."""
    try:
        encoded = msgspec.json.encode(given)
    except UnicodeEncodeError:
        raise InvalidRequest(field, "text without lone surrogates") from None
    except (TypeError, ValueError, OverflowError, RecursionError):
        _plain(given, (None, field), MAX_NESTING)  # says what it is and where
        raise
    if most is not None and len(encoded) > most:
        raise PayloadTooLarge(field, f"at most {most} bytes of JSON, not {len(encoded)}")
    _plain(given, (None, field), MAX_NESTING)
    return encoded


_Place = tuple["_Place | None", str | int]
"""Where a node is, spelled only if it must be told: the names on the way to it may be long."""


def _plain(node: object, place: _Place, depth: int) -> None:
    """Refuses what JSON cannot carry: other types, non-string names, NaN, integers beyond 64 bits."""
    if depth == 0 and isinstance(node, dict | list):
        raise InvalidRequest(_spelled(place), f"at most {MAX_NESTING} levels of nesting")
    children: Iterable[tuple[str | int, object]]
    if type(node) is dict:
        for name in node:
            if type(name) is not str:
                raise InvalidRequest(_spelled(place), f"names that are strings, not {_type(name)}")
        children = node.items()
    elif type(node) is list:
        children = enumerate(node)
    elif unfit := _unfit(node):
        raise InvalidRequest(_spelled(place), unfit)
    else:
        return
    for part, child in children:  # most are looked at here: there may be many, and a call costs more
        if type(child) in _CARRIED or (type(child) is int and _LEAST <= child <= _MOST):
            continue
        if type(child) is not float or not math.isfinite(child):
            _plain(child, (place, part), depth - 1)


def _spelled(place: _Place) -> str:
    above, name = place
    if above is None:
        return str(name)
    return _spelled(above) + (f"[{name}]" if isinstance(name, int) else f".{name}")


def _unfit(node: object) -> str | None:
    if type(node) is int:
        return None if _LEAST <= node <= _MOST else "an integer that fits in 64 bits"
    if type(node) is float:
        return None if math.isfinite(node) else "a finite number"
    return None if type(node) in _CARRIED else f"JSON data, not {_type(node)}"


def index(given: object, settings: Settings, value: Mapping[str, object] = NOTHING) -> bytes | None:
    """Texts by field as compact JSON; None where nothing is to be indexed.

    `given`: the texts themselves, or true for every text of the memory's value, or dotted paths to some.
    """
    if given is None or given is False:
        return None
    most = settings.max_index_fields
    if given is True:
        given = extract_texts(value)
    elif isinstance(given, (list, tuple)):
        given = extract_texts(value, _paths(given, most))
    if type(given) is not dict and not isinstance(given, Mapping):
        raise InvalidRequest("index", f"texts by field, a list of paths, or true, not {_type(given)}")
    if len(given) > most:
        beyond = f"{[*given][most]}"[:MAX_KEY_BYTES]
        raise InvalidRequest("index", f"at most {most} fields, not {len(given)} ({beyond!r} is one too many)")
    if not given:
        return None
    for name, content in given.items():
        if not 1 <= len(text(name, "index")) <= MAX_KEY_BYTES:
            raise InvalidRequest("index", f"field names of 1 to {MAX_KEY_BYTES} bytes, not {name[:80]!r}")
        if len(text(content, f"index.{name}")) > settings.max_index_bytes:
            raise InvalidRequest(f"index.{name}", f"at most {settings.max_index_bytes} bytes")
    return msgspec.json.encode(dict(given))


def _paths(given: Sequence[object], most: int) -> list[str]:
    """Dotted paths into a value."""
    if len(given) > most:
        raise InvalidRequest("index", f"at most {most} paths, not {len(given)}")
    for position, path in enumerate(given):
        if not 1 <= len(text(path, f"index[{position}]")) <= MAX_KEY_BYTES:
            raise InvalidRequest(f"index[{position}]", f"a path of 1 to {MAX_KEY_BYTES} bytes")
    return [*map(str, given)]


def ttl(seconds: object) -> int | None:
    """A time to live in microseconds; None for 0, with which a memory never expires."""
    return whole(seconds, "ttl_seconds", 0, MAX_TTL_SECONDS) * SECOND or None


def revision(expected: object, *, create_only: object = False) -> int | None:
    """The revision the caller expects, 0 for "must be absent", None for any."""
    if not isinstance(create_only, bool):
        raise InvalidRequest("create_only", f"true or false, not {_type(create_only)}")
    if expected is None:
        return 0 if create_only else None
    if create_only:
        raise InvalidRequest("create_only", "not to be combined with expected_revision")
    return whole(expected, "expected_revision", 0, 2**63 - 1)


def share(number: object, field: str) -> float:
    """A number from 0 to 1."""
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise InvalidRequest(field, f"a number, not {_type(number)}")
    if not 0 <= number <= 1:
        raise InvalidRequest(field, "a number from 0 to 1")
    return float(number)


def min_relevance(value: object, older: object) -> float:
    """The relevance below which a search leaves memories out; `older` is the same as `min_score`."""
    given = {"min_relevance": value, "min_score": older}
    numbers = [share(number, name) for name, number in given.items() if number is not None]
    if len({*numbers}) > 1:
        raise InvalidRequest("min_score", "to be left out: it is the older name of min_relevance")
    return numbers[0] if numbers else 0.0


def whole(number: object, field: str, least: int, most: int) -> int:
    """A whole number between two bounds."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise InvalidRequest(field, f"a whole number, not {_type(number)}")
    if not least <= number <= most:
        raise InvalidRequest(field, f"a whole number from {least} to {most}")
    return number


def _type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), f"{type(value).__name__}")


def refusal(error: msgspec.ValidationError, record: type[Struct], whole: str) -> InvalidRequest:
    """What msgspec says of a record that it cannot make, with the field first (`whole` where it is all)."""
    what, field = _COMPLAINT.fullmatch(str(error)).groups()  # type: ignore[union-attr]
    if found := re.search(r"(missing required|unknown) field `(.*)`", what, re.DOTALL):
        expected = "to be given" if found[1] == "missing required" else "a field that is known here"
        return InvalidRequest(".".join(filter(None, (field, found[2]))), expected)
    if "Invalid enum value" in what and (names := _choices(record, field)):
        return InvalidRequest(field, names)
    if what == f"Expected `str` matching regex {NOT_BLANK!r}":
        return InvalidRequest(field, "text that is not blank")
    expected = what.removeprefix("Expected ") if what.startswith("Expected ") else f"something else ({what})"
    return InvalidRequest(field or whole, expected[:300])


def _choices(record: type[Struct], field: str) -> str | None:
    """The names that a field takes, if it takes one of a few; msgspec's own errors do not say."""
    found = get_type_hints(record).get(field)
    parts = [found, *get_args(found)]
    names = next((get_args(part) for part in parts if get_origin(part) is Literal), ())
    return f"one of {', '.join(map(str, names))}" if names else None


def operations(given: Sequence[BatchOperation | Mapping[str, object]]) -> list[BatchOperation]:
    """Operations of a batch as records; as mappings with an `op`, an error names a wrong field."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise InvalidRequest("operations", "a list of operations")
    return [_parsed(each, position) for position, each in enumerate(given)]


def _parsed(given: BatchOperation | Mapping[str, object], position: int) -> BatchOperation:
    if isinstance(given, BatchOperation):
        return given
    try:
        return _record(given)
    except InvalidRequest as error:
        error.details["operation"] = position
        raise


def _record(given: Mapping[str, object]) -> BatchOperation:
    op = given.get("op") if isinstance(given, Mapping) else None
    kind = _OPERATIONS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise InvalidRequest("op", "put, get, delete or touch")
    fields = {name: value for name, value in given.items() if name != "op"}
    for name in fields:
        if name not in kind.__struct_fields__:
            raise InvalidRequest(str(name), f"no such field; one of {', '.join(kind.__struct_fields__)}")
    for name in ("namespace", "key", *(("value",) if kind is Put else ())):
        if name not in fields:
            raise InvalidRequest(name, "to be given")
    return kind(**fields)  # type: ignore[arg-type]
