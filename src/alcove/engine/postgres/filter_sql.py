"""Filters in PostgreSQL, tested with `jsonb`: 7 equals 7.0, and values of different types are not equal."""

from __future__ import annotations

import json

from alcove.core.filters import FieldTest, OneOf, Range
from alcove.engine.filter_sql import FilterCompiler, placeholders
from alcove.engine.postgres.text_escaping import escape
from alcove.engine.statements import Params


class PostgresFilterCompiler(FilterCompiler):
    plain_test_is_exact = True

    def fields(self, column: str) -> str:
        return f"jsonb_each(CAST(v.{column} AS JSONB))"

    def one_of(self, test: OneOf, params: Params) -> str:
        choices = json.dumps(test.choices, ensure_ascii=False)  # escaped like stored texts
        params += [choices, choices]
        is_one = "IN (SELECT value FROM jsonb_array_elements(CAST(? AS JSONB)))"
        in_array = f"EXISTS (SELECT 1 FROM jsonb_array_elements(f.value) e WHERE e.value {is_one})"
        return f"(CASE jsonb_typeof(f.value) WHEN 'array' THEN {in_array} ELSE f.value {is_one} END)"

    def range(self, test: Range, params: Params) -> str:
        if test.instant:
            kind, comparison = "string", f"alcove_instant(f.value #>> '{{}}') {test.sign} ?"
            params.append(test.bound)
        else:
            kind = "number"
            comparison = f"CAST(f.value AS NUMERIC) {test.sign} CAST(CAST(? AS TEXT) AS NUMERIC)"
            params.append(str(test.bound))
        return f"(CASE jsonb_typeof(f.value) WHEN '{kind}' THEN coalesce({comparison}, FALSE) ELSE FALSE END)"

    def plain_test(self, name: str, test: FieldTest, params: Params) -> str | None:
        if not isinstance(test, OneOf):
            return None
        texts = [each for each in test.choices if isinstance(each, str) and escape(each) == each]
        if len(texts) < len(test.choices):
            return None
        params += [name, name, *texts]
        attribute = "CAST(v.attributes AS JSONB) -> ?"
        is_one = f"jsonb_exists_any({attribute}, CAST(ARRAY[{placeholders(len(texts))}] AS TEXT[]))"
        return f"(jsonb_typeof({attribute}) != 'object' AND {is_one})"
