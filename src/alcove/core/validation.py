"""Checks the arguments of calls; an error names the field and what was expected."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from alcove.core.clock import SECOND
from alcove.core.errors import InvalidRequest, PayloadTooLarge
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

MAX_PATH_LENGTH = 1024
"""The longest path of an index text; deeper texts are added to the path so far."""
MAX_QUERY_BYTES = 64 * 1024
MAX_NESTING = 100
NOT_BLANK = r"\S"
"""The pattern of text that is not blank."""
_COMPLAINT = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1
_SCALARS = frozenset((str, bool, type(None)))
_OPERATIONS: dict[str, type[BatchOperation]] = {"put": Put, "get": Get, "delete": Delete, "touch": Touch}


class Location(NamedTuple):
    """The namespace of a memory, and its encoded namespace and key as engines store them."""

    namespace: Namespace
    ns: bytes
    key: bytes


def parse_location(namespace: object, key: object, settings: Settings) -> Location:
    """A namespace of 1 to `max_depth` segments and a key."""
    checked, ns = Namespace.encoded(namespace)
    if not 1 <= len(checked) <= settings.max_depth:
        max_depth = checked.max_depth(settings.max_depth)
        if not 1 <= len(checked) <= max_depth:
            raise InvalidRequest("namespace", f"1 to {max_depth} segments, not {len(checked)}")
    encoded = encode_text(key, "key")
    if not 1 <= len(encoded) <= MAX_KEY_BYTES:
        raise InvalidRequest("key", f"1 to {MAX_KEY_BYTES} bytes, not {len(encoded)}")
    return Location(checked, ns, encoded)


def encode_text(value: object, field: str) -> bytes:
    """The UTF-8 bytes of a string."""
    if type(value) is not str:  # a subclass may encode itself differently
        raise InvalidRequest(field, f"a string, not {_type(value)}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "text without lone surrogates") from None


def check_query(query: object) -> None:
    """Refuses a query that is blank, or longer than an index text can be."""
    if len(encode_text(query, "query")) > MAX_QUERY_BYTES:
        raise InvalidRequest("query", f"at most {MAX_QUERY_BYTES} bytes")
    if not str(query).strip():
        raise InvalidRequest("query", "text that is not blank")


def parse_kinds(kinds: object) -> list[EventKind] | None:
    """Kinds of events as a list; None means all kinds."""
    if kinds is None:
        return None
    if not isinstance(kinds, list | tuple) or not kinds or not all(kind in KINDS for kind in kinds):
        raise InvalidRequest("kinds", f"a list of kinds: {', '.join(KINDS)}")
    return [*kinds]


def encode_value(value: object, settings: Settings) -> bytes:
    """A JSON object as compact JSON."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise InvalidRequest("value", f"a JSON object, not {_type(value)}")
    plain = value if type(value) is dict else dict(value)
    return encode_json(plain, "value", max_bytes=settings.max_value_bytes)


def encode_json(data: object, field: str, *, max_bytes: int | None = None) -> bytes:
    """Compact JSON of plain data, which decodes to the same data; checks the size before the content."""
    try:
        encoded = msgspec.json.encode(data)
    except UnicodeEncodeError:
        raise InvalidRequest(field, "text without lone surrogates") from None
    except (TypeError, ValueError, OverflowError, RecursionError):
        _check_plain(data, (None, field), MAX_NESTING)  # names the field
        raise
    if max_bytes is not None and len(encoded) > max_bytes:
        raise PayloadTooLarge(field, f"at most {max_bytes} bytes of JSON, not {len(encoded)}")
    _check_plain(data, (None, field), MAX_NESTING)
    return encoded


_Path = tuple["_Path | None", str | int]
"""The path of a node, formatted only for an error: the names in it may be long."""


def _check_plain(node: object, path: _Path, depth: int) -> None:
    """Refuses what JSON cannot carry: other types, non-string names, NaN, integers beyond 64 bits."""
    if depth == 0 and isinstance(node, dict | list):
        raise InvalidRequest(_format_path(path), f"at most {MAX_NESTING} levels of nesting")
    children: Iterable[tuple[str | int, object]]
    if type(node) is dict:
        for name in node:
            if type(name) is not str:
                raise InvalidRequest(_format_path(path), f"names that are strings, not {_type(name)}")
        children = node.items()
    elif type(node) is list:
        children = enumerate(node)
    elif expected := _expected_scalar(node):
        raise InvalidRequest(_format_path(path), expected)
    else:
        return
    for part, child in children:  # scalars are checked here: a call for each would cost more
        if type(child) in _SCALARS or (type(child) is int and _MIN_INT <= child <= _MAX_INT):
            continue
        if type(child) is not float or not math.isfinite(child):
            _check_plain(child, (path, part), depth - 1)


def _format_path(path: _Path) -> str:
    parent, name = path
    if parent is None:
        return str(name)
    return _format_path(parent) + (f"[{name}]" if isinstance(name, int) else f".{name}")


def _expected_scalar(node: object) -> str | None:
    """What was expected in place of a node that JSON cannot carry; None if it can."""
    if type(node) is int:
        return None if _MIN_INT <= node <= _MAX_INT else "an integer that fits in 64 bits"
    if type(node) is float:
        return None if math.isfinite(node) else "a finite number"
    return None if type(node) in _SCALARS else f"JSON data, not {_type(node)}"


def encode_index(
    index: object, settings: Settings, value: Mapping[str, object] = MappingProxyType({})
) -> bytes | None:
    """Returns index texts by field as compact JSON; None if there are none.

    `index`: texts by field, or true for every text of the value, or dotted paths to some of them.
    """
    if index is None or index is False:
        return None
    max_fields = settings.max_index_fields
    if index is True:
        index = extract_texts(value)
    elif isinstance(index, (list, tuple)):
        if len(index) > max_fields:
            raise InvalidRequest("index", f"at most {max_fields} paths, not {len(index)}")
        for position, path in enumerate(index):
            if not 1 <= len(encode_text(path, f"index[{position}]")) <= MAX_KEY_BYTES:
                raise InvalidRequest(f"index[{position}]", f"a path of 1 to {MAX_KEY_BYTES} bytes")
        index = extract_texts(value, index)
    if type(index) is not dict and not isinstance(index, Mapping):
        raise InvalidRequest("index", f"texts by field, a list of paths, or true, not {_type(index)}")
    if len(index) > max_fields:
        excess = f"{[*index][max_fields]}"[:MAX_KEY_BYTES]
        raise InvalidRequest(
            "index", f"at most {max_fields} fields, not {len(index)} ({excess!r} is one too many)"
        )
    if not index:
        return None
    for name, text in index.items():
        if not 1 <= len(encode_text(name, "index")) <= MAX_KEY_BYTES:
            raise InvalidRequest("index", f"field names of 1 to {MAX_KEY_BYTES} bytes, not {name[:80]!r}")
        if len(encode_text(text, f"index.{name}")) > settings.max_index_bytes:
            raise InvalidRequest(f"index.{name}", f"at most {settings.max_index_bytes} bytes")
    return msgspec.json.encode(dict(index))


def extract_texts(value: Mapping[str, object], paths: Sequence[str] | None = None) -> dict[str, str]:
    """Returns the texts of a value by their paths; with `paths`, only those at or below them.

    A list adds nothing to a path: the texts of `{"tags": ["sweet", "hot"]}` are one text at `tags`, one line
    each, and `{"turns": [{"said": "a"}, {"said": "b"}]}` has one at `turns.said`. Numbers and blank texts
    are left out. A path that does not exist is no error: not every memory has every field.
    """
    texts: dict[str, list[str]] = {}
    if paths is None or paths:
        _gather_texts(dict(value), _path_tree(paths or ()), "", texts)
    return {path: "\n".join(lines) for path, lines in texts.items()}


_PathTree = dict[str, Any]
"""Names, each with the names below it; an empty one stands for everything."""


def _path_tree(paths: Sequence[str]) -> _PathTree:
    """Returns the paths as a tree, so that a value is walked only once."""
    tree: _PathTree = {}
    for path in sorted(paths, key=lambda path: -path.count(".")):  # a shorter path includes what is below it
        *parents, name = path.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = {}
    return tree


def _gather_texts(node: object, tree: _PathTree, path: str, texts: dict[str, list[str]]) -> None:
    if isinstance(node, str):
        if not tree and node.strip():
            texts.setdefault(path, []).append(node)
    elif isinstance(node, list):
        for item in node:
            _gather_texts(item, tree, path, texts)
    elif isinstance(node, dict):
        for name in filter(node.__contains__, tree) if tree else node:
            child_path = f"{path}.{name}" if path else name
            if len(path) > MAX_PATH_LENGTH:
                child_path = path
            _gather_texts(node[name], tree.get(name, {}), child_path, texts)


def parse_ttl(seconds: object) -> int | None:
    """A time to live in microseconds; None if it is 0, which means that a memory never expires."""
    return check_integer(seconds, "ttl_seconds", 0, MAX_TTL_SECONDS) * SECOND or None


def parse_revision(expected: object, *, create_only: object = False) -> int | None:
    """The revision the caller expects, 0 for "must be absent", None for any."""
    if not isinstance(create_only, bool):
        raise InvalidRequest("create_only", f"true or false, not {_type(create_only)}")
    if expected is None:
        return 0 if create_only else None
    if create_only:
        raise InvalidRequest("create_only", "nothing, because expected_revision is set")
    return check_integer(expected, "expected_revision", 0, 2**63 - 1)


def check_fraction(number: object, field: str) -> float:
    """A number from 0 to 1."""
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise InvalidRequest(field, f"a number, not {_type(number)}")
    if not 0 <= number <= 1:
        raise InvalidRequest(field, "a number from 0 to 1")
    return float(number)


def parse_min_relevance(min_relevance: object, min_score: object) -> float:
    """The lowest relevance of a search's hits; `min_score` is its older name."""
    values = {"min_relevance": min_relevance, "min_score": min_score}
    numbers = [check_fraction(number, name) for name, number in values.items() if number is not None]
    if len({*numbers}) > 1:
        raise InvalidRequest("min_score", "nothing: it is the older name of min_relevance, which is set too")
    return numbers[0] if numbers else 0.0


def check_integer(number: object, field: str, minimum: int, maximum: int) -> int:
    """A whole number between two bounds."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise InvalidRequest(field, f"a whole number, not {_type(number)}")
    if not minimum <= number <= maximum:
        raise InvalidRequest(field, f"a whole number from {minimum} to {maximum}")
    return number


def _type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), f"{type(value).__name__}")


def to_invalid_request(
    error: msgspec.ValidationError, record: type[Struct], record_name: str
) -> InvalidRequest:
    """Converts an error of msgspec; `record_name` is the field of an error about the whole record."""
    problem, field = _COMPLAINT.fullmatch(str(error)).groups()  # type: ignore[union-attr]
    if match := re.search(r"(missing required|unknown) field `(.*)`", problem, re.DOTALL):
        expected = "a value; it is required"
        if match[1] == "unknown":
            similar = get_close_matches(match[2], () if field else record.__struct_encode_fields__, 1)
            expected = f"a known field; did you mean {similar[0]!r}?" if similar else "a known field"
        return InvalidRequest(".".join(filter(None, (field, match[2]))), expected)
    if "Invalid enum value" in problem and (names := _choices(record, field)):
        return InvalidRequest(field, names)
    if problem == f"Expected `str` matching regex {NOT_BLANK!r}":
        return InvalidRequest(field, "text that is not blank")
    is_expectation = problem.startswith("Expected ")
    expected = problem.removeprefix("Expected ") if is_expectation else f"something else ({problem})"
    return InvalidRequest(field or record_name, expected[:300])


def _choices(record: type[Struct], field: str) -> str | None:
    """Lists the allowed values of a field, which msgspec's own errors do not name."""
    hint = get_type_hints(record).get(field)
    parts = [hint, *get_args(hint)]
    names = next((get_args(part) for part in parts if get_origin(part) is Literal), ())
    return f"one of {', '.join(map(str, names))}" if names else None


def parse_operations(operations: Sequence[BatchOperation | Mapping[str, object]]) -> list[BatchOperation]:
    """Operations of a batch as records; an error in a mapping names the field."""
    if isinstance(operations, str | bytes | Mapping) or not isinstance(operations, Sequence):
        raise InvalidRequest("operations", "a list of operations")
    records = list[BatchOperation]()
    for position, operation in enumerate(operations):
        try:
            records.append(operation if isinstance(operation, BatchOperation) else _to_record(operation))
        except InvalidRequest as error:
            error.details["operation"] = position
            raise
    return records


def _to_record(operation: Mapping[str, object]) -> BatchOperation:
    op = operation.get("op") if isinstance(operation, Mapping) else None
    kind = _OPERATIONS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise InvalidRequest("op", "put, get, delete or touch")
    fields = {name: value for name, value in operation.items() if name != "op"}
    for name in fields:
        if name not in kind.__struct_fields__:
            raise InvalidRequest(str(name), f"one of the fields {', '.join(kind.__struct_fields__)}")
    for name in ("namespace", "key", *(("value",) if kind is Put else ())):
        if name not in fields:
            raise InvalidRequest(name, "a value; it is required")
    return kind(**fields)  # type: ignore[arg-type]
