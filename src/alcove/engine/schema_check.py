"""Checks that a store's tables are what this program's version files create.

A schema that was edited in place keeps its number: a program that trusts the number alone would start, and
then fail with each write.
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
_MAX_LISTED = 3
POSTGRES_LINES = load("schema_check.sql")["schema_lines"]
"""The statement that describes a schema, one line for each table, column, index and so on."""
_CHANGES_WRITES = re.compile(r"(trigger|rule|constraint|unique index|function) |column .* not null$")
"""Additions that would make our writes fail or change what they do; other indexes and columns do not."""


@cache
def created(kind: str) -> tuple[str, ...]:
    """Returns the names of the tables or functions that the version files for PostgreSQL create."""
    names = (each for script in schema("schema_postgres") for each in _CREATED.findall(script))
    return tuple(dict.fromkeys(name for created_kind, name in names if created_kind == kind))


@cache
def postgres_manifest() -> frozenset[str]:
    """PostgreSQL's description of the schema that the version files create; a test keeps the file current."""
    return frozenset(read_text(_MANIFEST).splitlines())


@cache
def sqlite_manifest() -> frozenset[str]:
    """The same for SQLite."""
    return frozenset(map(_sqlite_line, _sqlite_schema()))


def sqlite_lines(db: apsw.Connection) -> frozenset[str]:
    """SQLite's description of a file's tables that version files create, with indexes and triggers."""
    ours = {each.table for each in _sqlite_schema()}
    return frozenset(_sqlite_line(each) for each in _sqlite_objects(db) if each.table in ours)


class _Object(NamedTuple):
    kind: str
    name: str
    table: str
    sql: str


@cache
def _sqlite_schema() -> tuple[_Object, ...]:
    """What all version files create, in memory."""
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


def check_schema(place: object, version: int, expected: Iterable[str], actual: Iterable[str]) -> None:
    """Raises unless the schema is as expected, or has only additions that leave writes as they are."""
    expected, actual = {*expected}, {*actual}
    missing, added = sorted(expected - actual), sorted(filter(_CHANGES_WRITES.match, actual - expected))
    if not missing and not added:
        return
    both = (("Missing", missing), ("Unexpected", added))
    differences = [f" {title}: {_list(lines)}." for title, lines in both if lines]
    raise StoreError(
        f"{place} has schema {version}, but its tables are not as this version of Alcove creates them."
        f"{''.join(differences)} They were changed by hand, or created by an unpublished version:"
        " undo the change or restore a backup, or run `alcove backup` with the version that created them, and"
        " restore that"
    )


def _list(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - _MAX_LISTED} more" if len(lines) > _MAX_LISTED else ""
    return "; ".join(line[:120] for line in lines[:_MAX_LISTED]) + more
