"""One moment of a store into another database, table by table: what is there already is left as it is.

So a copy that was interrupted goes on, and one of an earlier moment gets just what has changed since. Both
sides are read in pages of one order. A page that differs is replaced in one transaction; those of lower
numbers come first, so that a version has ended before the one that took its place arrives.
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
from alcove.engine.rows.versions import MAX_INT64, CopyProgress, StoreFigures
from alcove.engine.sqlite.backup_file import without_log
from alcove.engine.sqlite.database import SqliteDatabase
from alcove.engine.tables import TABLES, Key, Table

R = TypeVar("R")
S = TypeVar("S")

_BUSY_TIMEOUT = 10.0
PAGE = 500
"""Rows that are compared at once."""

_encoded = msgspec.msgpack.Encoder().encode
Rows = list[tuple[Any, ...]]


class Sum(NamedTuple):
    """What a table holds: how many rows, a digest of all of them, and how far it has counted."""

    rows: int
    digest: str
    counted: int


class Poured(NamedTuple):
    """A moment that was copied."""

    sums: dict[str, Sum]
    replaced: bool
    """Whether something was deleted, of which bytes may be left."""


def size(db: Connection) -> int:
    """How many rows there are in all tables."""
    return sum(_count(db, table) for table in TABLES)


def pour(source: Connection, target: Database) -> Generator[int, None, Poured]:
    """Makes the target's tables those of a moment, where they differ; yields how many rows it has come by."""
    sums, done, replaced = dict[str, Sum](), 0, False
    for table in TABLES:
        counted = _counted(source, table)
        adding, after = _Adding(), None
        while True:
            page, upto = _page(source, table, after)
            adding.take(page)
            with target.write(durable=False) as db:
                there = _rows(db, table, after, upto, len(page) + 1)
                if there != page:
                    parts, params = table.between(after, upto)
                    db.run("forget_rows", params, **parts)
                    db.load(table.name, table.fields, page)
                    replaced = replaced or bool(there)
            yield (done := done + len(page))
            if upto is None:
                break
            after = upto
        if table.counts:
            with target.write() as db:
                db.run("set_count", (counted,), table=table.name, key=table.key)
        sums[table.name] = adding.sum(counted)
    return Poured(sums, replaced)


def into_file(source: Connection, to: Path) -> Iterator[CopyProgress]:
    """A moment as a new file of SQLite, all of which was read back when the last step is told."""
    with closing(SqliteDatabase(to, busy_timeout=_BUSY_TIMEOUT, on_create=lambda: None)) as target:
        total = size(source)
        poured = yield from told(pour(source, target), lambda done: CopyProgress(done, total))
        with target.snapshot() as db:
            found = yield from told(sums(db), lambda _: CopyProgress(total, total))
        if wrong := differences(poured.sums, found):
            raise StoreError(f"{to} was not written as it should be: {'; '.join(wrong)}")
        with target.write() as db:  # a new file has no byte of who was wiped before
            db.run("set_mark", (db.mark("wipes"), "scrubbed"))
            summary = StoreFigures._make(db.run("summary").fetchall()[0])
    without_log(to)
    yield CopyProgress(1, 1, summary)


def told(reached: Generator[int, None, R], tell: Callable[[int], S]) -> Generator[S, None, R]:
    """Tells in other words how far something is, and gives what it gives."""
    while True:
        try:
            yield tell(next(reached))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def sums(db: Connection) -> Generator[int, None, dict[str, Sum]]:
    """What every table holds, read from its beginning to its end; yields how many rows were read so far."""
    found, done = dict[str, Sum](), 0
    for table in TABLES:
        adding, after = _Adding(), None
        while True:
            page, after = _page(db, table, after)
            adding.take(page)
            yield (done := done + len(page))
            if after is None:
                break
        found[table.name] = adding.sum(_counted(db, table))
    return found


def differences(wanted: dict[str, Sum], found: dict[str, Sum]) -> list[str]:
    """The tables of a copy that are not what they should be, in words."""
    return [
        f"{name} has {_spelled(found[name])}, instead of {_spelled(one)}"
        for name, one in wanted.items()
        if found[name] != one
    ]


def _spelled(one: Sum) -> str:
    return f"{one.rows:,} rows ({one.digest[:12]}), counted to {one.counted}"


class _Adding:
    """The sum of a table while it is read."""

    def __init__(self) -> None:
        self._rows, self._hash = 0, hashlib.sha256()

    def take(self, page: Rows) -> None:
        self._rows += len(page)
        for row in page:
            self._hash.update(_encoded(row))

    def sum(self, counted: int) -> Sum:
        return Sum(self._rows, self._hash.hexdigest(), counted)


def _page(db: Connection, table: Table, after: Key | None) -> tuple[Rows, Key | None]:
    """The next rows, and where they end; None for that where they are the last."""
    page = _rows(db, table, after, None, PAGE if table.key else MAX_INT64)
    return page, table.key_of(page[-1]) if table.key and len(page) == PAGE else None


def _rows(db: Connection, table: Table, after: Key | None, upto: Key | None, most: int) -> Rows:
    parts, params = table.between(after, upto)
    found = db.run("rows_of", [*params, most], **parts, fields=table.fields, order=table.order)
    rows = [tuple(row) for row in found.fetchall()]
    if "trusted" in table.columns:  # a truth value in one database, and a number in another
        place = table.columns.split().index("trusted")
        rows = [(*row[:place], bool(row[place]), *row[place + 1 :]) for row in rows]
    return rows if table.key else sorted(rows, key=_encoded)


def _count(db: Connection, table: Table) -> int:
    parts, params = table.between(None, None)
    return int(db.run("row_count", params, **parts).get)


def _counted(db: Connection, table: Table) -> int:
    return int(db.run("count_of", (), table=table.name, key=table.key).get) if table.counts else 0
