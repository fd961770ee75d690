"""Whether a store's tables are what this program's version files make.

A schema that was edited in place keeps its number: a program that goes by the number alone would start, and
fail with each write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import apsw

from alcove.core.errors import StoreError
from alcove.engine.statements import load, schema, text_of

_MANIFEST = "schema_postgres.manifest"
_CREATED = re.compile(r"^\s*CREATE (?:OR REPLACE )?(TABLE|FUNCTION) (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)
_SHOWN = 3
POSTGRES_LINES = load("schema_check.sql")["schema_lines"]
"""The statement that describes a schema, a line for each column, index, trigger and function."""


@cache
def created(kind: str) -> tuple[str, ...]:
    """The names of the tables or functions that the version files for PostgreSQL make."""
    found = (each for script in schema("schema_postgres") for each in _CREATED.findall(script))
    return tuple(dict.fromkeys(name for what, name in found if what == kind))


@cache
def postgres_manifest() -> frozenset[str]:
    """What PostgreSQL says of the schema that all version files make; a test keeps the file up to date."""
    return frozenset(text_of(_MANIFEST).splitlines())


@cache
def sqlite_manifest() -> frozenset[str]:
    """The same for SQLite, which makes the tables in memory to see."""
    db = apsw.Connection(":memory:")
    try:
        for script in schema("schema"):
            db.execute(script)
        return sqlite_lines(db)
    finally:
        db.close()


def sqlite_lines(db: apsw.Connection) -> frozenset[str]:
    """What SQLite says of the tables, indexes and triggers of a file."""
    found = db.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    return frozenset(f"{kind} {name}: {' '.join(str(sql).split())}" for kind, name, sql in found)


def refuse_differences(place: object, version: int, expected: Iterable[str], found: Iterable[str]) -> None:
    """Raises unless all that is expected is there; what an operator added is left alone."""
    missing = sorted({*expected} - {*found})
    if not missing:
        return
    shown = "; ".join(line[:120] for line in missing[:_SHOWN])
    more = f"; and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    raise StoreError(
        f"{place} has schema {version}, but its tables are not as this Alcove makes them."
        f" Not there: {shown}{more}. They were changed by hand, or made by an unpublished version:"
        " restore a backup, or use the version that made them to run `alcove backup`, and restore that"
    )
