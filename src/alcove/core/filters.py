"""Attribute filters: their syntax, and what they match.

A field is looked up for each memory among the policy attributes, then the index fields, then in the
decrypted value, where its name is a dotted path, unless the value has a key of exactly that name. The engine
compiles the same filters to SQL (`engine/filter_sql.py`), which decides the first two; where a field is in
neither, SQL lets the row pass and `Filter.matches` decides on the opened value, so nothing decrypted is ever
on disk.

Conditions are typed: `true` is not `1`, `"1"` is not `1`, `7` equals `7.0`. A scalar against an
array means membership. `null` matches null or absent. A string in a range is an RFC 3339 instant.

`$value` in place of a field name is a pattern of the value itself (`value_pattern.py`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final, TypeGuard

from alcove.core.clock import parse_rfc3339
from alcove.core.errors import InvalidRequest
from alcove.core.principal import JSON
from alcove.core.value_pattern import INFINITIES, VALUE, Pattern, value_at

Scalar = None | bool | int | float | str

MAX_CONDITIONS = 64
MAX_CHOICES = 1000
MAX_NAME = 1024
"""Characters of a field's name, which is split at its dots for each memory."""
_COMPARE: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_RANGES = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_SYNTAX = "a scalar, or an object of in, gt, gte, lt, lte, $eq, $ne, $in, $gt, $gte, $lt, $lte, $exists"


class Absent:
    """The value of a field that is not there, which is not null."""


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
class Not:
    """The opposite of a test; it holds for an absent field, unless the test does."""

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
    """The field is there, also if it is null; or it is not."""

    expected: bool

    def holds(self, value: FieldValue) -> bool:
        return (value is not ABSENT) is self.expected


FieldTest = OneOf | Not | Range | Exists
Test = FieldTest | Pattern


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on fields, all of which must hold."""

    conditions: tuple[tuple[str, Test], ...] = ()

    @classmethod
    def parse(cls, expression: object, field: str = "filter", *, allow_pattern: bool = True) -> Filter:
        """Parses a filter expression; an error names the field that is wrong.

        `allow_pattern`: whether it may have a pattern of the value.
        """
        if expression is None:
            return cls()
        if not isinstance(expression, dict):
            raise InvalidRequest(field, "an object of conditions by field name")
        conditions: list[tuple[str, Test]] = []
        for name, condition in expression.items():
            place = f"{field}.{name}"
            if name == VALUE and allow_pattern:
                conditions.append((name, Pattern.parse(condition, place)))
            else:
                conditions += [(name, test) for test in _parse_condition(name, condition, place)]
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

    def matches(
        self,
        attributes: Mapping[str, JSON],
        index: Mapping[str, str],
        value: Callable[[], Mapping[str, JSON]],
    ) -> bool:
        """Whether a memory matches; `value` opens it, and is called at most once and only if needed."""
        opened = cache(value)
        return self.holds(lambda name: field_of(name, attributes, index, opened), opened)

    def holds(
        self, field_value: Callable[[str], FieldValue], value: Callable[[], Mapping[str, JSON]]
    ) -> bool:
        """The same, with a function that looks a field up."""
        for name, test in self.conditions:
            if not (test.holds(value()) if isinstance(test, Pattern) else test.holds(field_value(name))):
                return False
        return True


def field_of(
    name: str,
    attributes: Mapping[str, JSON],
    index: Mapping[str, str],
    value: Callable[[], Mapping[str, JSON]],
) -> FieldValue:
    """Looks a field up in the attributes, then the index, then the value."""
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
    word = op.removeprefix("$") if type(op) is str else ""
    if word == "in" and isinstance(operand, list):
        if len(operand) > MAX_CHOICES:
            raise InvalidRequest(f"{field}.{op}", f"at most {MAX_CHOICES} choices")
        return OneOf(tuple(_scalar(choice, f"{field}.{op}") for choice in operand))
    if word == "in":
        raise InvalidRequest(f"{field}.{op}", "a list of scalars")
    if word in _RANGES:
        return _parse_range(_RANGES[word], operand, f"{field}.{op}")
    if op == "$eq":
        return OneOf((_scalar(operand, f"{field}.{op}"),))
    if op == "$ne":
        return Not(OneOf((_scalar(operand, f"{field}.{op}"),)))
    if op == "$exists":
        if not isinstance(operand, bool):
            raise InvalidRequest(f"{field}.{op}", "true or false")
        return Exists(operand)
    raise InvalidRequest(field, _SYNTAX)


def _parse_range(sign: str, bound: object, field: str) -> Range:
    if isinstance(bound, str) and bound in INFINITIES:
        bound = INFINITIES[bound]
    if _is_number(bound) and (isinstance(bound, int) or not math.isnan(bound)):
        return Range(sign, bound, instant=False)
    moment = parse_rfc3339(bound) if isinstance(bound, str) else None
    if moment is None:
        raise InvalidRequest(field, "a number, Infinity, -Infinity or an RFC 3339 time")
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
    """Makes two scalars equal only if they are of one type, which 7 and 7.0 are."""
    return isinstance(scalar, bool), scalar
