"""Opening what other projects wrote: whole JSON documents, and SQLite files row by row."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from alcove.core.errors import InvalidRequest
from alcove.engine.sqlite.database import distrust_schema
from alcove.importers.account import Account

_SQLITE = b"SQLite format 3\0"
_READS = frozenset((apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_PRAGMA))
_GENERATED = (2, 3)
"""What SQLite calls hidden in a column that an expression computes."""
_STEPS_PER_CHECK = 1000
_MIN_STEPS, _STEPS_PER_BYTE = 100_000, 4
"""SQLite takes half a step for each byte of a file that mem0 or LangGraph wrote."""
_MIN_BYTES, _BYTES_PER_BYTE = 1 << 20, 4
"""What is read of a file, at most; two tables are read, and each byte belongs to one of them."""
_MIN_SECONDS, _BYTES_PER_SECOND = 10, 1 << 20
"""How long SQLite may take for the next row, which may be the first of a sorted file."""
_TOO_MUCH = "it takes more work than a file of its size can need"


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
    except ValueError:  # Python reads no number of more than 4300 digits
        raise InvalidRequest(path.name, f"{expected}, without numbers of thousands of digits") from None
    except RecursionError:
        raise InvalidRequest(path.name, f"{expected}, not nested so deeply") from None


class Source(apsw.Connection):
    """A connection to another program's SQLite file, which may have been made to harm who reads it.

    Only tables are read, and no expression of the file's own is ever evaluated: no view, trigger, virtual
    table or generated column. Reading ends where it takes more steps, bytes or time than the size of the
    file warrants, as it would where pages of a damaged file refer to each other.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        self.name = path.name
        files = (path, path.with_name(path.name + "-wal"))
        size = sum(each.stat().st_size for each in files if each.exists())
        self._steps_left = _MIN_STEPS + _STEPS_PER_BYTE * size
        self._bytes_left = _MIN_BYTES + _BYTES_PER_BYTE * size
        self._max_seconds = _MIN_SECONDS + size / _BYTES_PER_SECOND
        self._deadline = time.monotonic() + self._max_seconds
        distrust_schema(self)
        self.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        self.set_authorizer(lambda action, *_: apsw.SQLITE_OK if action in _READS else apsw.SQLITE_DENY)
        self.set_progress_handler(self._is_spent, _STEPS_PER_CHECK)
        self.set_busy_timeout(5000)

    def fetch(self, cursor: apsw.Cursor) -> tuple[Any, ...] | None:
        """Returns the next row of a statement, or None after the last."""
        self._deadline = time.monotonic() + self._max_seconds
        row = cursor.fetchone()
        for value in row or ():
            self._bytes_left -= len(value) if isinstance(value, str | bytes) else 8
        if self._bytes_left < 0:
            raise apsw.InterruptError
        return row

    def _is_spent(self) -> bool:
        self._steps_left -= _STEPS_PER_CHECK
        return self._steps_left < 0 or time.monotonic() > self._deadline


@contextmanager
def database(path: Path, expected: str) -> Iterator[Source]:
    """An SQLite file, opened for reading only."""
    if not is_sqlite(path):
        raise InvalidRequest(path.name, f"{expected}, which is an SQLite database")
    connection = None
    try:
        connection = Source(path)
        connection.execute("SELECT count(*) FROM sqlite_schema").get  # noqa: B018  reads it, or fails
        yield connection
    except apsw.Error as error:
        raise InvalidRequest(path.name, f"{expected}; it cannot be read: {_reason(error)}") from None
    finally:
        if connection:
            connection.close()


def columns(connection: Source, table: str) -> set[str]:
    """Returns the names of a table's columns; none where there is no such table.

    SQLite is asked for its kind, and not the table `sqlite_schema`, which may say anything.
    """
    kinds = "SELECT type FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE"
    found = "SELECT name, hidden FROM pragma_table_xinfo(?)"
    for (kind,) in connection.execute(kinds, (table,)):
        if kind != "table":
            raise InvalidRequest(connection.name, f"a database in which {table} is a table, not a {kind}")
    names = set()
    for name, hidden in connection.execute(found, (table,)):
        if hidden in _GENERATED:
            raise InvalidRequest(connection.name, f"a table {table} whose column {name} holds its own values")
        names.add(name)
    return names


def rows(connection: Source, statement: str, account: Account, table: str) -> Iterator[dict[str, Any]]:
    """The rows of a statement by the names of their columns, as they are read.

    Where the file is damaged, that is told, and what came before it is brought.
    """
    try:
        cursor = connection.execute(statement)
        while (row := connection.fetch(cursor)) is not None:
            yield dict(zip((name for name, _ in cursor.get_description()), row, strict=True))
    except apsw.Error as error:
        account.fail(f"table {table}", f"cannot be read any further: {_reason(error)}")


def _reason(error: apsw.Error) -> str:
    return _TOO_MUCH if isinstance(error, apsw.InterruptError) else str(error)
