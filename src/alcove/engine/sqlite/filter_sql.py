"""Filters in SQLite, tested with `json_each`, which tells the type of each field."""

from __future__ import annotations

import math
import re
from typing import Final

from alcove.core.filters import FieldTest, OneOf, Range
from alcove.engine.filter_sql import FilterCompiler, placeholders
from alcove.engine.statements import Params

_PLAIN_NAME = re.compile("[A-Za-z_]+")
_JSON_TYPES: Final = {None: "'null'", True: "'true'", False: "'false'"}


class SqliteFilterCompiler(FilterCompiler):
    """Compares texts and numbers by value, and true, false and null by their JSON type."""

    def fields(self, column: str) -> str:
        return f"json_each(v.{column})"

    def one_of(self, test: OneOf, params: Params) -> str:
        values = [choice for choice in test.choices if choice is not None and not isinstance(choice, bool)]
        types = ", ".join(name for each, name in _JSON_TYPES.items() if any(c is each for c in test.choices))
        params += values + values
        member, whole = (
            f"({alias}.type IN ('text', 'integer', 'real') AND {alias}.value IN ({placeholders(len(values))})"
            f" OR {alias}.type IN ({types}))"
            for alias in "ef"
        )
        in_array = f"EXISTS (SELECT 1 FROM json_each(f.value) e WHERE {member})"
        return f"CASE f.type WHEN 'array' THEN {in_array} ELSE {whole} END"

    def range(self, test: Range, params: Params) -> str:
        sign, bound = test.sign, test.bound
        if isinstance(bound, int) and not -(2**63) <= bound < 2**63:
            sign, bound = _nearest_float(sign, bound)
        params.append(bound)
        if test.instant:
            return f"(f.type = 'text' AND alcove_instant(f.value) {sign} ?) IS TRUE"
        return f"(f.type IN ('integer', 'real') AND f.value {sign} ?)"

    def plain_test(self, name: str, test: FieldTest, params: Params) -> str | None:
        if not (isinstance(test, OneOf) and _PLAIN_NAME.fullmatch(name)):
            return None
        texts = [choice for choice in test.choices if isinstance(choice, str)]
        params += [path := f"$.{name}", path, *texts]
        is_one = f"v.attributes ->> ? IN ({placeholders(len(texts))})"
        return f"json_type(v.attributes, ?) = 'text' AND {is_one}"


def _nearest_float(sign: str, bound: int) -> tuple[str, float]:
    """A bound beyond 64 bits as the nearest float, with the sign that keeps the same numbers on each side."""
    try:
        near = float(bound)
    except OverflowError:
        near = math.inf if bound > 0 else -math.inf
    if near == bound:
        return sign, near
    outside = (near < bound) is (sign[0] == ">")
    return sign[0] if outside else f"{sign[0]}=", near
