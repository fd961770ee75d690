"""Operations of a batch, as a caller may give them: records, or plain mappings with an `op`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alcove.core.errors import InvalidRequest
from alcove.core.records import Delete, Get, Operation, Put, Touch

_KINDS: dict[str, type[Operation]] = {"put": Put, "get": Get, "delete": Delete, "touch": Touch}


def parse(given: Sequence[Operation | Mapping[str, object]]) -> list[Operation]:
    """The operations as records; an unknown or missing field is an error that names it."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise InvalidRequest("operations", "a list of operations")
    return [_parsed(each, position) for position, each in enumerate(given)]


def _parsed(given: Operation | Mapping[str, object], position: int) -> Operation:
    if isinstance(given, Operation):
        return given
    try:
        return _record(given)
    except InvalidRequest as error:
        error.details["operation"] = position
        raise


def _record(given: Mapping[str, object]) -> Operation:
    op = given.get("op") if isinstance(given, Mapping) else None
    kind = _KINDS.get(op) if isinstance(op, str) else None
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
