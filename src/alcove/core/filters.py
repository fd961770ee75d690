"""Filters: conditions on fields of memories, and patterns of their values.

A condition looks a field up in the policy's attributes, then in the index texts, then in the decrypted
value. There its name is a dotted path (`meta.title`), unless the value has a key of exactly that name. The
engine compiles conditions to SQL (`engine/filter_sql.py`), which decides about attributes and index texts.
If a field is in neither, SQL lets the row pass and `Filter.holds` decides on the decrypted value, so that
nothing decrypted is ever on disk.

Conditions are typed: `true` is not `1`, `"1"` is not `1`, `7` equals `7.0`. A scalar matches an array that
contains it. `null` matches null and absent. A string in a range is an RFC 3339 instant.

`$value` in place of a field name is a pattern of the whole value. An object matches an object that has at
least these fields, each matching its own pattern, which may be an object again. An object of operators
(`{"$gt": 2}`) matches if all of them hold. A list or a scalar matches what equals it in Python: `1`, `1.0`
and `true` are equal. An absent field is like null.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeGuard

from alcove.core.clock import parse_rfc3339
from alcove.core.errors import InvalidRequest
from alcove.core.principal import JSON

Scalar = None | bool | int | float | str
ValueTest = Callable[..., bool]
"""Tests whether a value, its last argument, matches a part of a pattern."""

VALUE = "$value"
"""The name of a pattern in a filter, in place of a field name."""
MAX_CONDITIONS = 64
MAX_CHOICES = 1000
MAX_NAME = 1024
"""Characters of a field's name."""
MAX_NODES = 1000
"""Scalars, lists and objects in a pattern, which are compared with each memory."""
MAX_NESTING = 100
MAX_TEXT = 400
"""Characters of a number or a time as text; the largest bound has 309 digits."""
INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}
"""As text, because JSON has no infinite numbers."""
_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_COMPARE: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_SYNTAX = "a scalar, or an object of in, gt, gte, lt, lte, $eq, $ne, $in, $gt, $gte, $lt, $lte, $exists"
_BOUND = "a number, Infinity, -Infinity or an RFC 3339 time"


class Absent:
    """The type of `ABSENT`, the value of a field that does not exist; it is not null."""


ABSENT: Final = Absent()
FieldValue = JSON | Absent
_SCALARS: Final = frozenset((type(None), bool, int, float, str))


@dataclass(frozen=True, slots=True)
class OneOf:
    """The field equals one of these scalars, or is an array that holds one."""

    choices: tuple[Scalar, ...]
    _typed_choices: frozenset[tuple[bool, Scalar]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_typed_choices", frozenset(map(_typed, self.choices)))

    def holds(self, value: FieldValue) -> bool:
        if type(value) in _SCALARS:  # without a call: this runs for every memory of a list
            return (type(value) is bool, value) in self._typed_choices
        if isinstance(value, list):
            return any(_typed(member) in self._typed_choices for member in value if _is_scalar(member))
        return value is ABSENT and None in self.choices


@dataclass(frozen=True, slots=True)
class Negation:
    """The opposite of a test, also for an absent field."""

    test: OneOf

    def holds(self, value: FieldValue) -> bool:
        return not self.test.holds(value)


@dataclass(frozen=True, slots=True)
class Range:
    """The field is a number, or an RFC 3339 instant, on one side of a bound."""

    sign: str
    bound: int | float
    instant: bool

    def holds(self, value: FieldValue) -> bool:
        if self.instant:
            moment = parse_rfc3339(value) if isinstance(value, str) else None
            return moment is not None and _COMPARE[self.sign](moment, self.bound)
        return _is_number(value) and _COMPARE[self.sign](value, self.bound)


@dataclass(frozen=True, slots=True)
class Exists:
    """The field exists, even if it is null; or it does not."""

    expected: bool

    def holds(self, value: FieldValue) -> bool:
        return (value is not ABSENT) is self.expected


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A pattern that values are compared with."""

    fields: Sequence[tuple[str, Sequence[str], ValueTest]]
    """Each name, the steps of its path if it has a dot, and the test of what is there."""

    @classmethod
    def parse(cls, pattern: object, field: str) -> Pattern:
        """Parses a pattern; an error names the part that is wrong."""
        if not isinstance(pattern, dict) or _has_operators(pattern):
            raise InvalidRequest(field, "an object of patterns by field name")
        parser = _PatternParser(field)
        fields = parser.parse_fields(pattern, field, MAX_NESTING)
        parser.count_nodes(1 + sum(name.count(".") for name in pattern))
        return cls([(name, name.split(".") if "." in name else (), test) for name, test in fields.items()])

    def holds(self, value: object) -> bool:
        """Whether a value matches."""
        return isinstance(value, dict) and all(
            test(value_at(value, name, path)) for name, path, test in self.fields
        )


FieldTest = OneOf | Negation | Range | Exists
Test = FieldTest | Pattern


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on fields, all of which must hold."""

    conditions: tuple[tuple[str, Test], ...] = ()

    @classmethod
    def parse(cls, expression: object, field: str = "filter", *, allow_pattern: bool = True) -> Filter:
        """Parses a filter expression; an error names the field that is wrong.

        `allow_pattern`: whether it may contain a pattern of the value.
        """
        if expression is None:
            return cls()
        if not isinstance(expression, dict):
            raise InvalidRequest(field, "an object of conditions by field name")
        conditions: list[tuple[str, Test]] = []
        for name, condition in expression.items():
            path = f"{field}.{name}"
            if name == VALUE and allow_pattern:
                conditions.append((name, Pattern.parse(condition, path)))
            else:
                conditions += [(name, test) for test in _parse_condition(name, condition, path)]
        if len(conditions) > MAX_CONDITIONS:
            raise InvalidRequest(field, f"at most {MAX_CONDITIONS} conditions")
        if sum(len(test.choices) for _, test in conditions if isinstance(test, OneOf)) > MAX_CHOICES:
            raise InvalidRequest(field, f"at most {MAX_CHOICES} choices in all")
        return cls(tuple(conditions))

    def by_field(self) -> dict[str, list[FieldTest]]:
        """The tests of each field."""
        fields: dict[str, list[FieldTest]] = {}
        for name, test in self.on_fields:
            fields.setdefault(name, []).append(test)
        return fields

    @property
    def on_fields(self) -> list[tuple[str, FieldTest]]:
        """The conditions without the patterns of the value."""
        return [(name, test) for name, test in self.conditions if not isinstance(test, Pattern)]

    def holds(
        self, field_value: Callable[[str], FieldValue], value: Callable[[], Mapping[str, JSON]]
    ) -> bool:
        """True if a memory matches; `field_value` looks a field up, and `value` decrypts the memory."""
        return all(
            test.holds(value()) if isinstance(test, Pattern) else test.holds(field_value(name))
            for name, test in self.conditions
        )


def field_of(
    name: str,
    attributes: Mapping[str, JSON],
    index: Mapping[str, str],
    value: Callable[[], Mapping[str, JSON]],
) -> FieldValue:
    """Returns a field from the attributes, else from the index texts, else from the value."""
    if name in attributes:
        return attributes[name]
    return index[name] if name in index else value_at(value(), name, name.split("."), ABSENT)


def _parse_condition(name: object, condition: object, field: str) -> list[Test]:
    if type(name) is not str or not _scalar(name, "filter") or len(name) > MAX_NAME:
        raise InvalidRequest("filter", f"field names that are strings of 1 to {MAX_NAME} characters")
    if _is_scalar(condition):
        return [OneOf((_scalar(condition, field),))]
    if not isinstance(condition, dict) or not condition:
        raise InvalidRequest(field, _SYNTAX)
    return [_parse_operator(op, operand, field) for op, operand in condition.items()]


def _parse_operator(op: object, operand: object, field: str) -> Test:
    word, path = (op.removeprefix("$") if type(op) is str else ""), f"{field}.{op}"
    if word == "in":
        if not isinstance(operand, list):
            raise InvalidRequest(path, "a list of scalars")
        if len(operand) > MAX_CHOICES:
            raise InvalidRequest(path, f"at most {MAX_CHOICES} choices")
        return OneOf(tuple(_scalar(choice, path) for choice in operand))
    if word in _SIGNS:
        return _parse_range(_SIGNS[word], operand, path)
    if op == "$eq":
        return OneOf((_scalar(operand, path),))
    if op == "$ne":
        return Negation(OneOf((_scalar(operand, path),)))
    if op == "$exists":
        if not isinstance(operand, bool):
            raise InvalidRequest(path, "true or false")
        return Exists(operand)
    raise InvalidRequest(field, _SYNTAX)


def _parse_range(sign: str, bound: object, field: str) -> Range:
    if isinstance(bound, str) and bound in INFINITIES:
        bound = INFINITIES[bound]
    if _is_number(bound) and (isinstance(bound, int) or not math.isnan(bound)):
        return Range(sign, bound, instant=False)
    moment = parse_rfc3339(bound) if isinstance(bound, str) else None
    if moment is None:
        raise InvalidRequest(field, _BOUND)
    return Range(sign, moment, instant=True)


def _is_scalar(value: object) -> TypeGuard[Scalar]:
    return value is None or isinstance(value, bool | int | float | str)


def _scalar(value: object, field: str) -> Scalar:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(field, "text without lone surrogates") from None
        return value
    raise InvalidRequest(field, "a string, a finite number within 64 bits, true, false or null")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _typed(scalar: Scalar) -> tuple[bool, Scalar]:
    """Returns a key that is equal for equal scalars of one type; 7 and 7.0 have one type."""
    return isinstance(scalar, bool), scalar


class _PatternParser:
    """Turns the parts of a pattern into tests of a value; errors name the part that is wrong."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._node_count = 0

    def count_nodes(self, number: int = 1) -> None:
        """Counts parts of the pattern; raises if there are too many."""
        self._node_count += number
        if self._node_count > MAX_NODES:
            raise InvalidRequest(self._field, f"at most {MAX_NODES} values in total")

    def parse_fields(self, node: Mapping[Any, object], field: str, depth: int) -> dict[str, ValueTest]:
        """The test of each field, or of each operator, of an object."""
        tests, has_operators = {}, _has_operators(node)
        for name, part in node.items():
            if type(name) is not str or len(name) > MAX_NAME:
                raise InvalidRequest(field, f"names that are strings of at most {MAX_NAME} characters")
            tests[name] = self._parse(part, f"{field}.{name}", depth - 1)
            if has_operators:
                tests[name] = _parse_pattern_operator(name, part, f"{field}.{name}")
        return tests

    def _parse(self, node: object, field: str, depth: int) -> ValueTest:
        self.count_nodes()
        if depth == 0:
            raise InvalidRequest(field, f"at most {MAX_NESTING} levels of nesting")
        if isinstance(node, dict):
            fields = self.parse_fields(node, field, depth)
            return partial(_holds_all if _has_operators(node) else _has_fields, fields)
        if isinstance(node, list | tuple):
            items = [self._parse(part, f"{field}[{index}]", depth - 1) for index, part in enumerate(node)]
            return partial(_has_items, items)
        if not _is_scalar(node):
            raise InvalidRequest(field, f"JSON data, not {type(node).__name__}")
        return partial(operator.eq, node)


def _parse_pattern_operator(name: str, operand: Any, field: str) -> ValueTest:
    if name not in _OPERATORS:
        raise InvalidRequest(field, f"one of {', '.join(_OPERATORS)}")
    if name == "$in" and not isinstance(operand, list):
        raise InvalidRequest(field, "a list")
    if name in _RANGES:
        operand = _comparable(operand)
        if operand is None:
            raise InvalidRequest(field, _BOUND)
    return partial(_OPERATORS[name], operand)


def _holds_all(tests: Mapping[str, ValueTest], value: object) -> bool:
    return all(test(value) for test in tests.values())


def _has_fields(tests: Mapping[str, ValueTest], value: object) -> bool:
    return isinstance(value, dict) and all(test(value.get(name)) for name, test in tests.items())


def _has_items(tests: Sequence[ValueTest], value: object) -> bool:
    return isinstance(value, list) and len(value) == len(tests) and all(map(operator.call, tests, value))


def _is_in_range(compare: ValueTest, bound: tuple[str, float], value: object) -> bool:
    kind, comparable = _comparable(value) or (None, None)
    return kind == bound[0] and compare(comparable, bound[1])


_RANGES = {f"${name}": partial(_is_in_range, _COMPARE[sign]) for name, sign in _SIGNS.items()}
_OPERATORS: dict[str, ValueTest] = {
    "$eq": operator.eq, "$ne": operator.ne, "$in": operator.contains, **_RANGES
}  # fmt: skip


def _has_operators(node: Mapping[Any, Any]) -> bool:
    return any(isinstance(name, str) and name.startswith("$") for name in node)


def _comparable(value: object) -> tuple[str, int | float] | None:
    """The kind and number by which a value is compared: a number, also as text, or a time; else None."""
    if isinstance(value, int | float):
        return ("number", value)
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        return None
    try:
        return ("number", float(value))
    except ValueError:
        moment = parse_rfc3339(value)
        return None if moment is None else ("moment", moment)


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
    """Returns an equivalent filter that JSON can carry; anything but a dict unchanged."""
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
        name: _number_to_json(part) if name.lstrip("$") in _SIGNS else part
        for name, part in condition.items()
    }


def _pattern_to_json(node: Any) -> Any:
    """Returns an equivalent pattern; instead of a number that no value equals, one that matches nothing."""
    if isinstance(node, dict):
        return {
            name: (_number_to_json if name in _RANGES else _pattern_to_json)(part)
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
