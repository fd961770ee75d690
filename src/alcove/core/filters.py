"""Attribute filters: one parsed form, compiled into a SQL predicate and into a Python one.

A field is looked up for each memory among the policy attributes, then the index fields, then in the
decrypted value: its name is a dotted path, unless the value has a key that is spelled so. SQL decides the
first two; where a field is in neither, SQL lets the row pass and `Filter.matches` decides on the opened
value, so nothing decrypted is ever on disk.

Conditions are typed: `true` is not `1`, `"1"` is not `1`, `7` equals `7.0`. A scalar against an
array means membership. `null` matches null or absent. A string in a range is an RFC 3339 instant.

`$value` instead of a field is a pattern of the value itself, whatever else has its fields' names
(`value_pattern.py`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Final, TypeGuard

from alcove.core.clock import parse_rfc3339
from alcove.core.errors import InvalidRequest
from alcove.core.principal import JSON
from alcove.core.value_pattern import INFINITIES, VALUE, Pattern, value_at

Scalar = None | bool | int | float | str
Params = list[int | float | str | bytes | None]

MAX_CONDITIONS = 64
MAX_CHOICES = 1000
MAX_NAME = 1024
"""Characters of a field's name, which is split at its dots for each memory."""
_COMPARE: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_PLAIN_NAME = re.compile("[A-Za-z_]+")
_JSON_TYPES: Final = {None: "'null'", True: "'true'", False: "'false'"}
_RANGES = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_SPELLINGS = "a scalar, or an object of in, gt, gte, lt, lte, $eq, $ne, $in, $gt, $gte, $lt, $lte, $exists"


class Absent:
    """The value of a field that is not there, which is not null."""


ABSENT: Final = Absent()
Found = JSON | Absent
"""What a memory has in a field."""
_SCALARS: Final = frozenset((type(None), bool, int, float, str))


@dataclass(frozen=True, slots=True)
class OneOf:
    """The field equals one of these scalars, or is an array that holds one."""

    choices: tuple[Scalar, ...]
    _known: frozenset[tuple[bool, Scalar]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_known", frozenset(map(_typed, self.choices)))

    def holds(self, found: Found) -> bool:
        if type(found) in _SCALARS:  # spelled out: it is asked of every memory of a list
            return (type(found) is bool, found) in self._known
        if isinstance(found, list):
            return any(_typed(member) in self._known for member in found if _is_scalar(member))
        return found is ABSENT and None in self.choices

    def sql(self, params: Params) -> str:
        plain = [c for c in self.choices if c is not None and not isinstance(c, bool)]
        types = [_JSON_TYPES[c] for c in (None, True, False) if any(c is each for each in self.choices)]
        params += plain + plain
        return _one_of(len(plain), ", ".join(types))


@lru_cache(256)
def _one_of(plain: int, types: str) -> str:
    """Texts and numbers differ by themselves; true, false and null only by their type."""
    values = ", ".join("?" * plain)
    each, whole = (
        f"({alias}.type IN ('text', 'integer', 'real') AND {alias}.value IN ({values})"
        f" OR {alias}.type IN ({types}))"
        for alias in "ef"
    )
    in_array = f"EXISTS (SELECT 1 FROM json_each(f.value) e WHERE {each})"
    return f"CASE f.type WHEN 'array' THEN {in_array} ELSE {whole} END"


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of a test; it holds where the field is absent, unless the test does too."""

    test: OneOf

    def holds(self, found: Found) -> bool:
        return not self.test.holds(found)

    def sql(self, params: Params) -> str:
        return f"NOT ({self.test.sql(params)})"


@dataclass(frozen=True, slots=True)
class Range:
    """The field is a number, or an RFC 3339 instant, on one side of a bound."""

    sign: str
    bound: int | float
    instant: bool

    def holds(self, found: Found) -> bool:
        if self.instant:
            moment = parse_rfc3339(found) if isinstance(found, str) else None
            return moment is not None and _COMPARE[self.sign](moment, self.bound)
        return _is_number(found) and _COMPARE[self.sign](found, self.bound)

    def sql(self, params: Params) -> str:
        sign, bound = self.sign, self.bound
        if isinstance(bound, int) and not -(2**63) <= bound < 2**63:
            sign, bound = _among_floats(sign, bound)
        params.append(bound)
        if self.instant:
            return f"(f.type = 'text' AND alcove_instant(f.value) {sign} ?) IS TRUE"
        return f"(f.type IN ('integer', 'real') AND f.value {sign} ?)"


@dataclass(frozen=True, slots=True)
class Exists:
    """The field is there, also when it is null; or it is not."""

    wanted: bool

    def holds(self, found: Found) -> bool:
        return (found is not ABSENT) is self.wanted

    def sql(self, params: Params) -> str:
        return "1" if self.wanted else "0"


FieldTest = OneOf | Not | Range | Exists
Test = FieldTest | Pattern


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on fields, all of which must hold."""

    conditions: tuple[tuple[str, Test], ...] = ()

    @classmethod
    def parse(cls, expression: object, field: str = "filter", *, of_values: bool = True) -> Filter:
        """The filter an expression spells; an error names the field that is wrong.

        `of_values`: whether it may have a pattern of the value.
        """
        if expression is None:
            return cls()
        if not isinstance(expression, dict):
            raise InvalidRequest(field, "an object of conditions by field name")
        conditions: list[tuple[str, Test]] = []
        for name, condition in expression.items():
            place = f"{field}.{name}"
            if name == VALUE and of_values:
                conditions.append((name, Pattern.parse(condition, place)))
            else:
                conditions += [(name, test) for test in _parse_condition(name, condition, place)]
        if len(conditions) > MAX_CONDITIONS:
            raise InvalidRequest(field, f"at most {MAX_CONDITIONS} conditions")
        if sum(len(test.choices) for _, test in conditions if isinstance(test, OneOf)) > MAX_CHOICES:
            raise InvalidRequest(field, f"at most {MAX_CHOICES} choices in all")
        return cls(tuple(conditions))

    def sql(self, params: Params) -> str:
        """A predicate on `versions v` that is false only where `matches` is, whatever the value holds."""
        if all(isinstance(test, Pattern) for _, test in self.conditions):
            return "1"
        attributes, index = (
            f"NOT EXISTS (SELECT 1 FROM json_each(v.{column}) f WHERE NOT {self._tests(params)}"
            for column in ("attributes", "index_text")
        )
        hidden = "EXISTS (SELECT 1 FROM json_each(v.attributes) a WHERE a.key = f.key)"
        return f"{attributes}) AND {index} AND NOT {hidden})"

    def policy_sql(self, params: Params) -> str:
        """The predicate of a policy's own filter: attributes only, and absent never matches."""
        if not self.conditions:
            return "1"
        plainly = self._plainly("v.attributes", params)
        fitting = f"SELECT count(*) FROM json_each(v.attributes) f WHERE {self._tests(params, other=0)}"
        return f"({plainly}({fitting}) = {len({name for name, _ in self.conditions})})"

    def _plainly(self, attributes: str, params: Params) -> str:
        """`… OR`, true only where the rest is: texts that equal texts, without a look at every attribute."""
        parts: list[str] = []
        plain: Params = []
        for name, test in self.conditions:
            if not (isinstance(test, OneOf) and _PLAIN_NAME.fullmatch(name)):
                return ""
            texts = [choice for choice in test.choices if isinstance(choice, str)]
            plain += [path := f"$.{name}", path, *texts]
            wanted = ", ".join("?" * len(texts))
            parts.append(f"json_type({attributes}, ?) = 'text' AND {attributes} ->> ? IN ({wanted}) AND")
        params += plain
        return f"{' '.join(parts)} 1 OR "

    def _tests(self, params: Params, *, other: int = 1) -> str:
        """What each field of a row must fulfil, so that a row is read once for all conditions."""
        cases = []
        for name, tests in self.by_field().items():
            params.append(name)
            cases.append(f"WHEN ? THEN {' AND '.join(test.sql(params) for test in tests)}")
        return f"(CASE f.key {' '.join(cases)} ELSE {other} END)"

    def by_field(self) -> dict[str, list[FieldTest]]:
        """What each field must fulfil."""
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
        """Whether a memory fits; `value` opens it and is called once, and only when a field needs it."""
        opened = cache(value)
        return self.holds(lambda name: field_of(name, attributes, index, opened), opened)

    def holds(self, found: Callable[[str], Found], value: Callable[[], Mapping[str, JSON]]) -> bool:
        """The same, where `found` looks a field up."""
        for name, test in self.conditions:
            if not (test.holds(value()) if isinstance(test, Pattern) else test.holds(found(name))):
                return False
        return True


def field_of(
    name: str,
    attributes: Mapping[str, JSON],
    index: Mapping[str, str],
    value: Callable[[], Mapping[str, JSON]],
) -> Found:
    """What a memory has in a field, which is looked for in its value only where nothing else has it."""
    if name in attributes:
        return attributes[name]
    return index[name] if name in index else value_at(value(), name, name.split("."), ABSENT)


def _parse_condition(name: object, condition: object, field: str) -> list[Test]:
    if type(name) is not str or not _scalar(name, "filter") or len(name) > MAX_NAME:
        raise InvalidRequest("filter", f"field names that are strings of 1 to {MAX_NAME} characters")
    if _is_scalar(condition):
        return [OneOf((_scalar(condition, field),))]
    if not isinstance(condition, dict) or not condition:
        raise InvalidRequest(field, _SPELLINGS)
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
    raise InvalidRequest(field, _SPELLINGS)


def _parse_range(sign: str, bound: object, field: str) -> Range:
    if isinstance(bound, str) and bound in INFINITIES:
        bound = INFINITIES[bound]
    if _is_number(bound) and (isinstance(bound, int) or not math.isnan(bound)):
        return Range(sign, bound, instant=False)
    moment = parse_rfc3339(bound) if isinstance(bound, str) else None
    if moment is None:
        raise InvalidRequest(field, "a number, Infinity, -Infinity or an RFC 3339 time")
    return Range(sign, moment, instant=True)


def _among_floats(sign: str, bound: int) -> tuple[str, float]:
    """A bound that SQLite has no integer for, by the nearest number it has: the same are on either side."""
    try:
        near = float(bound)
    except OverflowError:
        near = math.inf if bound > 0 else -math.inf
    if near == bound:
        return sign, near
    outside = (near < bound) is (sign[0] == ">")
    return sign[0] if outside else f"{sign[0]}=", near


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
    """A scalar so that two are equal only where they are of one type; 7 and 7.0 are."""
    return isinstance(scalar, bool), scalar
