"""Files of other projects: JSON documents, and SQLite databases that are not trusted."""

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
from alcove.importers.job import ImportJob

_SQLITE = b"SQLite format 3\0"
_READS = frozenset((apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_PRAGMA))
_GENERATED_COLUMN = (2, 3)
"""The `hidden` values of columns that an expression computes."""
_STEPS_PER_CHECK = 1000
_MIN_STEPS, _STEPS_PER_BYTE = 100_000, 4
"""SQLite needs half a step for each byte of a file that mem0 or LangGraph wrote."""
_MIN_BYTES, _BYTES_PER_BYTE = 1 << 20, 4
"""The limit on bytes read; two tables are read, and each byte of the file belongs to one of them."""
_MIN_SECONDS, _BYTES_PER_SECOND = 10, 1 << 20
"""The time limit for the next row, which may be the first after a sort."""
_TOO_MUCH_WORK = "it takes more work than a file of its size can need"


def is_sqlite(path: Path) -> bool:
    """Whether a file begins like an SQLite database."""
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def read_json(path: Path, expected: str) -> Any:
    """Reads a JSON document into memory; `expected` is for error messages."""
    if is_sqlite(path):
        raise InvalidRequest(path.name, f"{expected}, not an SQLite database")
    try:
        return json.loads(path.read_bytes())
    except UnicodeDecodeError:
        raise InvalidRequest(path.name, f"{expected}, as UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(path.name, f"{expected}; as JSON it is broken at {place}: {error.msg}") from None
    except ValueError:  # Python reads no number of more than 4300 digits
        raise InvalidRequest(path.name, f"{expected}, without numbers of thousands of digits") from None
    except RecursionError:
        raise InvalidRequest(path.name, f"{expected}, not nested so deeply") from None


class UntrustedDatabase(apsw.Connection):
    """A connection to another program's SQLite file, which may be crafted to attack its reader.

    It reads tables only and evaluates no expression of the file: no view, trigger, virtual table or generated
    column. It stops after more steps, bytes or seconds than a file of its size can need, for example if pages
    of a damaged file refer to each other.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        self.name = path.name
        paths = (path, path.with_name(path.name + "-wal"))
        size = sum(file.stat().st_size for file in paths if file.exists())
        self._steps_left = _MIN_STEPS + _STEPS_PER_BYTE * size
        self._bytes_left = _MIN_BYTES + _BYTES_PER_BYTE * size
        self._max_seconds = _MIN_SECONDS + size / _BYTES_PER_SECOND
        self._deadline = time.monotonic() + self._max_seconds
        distrust_schema(self)
        self.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        self.set_authorizer(lambda action, *_: apsw.SQLITE_OK if action in _READS else apsw.SQLITE_DENY)
        self.set_progress_handler(self._has_exceeded_limits, _STEPS_PER_CHECK)
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

    def _has_exceeded_limits(self) -> bool:
        self._steps_left -= _STEPS_PER_CHECK
        return self._steps_left < 0 or time.monotonic() > self._deadline


@contextmanager
def open_database(path: Path, expected: str) -> Iterator[UntrustedDatabase]:
    """Opens an SQLite file for reading only."""
    if not is_sqlite(path):
        raise InvalidRequest(path.name, f"{expected}, which is an SQLite database")
    connection = None
    try:
        connection = UntrustedDatabase(path)
        connection.execute("SELECT count(*) FROM sqlite_schema").get  # noqa: B018  reads it, or fails
        yield connection
    except apsw.Error as error:
        raise InvalidRequest(path.name, f"{expected}; it cannot be read: {_reason(error)}") from None
    finally:
        if connection:
            connection.close()


def columns(connection: UntrustedDatabase, table: str) -> set[str]:
    """The names of a table's columns; empty if there is no such table.

    Its kind comes from SQLite and not from the table `sqlite_schema`, which may contain anything.
    """
    select_kind = "SELECT type FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE"
    select_columns = "SELECT name, hidden FROM pragma_table_xinfo(?)"
    for (kind,) in connection.execute(select_kind, (table,)):
        if kind != "table":
            raise InvalidRequest(connection.name, f"a database in which {table} is a table, not a {kind}")
    names = set()
    for name, hidden in connection.execute(select_columns, (table,)):
        if hidden in _GENERATED_COLUMN:
            raise InvalidRequest(
                connection.name, f"a table {table} whose column {name} is not a generated one"
            )
        names.add(name)
    return names


def rows(
    connection: UntrustedDatabase, statement: str, job: ImportJob, table: str
) -> Iterator[dict[str, Any]]:
    """The rows of a statement as dicts; a damaged file is reported and ends them."""
    try:
        cursor = connection.execute(statement)
        while (row := connection.fetch(cursor)) is not None:
            yield dict(zip((name for name, _ in cursor.get_description()), row, strict=True))
    except apsw.Error as error:
        job.fail(f"table {table}", f"cannot be read any further: {_reason(error)}")


def _reason(error: apsw.Error) -> str:
    return _TOO_MUCH_WORK if isinstance(error, apsw.InterruptError) else str(error)
