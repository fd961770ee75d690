"""Statements and filters as PostgreSQL is asked them: those of SQLite in other words, and a few of its own.

A `?` becomes a `$1`, an index that SQLite is told to use is left to the planner, and a filter goes by
`jsonb`, where two scalars are equal if they are of one type, and `7` equals `7.0`.
"""

from __future__ import annotations

import re
from functools import lru_cache

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
