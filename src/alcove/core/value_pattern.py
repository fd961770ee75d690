"""Patterns of a memory's value: its fields by name, compared as Python compares its data.

An object matches an object that has at least these fields, each matching its own pattern, which may be an
object again. An object of operators (`{"$gt": 2}`) matches if all of them hold. A list or a scalar matches
what equals it; `1`, `1.0` and `true` are equal, as in Python. An absent field is like null.

A name of the outermost object is a dotted path (`meta.title`), unless the value has a key of that name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from alcove.core.clock import parse_rfc3339
from alcove.core.errors import InvalidRequest

VALUE = "$value"
"""The name of a pattern in a filter, in place of a field name."""
MAX_NODES = 1000
"""Scalars, lists and objects in a pattern; each memory is compared with all of them."""
MAX_NESTING = 100
MAX_NAME = 1024
MAX_TEXT = 400
"""Characters of a number or a time as text; the largest number that a bound can be has 309 digits."""
INFINITIES = {"Infinity": float("inf"), "-Infinity": float("-inf")}
"""As text, because JSON cannot spell them."""
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_RANGES = frozenset(name.lstrip("$") for name in _COMPARE)


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A pattern that values are compared with."""

    parts: Mapping[str, Any]
    paths: Mapping[str, tuple[str, ...]]
    """The steps of each name with a dot, split once and not for each memory."""

    @classmethod
    def parse(cls, pattern: object, field: str) -> Pattern:
        """Parses a pattern; an error names the part that is wrong."""
        if not isinstance(pattern, dict) or _is_operators(pattern):
            raise InvalidRequest(field, "an object of patterns by the names of fields")
        nodes = sum(1 for _ in islice(_validate(pattern, field, MAX_NESTING), MAX_NODES + 1))
        if nodes > MAX_NODES or nodes + sum(name.count(".") for name in pattern) > MAX_NODES:
            raise InvalidRequest(field, f"at most {MAX_NODES} values in all")
        return cls(_parse_bounds(pattern), {name: tuple(name.split(".")) for name in pattern if "." in name})

    def holds(self, value: object) -> bool:
        """Whether a value matches."""
        return isinstance(value, dict) and all(
            _matches(value_at(value, name, self.paths.get(name, ())), part)
            for name, part in self.parts.items()
        )


def value_at(value: Mapping[str, Any], name: str, path: Sequence[str], absent: Any = None) -> Any:
    """Returns the value of a key, or else at the dotted path that the key spells, or `absent`."""
    if name in value:
        return value[name]
    node: Any = value if path else absent
    for step in path:
        if not isinstance(node, dict) or step not in node:
            return absent
        node = node[step]
    return node


def filter_to_json(filter: Any) -> Any:
    """Returns a filter that JSON can spell and that matches the same; anything but a dict as it is."""
    if not isinstance(filter, dict):
        return filter
    return {
        name: (_pattern_to_json if name == VALUE else _condition_to_json)(part)
        for name, part in filter.items()
    }


def _condition_to_json(condition: Any) -> Any:
    if not isinstance(condition, dict):
        return condition
    return {
        name: _number_to_json(part) if name.lstrip("$") in _RANGES else part
        for name, part in condition.items()
    }


def _pattern_to_json(node: Any) -> Any:
    """Where no value equals a number, returns a pattern that matches nothing."""
    if isinstance(node, dict):
        return {
            name: _number_to_json(part) if name in _COMPARE else _pattern_to_json(part)
            for name, part in node.items()
        }
    if isinstance(node, list | tuple):
        return [*map(_pattern_to_json, node)]
    number = _number_to_json(node)
    return {"$in": []} if number is not node and isinstance(number, str) else number


def _number_to_json(bound: Any) -> Any:
    """Infinite numbers become text, and those beyond 64 bits the nearest float."""
    if isinstance(bound, int) and not -(2**63) <= bound < 2**63:
        infinite = math.inf if bound > 0 else -math.inf
        bound = float(bound) if abs(bound) < 2**1023 else infinite
    if not isinstance(bound, float) or math.isfinite(bound):
        return bound
    return next((text for text, number in INFINITIES.items() if number == bound), "NaN")


def _validate(node: object, field: str, depth: int) -> Iterator[None]:
    """Yields once for each part; raises where no value can be compared with one."""
    yield
    if depth == 0:
        raise InvalidRequest(field, f"at most {MAX_NESTING} levels of nesting")
    if isinstance(node, dict):
        operators = _is_operators(node)
        for name, part in node.items():
            if type(name) is not str or len(name) > MAX_NAME:
                raise InvalidRequest(field, f"names that are strings of at most {MAX_NAME} characters")
            part_field = f"{field}.{name}"
            if operators and name in _COMPARE and _comparable(part) is None:
                raise InvalidRequest(part_field, "a number, Infinity, -Infinity or an RFC 3339 time")
            if operators and name == "$in" and not isinstance(part, list):
                raise InvalidRequest(part_field, "a list")
            if operators and name not in (*_COMPARE, "$eq", "$ne", "$in"):
                raise InvalidRequest(part_field, f"one of $eq, $ne, $in, {', '.join(_COMPARE)}")
            yield from _validate(part, part_field, depth - 1)
    elif isinstance(node, list | tuple):
        for index, part in enumerate(node):
            yield from _validate(part, f"{field}[{index}]", depth - 1)
    elif not (node is None or isinstance(node, bool | int | float | str)):
        raise InvalidRequest(field, f"JSON data, not {type(node).__name__}")


def _parse_bounds(node: Any) -> Any:
    """Parses the bounds of a pattern once and not for each memory."""
    if isinstance(node, dict):
        bounds = _COMPARE if _is_operators(node) else {}
        return {name: (_comparable if name in bounds else _parse_bounds)(part) for name, part in node.items()}
    return [*map(_parse_bounds, node)] if isinstance(node, list | tuple) else node


def _is_operators(node: Mapping[Any, Any]) -> bool:
    return any(isinstance(name, str) and name.startswith("$") for name in node)


def _matches(value: object, node: object) -> bool:
    if isinstance(node, dict):
        if _is_operators(node):
            return all(_holds(value, name, operand) for name, operand in node.items())
        return isinstance(value, dict) and all(_matches(value.get(name), part) for name, part in node.items())
    if isinstance(node, list | tuple):
        return isinstance(value, list) and len(value) == len(node) and all(map(_matches, value, node))
    return value == node


def _holds(value: object, operator_name: str, operand: Any) -> bool:
    if operator_name == "$eq":
        return bool(value == operand)
    if operator_name == "$ne":
        return bool(value != operand)
    if operator_name == "$in":
        return any(value == each for each in operand)
    kind, comparable = _comparable(value) or (None, None)
    return kind == operand[0] and _COMPARE[operator_name](comparable, operand[1])


def _comparable(part: object) -> tuple[str, int | float] | None:
    """What a bound compares: a number, also as text, or a time; None for anything else."""
    if isinstance(part, int | float):
        return ("number", part)
    if not isinstance(part, str) or len(part) > MAX_TEXT:
        return None
    try:
        return ("number", float(part))
    except ValueError:
        moment = parse_rfc3339(part)
        return None if moment is None else ("moment", moment)
