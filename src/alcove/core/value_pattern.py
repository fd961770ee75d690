"""Patterns of a memory's value: its fields by name, compared as Python compares its data.

An object stands for an object with at least these fields, each like its pattern, which may be an object
again. One with operators (`{"$gt": 2}`) stands for what they hold of. A list, or a scalar, stands for what
equals it: `1`, `1.0` and `true` do, as in Python. A field that is not there is like one that is null.

A name of the outermost object is a dotted path (`meta.title`), unless the value has a key that is spelled so.
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
"""The name that a pattern has in a filter, where others have the name of a field."""
MAX_NODES = 1000
"""Scalars, lists and objects in a pattern: each memory is compared with all of them."""
MAX_NESTING = 100
MAX_NAME = 1024
MAX_WORD = 400
"""Characters of a number or a moment in words; the largest number that a bound can be has 309 digits."""
INFINITIES = {"Infinity": float("inf"), "-Infinity": float("-inf")}
"""JSON has no word for them."""
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_WORDS = frozenset(name.lstrip("$") for name in _SIGNS)


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What a value is to be like."""

    wanted: Mapping[str, Any]
    paths: Mapping[str, tuple[str, ...]]
    """The parts of each name that has a dot, split once and not for each memory."""

    @classmethod
    def parse(cls, wanted: object, field: str) -> Pattern:
        """The pattern that an expression spells; an error names the part that is wrong."""
        if not isinstance(wanted, dict) or _is_operators(wanted):
            raise InvalidRequest(field, "an object of patterns by the names of fields")
        nodes = sum(1 for _ in islice(_checked(wanted, field, MAX_NESTING), MAX_NODES + 1))
        if nodes > MAX_NODES or nodes + sum(name.count(".") for name in wanted) > MAX_NODES:
            raise InvalidRequest(field, f"at most {MAX_NODES} values in all")
        return cls(_read(wanted), {name: tuple(name.split(".")) for name in wanted if "." in name})

    def holds(self, found: object) -> bool:
        """Whether a value is like it."""
        return isinstance(found, dict) and all(
            _like(value_at(found, name, self.paths.get(name, ())), part) for name, part in self.wanted.items()
        )


def value_at(value: Mapping[str, Any], name: str, path: Sequence[str], absent: Any = None) -> Any:
    """What a value has under a key, or else at the dotted path that the key spells; `absent` for nothing."""
    if name in value:
        return value[name]
    found: Any = value if path else absent
    for part in path:
        if not isinstance(found, dict) or part not in found:
            return absent
        found = found[part]
    return found


def spelled(filter: Any) -> Any:
    """A filter as JSON can say it, which holds of the same; what is no filter as it is."""
    if not isinstance(filter, dict):
        return filter
    return {name: (_spelled if name == VALUE else _bounds)(part) for name, part in filter.items()}


def _bounds(condition: Any) -> Any:
    """A condition on a field: bounds without end in words, and those beyond 64 bits as the nearest number."""
    if not isinstance(condition, dict):
        return condition
    return {name: _word(part) if name.lstrip("$") in _WORDS else part for name, part in condition.items()}


def _spelled(node: Any) -> Any:
    """A pattern: the same, and for what no value equals, a pattern that holds of none."""
    if isinstance(node, dict):
        return {name: _word(part) if name in _SIGNS else _spelled(part) for name, part in node.items()}
    if isinstance(node, list | tuple):
        return [*map(_spelled, node)]
    told = _word(node)
    return {"$in": []} if told is not node and isinstance(told, str) else told


def _word(bound: Any) -> Any:
    """A number as JSON can say it."""
    if isinstance(bound, int) and not -(2**63) <= bound < 2**63:
        infinite = math.inf if bound > 0 else -math.inf
        bound = float(bound) if abs(bound) < 2**1023 else infinite
    if not isinstance(bound, float) or math.isfinite(bound):
        return bound
    return next((word for word, number in INFINITIES.items() if number == bound), "NaN")


def _checked(node: object, field: str, depth: int) -> Iterator[None]:
    """A None for each part; refuses what no value can be compared with."""
    yield
    if depth == 0:
        raise InvalidRequest(field, f"at most {MAX_NESTING} levels of nesting")
    if isinstance(node, dict):
        operators = _is_operators(node)
        for name, part in node.items():
            if type(name) is not str or len(name) > MAX_NAME:
                raise InvalidRequest(field, f"names that are strings of at most {MAX_NAME} characters")
            at = f"{field}.{name}"
            if operators and name in _SIGNS and _comparable(part) is None:
                raise InvalidRequest(at, "a number, Infinity, -Infinity or an RFC 3339 time")
            if operators and name == "$in" and not isinstance(part, list):
                raise InvalidRequest(at, "a list")
            if operators and name not in (*_SIGNS, "$eq", "$ne", "$in"):
                raise InvalidRequest(at, f"one of $eq, $ne, $in, {', '.join(_SIGNS)}")
            yield from _checked(part, at, depth - 1)
    elif isinstance(node, list | tuple):
        for place, part in enumerate(node):
            yield from _checked(part, f"{field}[{place}]", depth - 1)
    elif not (node is None or isinstance(node, bool | int | float | str)):
        raise InvalidRequest(field, f"JSON data, not {type(node).__name__}")


def _read(node: Any) -> Any:
    """A pattern whose bounds are read, so that this is not done for each memory."""
    if isinstance(node, dict):
        bounds = _SIGNS if _is_operators(node) else {}
        return {name: (_comparable if name in bounds else _read)(part) for name, part in node.items()}
    return [*map(_read, node)] if isinstance(node, list | tuple) else node


def _is_operators(node: Mapping[Any, Any]) -> bool:
    return any(isinstance(name, str) and name.startswith("$") for name in node)


def _like(found: object, wanted: object) -> bool:
    if isinstance(wanted, dict):
        if _is_operators(wanted):
            return all(_holds(found, name, operand) for name, operand in wanted.items())
        return isinstance(found, dict) and all(_like(found.get(name), part) for name, part in wanted.items())
    if isinstance(wanted, list | tuple):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_like, found, wanted))
    return found == wanted


def _holds(found: object, name: str, operand: Any) -> bool:
    if name == "$eq":
        return bool(found == operand)
    if name == "$ne":
        return bool(found != operand)
    if name == "$in":
        return any(found == each for each in operand)
    kind, value = _comparable(found) or (None, None)
    return kind == operand[0] and _SIGNS[name](value, operand[1])


def _comparable(part: object) -> tuple[str, int | float] | None:
    """What bounds compare: a number, also in words, or a moment; None for anything else."""
    if isinstance(part, int | float):
        return ("number", part)
    if not isinstance(part, str) or len(part) > MAX_WORD:
        return None
    try:
        return ("number", float(part))
    except ValueError:
        moment = parse_rfc3339(part)
        return None if moment is None else ("moment", moment)
