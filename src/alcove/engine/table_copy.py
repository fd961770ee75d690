"""Copies one moment of a store into another database, table by table, and replaces only what differs.

So an interrupted copy continues, and a copy of an earlier moment gets just what has changed since. Both sides
are read in pages of the same order. A page that differs is replaced in one transaction; lower numbers come
first, so that a version has ended before the one that replaced it arrives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from alcove.core.errors import StoreError
from alcove.engine.database import Connection, Database
from alcove.engine.rows import MAX_INT64, CopyProgress, StoreFigures
from alcove.engine.sqlite.backup_file import remove_log
from alcove.engine.sqlite.database import SqliteDatabase
from alcove.engine.tables import TABLES, Key, Table

R = TypeVar("R")
S = TypeVar("S")

_BUSY_TIMEOUT = 10.0
PAGE = 500
"""Rows that are compared at once."""

_encode = msgspec.msgpack.Encoder().encode
Rows = list[tuple[Any, ...]]


class Checksum(NamedTuple):
    """The contents of a table: the count of its rows, a digest of all of them, and its last number."""

    rows: int
    digest: str
    last_number: int


class CopyResult(NamedTuple):
    """The checksums of a copied moment."""

    checksums: dict[str, Checksum]
    replaced: bool
    """Whether rows of the target were deleted, of which bytes may be left."""


def count_rows(db: Connection) -> int:
    """Returns how many rows there are in all tables."""
    return sum(_count(db, table) for table in TABLES)


def copy_tables(source: Connection, target: Database) -> Generator[int, None, CopyResult]:
    """Makes the target's tables equal to those of a snapshot; yields how many rows it has compared."""
    checksums, row_count, replaced = dict[str, Checksum](), 0, False
    for table in TABLES:
        last_number = _last_number(source, table)
        hasher, after = _TableHasher(), None
        while True:
            page, last = _page(source, table, after)
            hasher.add(page)
            with target.write(durable=False) as db:
                existing = _rows(db, table, after, last, len(page) + 1)
                if existing != page:
                    parts, params = table.between(after, last)
                    db.run("delete_rows", params, **parts)
                    db.insert_rows(table.name, table.fields, page)
                    replaced = replaced or bool(existing)
            yield (row_count := row_count + len(page))
            if last is None:
                break
            after = last
        if table.is_numbered:
            with target.write() as db:
                db.run("set_table_counter", (last_number,), table=table.name, key=table.key)
        checksums[table.name] = hasher.checksum(last_number)
    return CopyResult(checksums, replaced)


def into_file(source: Connection, to: Path) -> Iterator[CopyProgress]:
    """Copies a snapshot into a new SQLite file, and reads all of it back before the last progress."""
    with closing(SqliteDatabase(to, busy_timeout=_BUSY_TIMEOUT, on_create=lambda: None)) as target:
        total = count_rows(source)
        result = yield from map_progress(copy_tables(source, target), lambda done: CopyProgress(done, total))
        with target.snapshot() as db:
            checksums = yield from map_progress(compute_checksums(db), lambda _: CopyProgress(total, total))
        if wrong := differences(result.checksums, checksums):
            raise StoreError(f"{to} does not hold what was copied: {'; '.join(wrong)}")
        with target.write() as db:  # a new file has no bytes of earlier wipes
            db.run("set_mark", (db.mark("wipes"), "scrubbed"))
            figures = StoreFigures._make(db.run("figures").fetchall()[0])
    remove_log(to)
    yield CopyProgress(1, 1, figures)


def map_progress(steps: Generator[int, None, R], to_progress: Callable[[int], S]) -> Generator[S, None, R]:
    """Yields the progress of some work in another form, and returns its result."""
    while True:
        try:
            yield to_progress(next(steps))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def compute_checksums(db: Connection) -> Generator[int, None, dict[str, Checksum]]:
    """Reads every table from its beginning to its end; yields how many rows it has read."""
    checksums, row_count = dict[str, Checksum](), 0
    for table in TABLES:
        hasher, after = _TableHasher(), None
        while True:
            page, after = _page(db, table, after)
            hasher.add(page)
            yield (row_count := row_count + len(page))
            if after is None:
                break
        checksums[table.name] = hasher.checksum(_last_number(db, table))
    return checksums


def differences(expected: dict[str, Checksum], actual: dict[str, Checksum]) -> list[str]:
    """Describes the tables of a copy that differ from the original."""
    return [
        f"{name} has {_describe(actual[name])}, instead of {_describe(checksum)}"
        for name, checksum in expected.items()
        if actual[name] != checksum
    ]


def _describe(checksum: Checksum) -> str:
    return f"{checksum.rows:,} rows ({checksum.digest[:12]}), numbered up to {checksum.last_number}"


class _TableHasher:
    """The checksum of a table while it is read."""

    def __init__(self) -> None:
        self._rows, self._hash = 0, hashlib.sha256()

    def add(self, page: Rows) -> None:
        self._rows += len(page)
        for row in page:
            self._hash.update(_encode(row))

    def checksum(self, last_number: int) -> Checksum:
        return Checksum(self._rows, self._hash.hexdigest(), last_number)


def _page(db: Connection, table: Table, after: Key | None) -> tuple[Rows, Key | None]:
    """Returns the next rows, and the key of the last one; None for it at the end of the table."""
    page = _rows(db, table, after, None, PAGE if table.key else MAX_INT64)
    return page, table.key_of(page[-1]) if table.key and len(page) == PAGE else None


def _rows(db: Connection, table: Table, after: Key | None, last: Key | None, limit: int) -> Rows:
    parts, params = table.between(after, last)
    result = db.run("table_rows", [*params, limit], **parts, fields=table.fields, order=table.order)
    rows = [tuple(row) for row in result.fetchall()]
    if "trusted" in table.columns:  # a boolean in one database, a number in the other
        i = table.columns.split().index("trusted")
        rows = [(*row[:i], bool(row[i]), *row[i + 1 :]) for row in rows]
    return rows if table.key else sorted(rows, key=_encode)


def _count(db: Connection, table: Table) -> int:
    parts, params = table.between(None, None)
    return int(db.run("table_row_count", params, **parts).get)


def _last_number(db: Connection, table: Table) -> int:
    return int(db.run("table_counter", (), table=table.name, key=table.key).get) if table.is_numbered else 0
