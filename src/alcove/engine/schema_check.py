"""Whether a store's tables are what this program's version files make.

A schema that was edited in place keeps its number: a program that goes by the number alone would start, and
fail with each write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import apsw

from alcove.core.errors import StoreError
from alcove.engine.statements import load, read_text, schema

_MANIFEST = "schema_postgres.manifest"
_CREATED = re.compile(r"^\s*CREATE (?:OR REPLACE )?(TABLE|FUNCTION) (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)
_SHOWN = 3
POSTGRES_LINES = load("schema_check.sql")["schema_lines"]
"""The statement that describes a schema, a line for each thing in it."""
_CHANGES_WRITES = re.compile(r"(trigger|rule|constraint|unique index|function) |column .* not null$")
"""Additions that make our writes fail, or do more than we write; other indexes and columns do not."""


@cache
def created(kind: str) -> tuple[str, ...]:
    """The names of the tables or functions that the version files for PostgreSQL make."""
    found = (each for script in schema("schema_postgres") for each in _CREATED.findall(script))
    return tuple(dict.fromkeys(name for what, name in found if what == kind))


@cache
def postgres_manifest() -> frozenset[str]:
    """What PostgreSQL says of the schema that all version files make; a test keeps the file up to date."""
    return frozenset(read_text(_MANIFEST).splitlines())


@cache
def sqlite_manifest() -> frozenset[str]:
    """The same for SQLite."""
    return frozenset(map(_sqlite_line, _sqlite_schema()))


def sqlite_lines(db: apsw.Connection) -> frozenset[str]:
    """What SQLite says of a file's tables that version files make, with their indexes and triggers."""
    ours = {each.table for each in _sqlite_schema()}
    return frozenset(_sqlite_line(each) for each in _sqlite_objects(db) if each.table in ours)


class _Object(NamedTuple):
    kind: str
    name: str
    table: str
    sql: str


@cache
def _sqlite_schema() -> tuple[_Object, ...]:
    """What all version files make, in memory."""
    db = apsw.Connection(":memory:")
    try:
        for script in schema("schema"):
            db.execute(script)
        return tuple(_sqlite_objects(db))
    finally:
        db.close()


def _sqlite_objects(db: apsw.Connection) -> Iterator[_Object]:
    for row in db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL"):
        yield _Object(*map(str, row))


def _sqlite_line(each: _Object) -> str:
    text = " ".join(each.sql.split())
    kind = "unique index" if text.upper().startswith("CREATE UNIQUE") else each.kind
    return f"{kind} {each.name}: {text}"


def refuse_differences(place: object, version: int, expected: Iterable[str], found: Iterable[str]) -> None:
    """Raises unless all that is expected is there, and nothing more that would change what a write does."""
    expected, found = {*expected}, {*found}
    missing, added = sorted(expected - found), sorted(filter(_CHANGES_WRITES.match, found - expected))
    if not missing and not added:
        return
    both = (("Not there", missing), ("Not expected", added))
    differences = [f" {what}: {_shown(lines)}." for what, lines in both if lines]
    raise StoreError(
        f"{place} has schema {version}, but its tables are not as this Alcove makes them."
        f"{''.join(differences)} They were changed by hand, or made by an unpublished version:"
        " undo the change or restore a backup, or use the version that made them to run `alcove backup`, and"
        " restore that"
    )


def _shown(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(line[:120] for line in lines[:_SHOWN]) + more
