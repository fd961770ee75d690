"""Opening what other projects wrote: whole JSON documents, and SQLite files row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from alcove.core.errors import InvalidRequest
from alcove.upkeep.coming_from.account import Account

_SQLITE = b"SQLite format 3\0"


def is_sqlite(path: Path) -> bool:
    """Whether a file says at its beginning that it is an SQLite database."""
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def document(path: Path, expected: str) -> Any:
    """A JSON document, which is held in memory whole; `expected` says in an error what it should be."""
    if is_sqlite(path):
        raise InvalidRequest(path.name, f"{expected}, not an SQLite database")
    try:
        return json.loads(path.read_bytes())
    except UnicodeDecodeError:
        raise InvalidRequest(path.name, f"{expected}, as UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(path.name, f"{expected}; as JSON it is broken at {where}: {error.msg}") from None
    except RecursionError:
        raise InvalidRequest(path.name, f"{expected}, not nested so deeply") from None


@contextmanager
def database(path: Path, expected: str) -> Iterator[apsw.Connection]:
    """An SQLite file, opened for reading only."""
    if not is_sqlite(path):
        raise InvalidRequest(path.name, f"{expected}, which is an SQLite database")
    connection = None
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(5000)
        connection.execute("SELECT count(*) FROM sqlite_schema").get  # noqa: B018  reads it, or fails
        yield connection
    except apsw.Error as error:
        raise InvalidRequest(path.name, f"{expected}; it cannot be read: {error}") from None
    finally:
        if connection:
            connection.close()


def columns(connection: apsw.Connection, table: str) -> set[str]:
    """The names of a table's columns; none where there is no such table."""
    return {name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}


def rows(
    connection: apsw.Connection, statement: str, account: Account, table: str
) -> Iterator[dict[str, Any]]:
    """The rows of a statement by the names of their columns, as they are read.

    Where the file is damaged, that is told, and what came before it is brought.
    """
    try:
        cursor = connection.execute(statement)
        for row in cursor:
            yield dict(zip((name for name, _ in cursor.get_description()), row, strict=True))
    except apsw.Error as error:
        account.fail(f"table {table}", f"cannot be read any further: {error}")
