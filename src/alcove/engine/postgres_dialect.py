"""Statements and filters as PostgreSQL is asked them: those of SQLite in other words, and a few of its own.

A `?` becomes a `$1`, an index that SQLite is told to use is left to the planner, and a filter goes by
`jsonb`, where two scalars are equal if they are of one type, and `7` equals `7.0`.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from alcove.core.filters import Exists, FieldTest, Filter, Not, OneOf, Params, Range
from alcove.engine.rows import Scope
from alcove.engine.statements import dialect

_IN_OTHER_WORDS = [
    (re.compile(r" (NOT INDEXED|INDEXED BY \w+)"), ""),
    (re.compile(r"CROSS JOIN (\w+ \w+) (ON|USING)"), r"JOIN \1 \2"),
    (re.compile(r"CROSS JOIN (\w+ \w+)\n(ON|USING)"), r"JOIN \1\n\2"),
    (re.compile(r"IS NOT (?!NULL|DISTINCT|TRUE)"), "IS DISTINCT FROM "),
    (re.compile(r"\bhex\((\w+)\)"), r"encode(\1, 'hex')"),
    (re.compile(r'(?<![:"\w])user(?![\w"])'), '"user"'),
]
_PLACEHOLDER = re.compile(r"\?(\d*)|(?<!:):([a-z]\w*)")


@lru_cache(1024)
def spelled(statement: str) -> str:
    """A statement of SQLite as PostgreSQL spells it, placeholders apart."""
    for pattern, words in _IN_OTHER_WORDS:
        statement = pattern.sub(words, statement)
    return statement


STATEMENTS = {
    name: spelled(statement)
    for name, statement in dialect(
        "postgres.sql",
        "candidates.sql",
        "vector_store.sql",
        "scrub.sql",
        reached="(SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM versions_seq_seq)",
        age="age(CAST(CAST(CAST(?1 AS TEXT) AS xid8) AS xid))",
        numbers="SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(? AS JSON))",
    ).items()
}


@lru_cache(1024)
def numbered(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """A statement with `$1`, `$2`, … for its parameters, and their names if they have any."""
    names: list[str] = []
    highest = 0

    def number(found: re.Match[str]) -> str:
        nonlocal highest
        if name := found[2]:
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        place = int(found[1]) if found[1] else highest + 1
        highest = max(highest, place)
        return f"${place}"

    return _PLACEHOLDER.sub(number, statement).encode(), tuple(names)


def where(scope: Scope, params: Params) -> str:
    """What of a subtree may be seen, and was asked for, as a predicate on `versions v`."""
    return spelled(scope.sql(params, policy=_policy, asked=_filter))


def _filter(conditions: Filter, params: Params) -> str:
    """False only where `Filter.matches` is, whatever the value holds."""
    if not conditions.on_fields:
        return "TRUE"
    attributes, index = (
        f"NOT EXISTS (SELECT 1 FROM jsonb_each(CAST(v.{column} AS JSONB)) f"
        f" WHERE NOT {_tests(conditions, params, other=True)}"
        for column in ("attributes", "index_text")
    )
    return f"{attributes}) AND {index} AND NOT jsonb_exists(CAST(v.attributes AS JSONB), f.key))"


def _policy(conditions: Filter, params: Params) -> str:
    """Of a policy's own filter: attributes only, and absent never matches."""
    if not conditions.conditions:
        return "TRUE"
    plain: Params = []
    parts = [_plainly(name, test, plain) for name, test in conditions.conditions]
    if all(parts):
        params += plain
        return " AND ".join(parts)
    tests = _tests(conditions, params, other=False)
    names = len({name for name, _ in conditions.conditions})
    return f"(SELECT count(*) FROM jsonb_each(CAST(v.attributes AS JSONB)) f WHERE {tests}) = {names}"


def _plainly(name: str, test: object, params: Params) -> str:
    """That an attribute is one of some texts or holds one, as nearly all policies ask; empty for other tests.

    A look at every attribute would cost more, to plan and to do, than all the rest of a statement.
    """
    if not isinstance(test, OneOf):
        return ""
    texts = [each for each in test.choices if isinstance(each, str) and escaped(each) == each]
    if len(texts) < len(test.choices):
        return ""  # also where one is kept otherwise than it is spelled
    params += [name, name, *texts]
    attribute, choices = "CAST(v.attributes AS JSONB) -> ?", ", ".join("?" * len(texts))
    chosen = f"jsonb_exists_any({attribute}, CAST(ARRAY[{choices}] AS TEXT[]))"
    return f"(jsonb_typeof({attribute}) != 'object' AND {chosen})"


def _tests(conditions: Filter, params: Params, *, other: bool) -> str:
    cases = []
    for name, tests in conditions.by_field().items():
        params.append(name)
        cases.append(f"WHEN ? THEN {' AND '.join(_test(test, params) for test in tests)}")
    return f"(CASE f.key {' '.join(cases)} ELSE {other} END)"


def _test(test: FieldTest, params: Params) -> str:
    match test:
        case Not(opposite):
            return f"NOT ({_test(opposite, params)})"
        case Exists(wanted):
            return str(wanted)
        case OneOf(choices):
            known = json.dumps(choices, ensure_ascii=False)  # spelled as the texts that are kept
            params += [known, known]
            among = "IN (SELECT value FROM jsonb_array_elements(CAST(? AS JSONB)))"
            member = f"EXISTS (SELECT 1 FROM jsonb_array_elements(f.value) e WHERE e.value {among})"
            return f"(CASE jsonb_typeof(f.value) WHEN 'array' THEN {member} ELSE f.value {among} END)"
        case Range(sign, bound, instant=True):
            params.append(bound)
            moment = f"alcove_instant(f.value #>> '{{}}') {sign} ?"
            return f"(CASE jsonb_typeof(f.value) WHEN 'string' THEN coalesce({moment}, FALSE) ELSE FALSE END)"
        case Range(sign, bound):
            params.append(str(bound))
            number = f"CAST(f.value AS NUMERIC) {sign} CAST(CAST(? AS TEXT) AS NUMERIC)"
            return f"(CASE jsonb_typeof(f.value) WHEN 'number' THEN {number} ELSE FALSE END)"


def escaped(text: str) -> str:
    """A text without the character that PostgreSQL cannot hold, in plain or as JSON spells it."""
    if "\0" not in text and "\\u0000" not in text and _ESCAPE not in text:
        return text
    text = text.replace(_ESCAPE, f"{_ESCAPE}1").replace("\0", f"{_ESCAPE}0")
    return _SPELLED_NUL.sub(rf"\1{_ESCAPE}2", text)


def restored(text: str) -> str:
    """What `escaped` was given."""
    if _ESCAPE not in text:
        return text
    return _ESCAPED.sub(lambda found: _MEANT[found[1]], text)


_ESCAPE = "\uf8f0"
"""A character that nobody is meant to use; where somebody does, it is escaped itself."""
_MEANT = {"0": "\0", "1": _ESCAPE, "2": "\\u0000"}
_ESCAPED = re.compile(f"{_ESCAPE}([012])")
_SPELLED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
