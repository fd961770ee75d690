"""Checks that a store has the schema that this program's version files create.

The version of a schema does not change if somebody edits it by hand. If only the version were checked, the
program would start, and then every write would fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cache

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
def sqlite_schema() -> Mapping[str, str]:
    """SQLite's description of the schema that the version files create: lines, each with its table."""
    with closing(apsw.Connection(":memory:")) as db:
        for script in schema("schema"):
            db.execute(script)
        return _describe(db)


def sqlite_lines(db: apsw.Connection) -> list[str]:
    """SQLite's description of a file's tables that version files create, with indexes and triggers."""
    tables = {*sqlite_schema().values()}
    return [line for line, table in _describe(db).items() if table in tables]


def _describe(db: apsw.Connection) -> dict[str, str]:
    lines = {}
    objects = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    for kind, name, table, sql in objects:
        text = " ".join(str(sql).split())
        is_unique = text.upper().startswith("CREATE UNIQUE")
        lines[f"{'unique index' if is_unique else kind} {name}: {text}"] = str(table)
    return lines


def check_schema(place: object, version: int, expected: Iterable[str], actual: Iterable[str]) -> None:
    """Raises unless the schema is as expected, or has only additions that do not affect writes."""
    expected, actual = {*expected}, {*actual}
    differences = ""
    for title, lines in (("Missing", expected - actual), ("Unexpected", actual - expected)):
        relevant = sorted(line for line in lines if title == "Missing" or _CHANGES_WRITES.match(line))
        if relevant:
            more = len(relevant) - _MAX_LISTED
            examples = "; ".join(line[:120] for line in relevant[:_MAX_LISTED])
            differences += f" {title}: {examples}{f'; and {more} more' if more > 0 else ''}."
    if differences:
        raise StoreError(
            f"{place} has schema {version}, but its tables are not as this version of Alcove creates them."
            f"{differences} They were changed by hand, or created by an unpublished version:"
            " undo the change or restore a backup, or run `alcove backup` with the version that created them,"
            " and restore that"
        )
