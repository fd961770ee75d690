"""Copies one moment of a store into another database, table by table, and replaces only what differs.

So an interrupted copy continues, and a copy of an earlier moment receives only what has changed since. Both
sides are read in pages of the same order. A page that differs is replaced in one transaction. Lower numbers
come first, so that a version ends before the copy contains its successor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from alcove.core.errors import StoreError
from alcove.engine.database import Connection, Database
from alcove.engine.rows import MAX_INT64, CopyProgress, StoreFigures
from alcove.engine.sqlite.backup_file import remove_log
from alcove.engine.sqlite.database import SqliteDatabase

R = TypeVar("R")
S = TypeVar("S")

_BUSY_TIMEOUT = 10.0
PAGE = 500
"""Rows that are compared at once."""

_encode = msgspec.msgpack.Encoder().encode
Rows = list[tuple[Any, ...]]
Key = tuple[Any, ...]

COPIED_FROM, COPIED_AS = "copied_from", "copied_as"
"""Marks of a copy: the store it was copied from, and its state, which is 0 while it is incomplete."""


class Table(NamedTuple):
    """A table: its columns, and a key that orders its rows in the same way in every database.

    A key has no text columns, since databases collate texts differently; a table without such a key is small,
    and is copied as a whole.
    """

    name: str
    columns: str
    key: str = ""
    is_numbered: bool = False
    """True if the database numbers its rows, and uses no number twice."""
    condition: str = "TRUE"
    """The rows to copy."""

    @property
    def fields(self) -> str:
        """The columns, quoted for SQL."""
        return _quoted(self.columns)

    def key_of(self, row: Sequence[Any]) -> Key:
        """Returns the key of a row."""
        columns = self.columns.split()
        return tuple(row[columns.index(column)] for column in self.key.split())

    def between(self, after: Key | None, last: Key | None) -> tuple[dict[str, str], list[Any]]:
        """Returns the parts and the parameters of a statement about the rows after one key, up to another."""
        condition, params = self.condition, list[Any]()
        for sign, key in ((">", after), ("<=", last)):
            if key is not None:
                condition += f" AND ({_quoted(self.key)}) {sign} ({', '.join('?' * len(key))})"
                params += key
        return {"table": self.name, "condition": condition}, params


def _quoted(columns: str) -> str:
    return ", ".join(f'"{column}"' for column in columns.split())


TABLES = (
    Table("data_keys", "id subject wrapped wrapped_by", "id", is_numbered=True),
    Table("namespaces", "ns owner", "ns"),
    Table(
        "versions",
        "seq id ns key kind revision created_at ended_at expires_at owner user client agent data_key sealed"
        " attributes index_text original_at formerly ttl added_at",
        "seq",
        is_numbered=True,
    ),
    Table("vectors", "id ns seq embedder body", "id", is_numbered=True),
    Table("to_index", "seq due tries error writer size turn at_field at_window", "seq"),
    Table("pieces", "id seq body", "id", is_numbered=True),
    Table("touches", "id seq", "id", is_numbered=True),
    Table("replays", "user token created_at data_key sealed position", "created_at token"),
    Table("audit", "seq at actor action subject details", "seq", is_numbered=True),
    Table("documents", "version kind at actor body", "version", is_numbered=True),
    Table("api_keys", "id client user roles trusted digest created_at position"),
    Table("private_rooms", "template"),
    Table("serving", "only embedder", "only"),
    Table("marks", "name value", condition=f"name NOT IN ('{COPIED_FROM}', '{COPIED_AS}')"),
)
"""In the order of copying: rows that triggers write for a version are replaced by the copied ones."""


class Checksum(NamedTuple):
    """The contents of a table: the count of its rows, a digest of all of them, and its last number."""

    rows: int
    digest: str
    last_number: int

    def __str__(self) -> str:
        return f"{self.rows:,} rows ({self.digest[:12]}), numbered up to {self.last_number}"


class CopyResult(NamedTuple):
    """The checksums of a copied moment."""

    checksums: dict[str, Checksum]
    replaced: bool
    """Whether rows of the target were deleted, of which bytes may be left."""


def count_rows(db: Connection) -> int:
    """Counts the rows of all tables."""
    parts = [table.between(None, None)[0] for table in TABLES]
    return sum(int(db.run("table_row_count", (), **each).get) for each in parts)


def copy_tables(source: Connection, target: Database) -> Generator[int, None, CopyResult]:
    """Makes the target's tables equal to those of a snapshot; yields how many rows it has compared."""
    checksums, row_count, replaced = dict[str, Checksum](), 0, False
    for table in TABLES:
        last_number = _last_number(source, table)
        hasher = _TableHasher()
        for after, page, last in _pages(source, table):
            hasher.add(page)
            with target.write(durable=False) as db:
                existing = _rows(db, table, after, last, len(page) + 1)
                if existing != page:
                    parts, params = table.between(after, last)
                    db.run("delete_rows", params, **parts)
                    db.insert_rows(table.name, table.fields, page)
                    replaced = replaced or bool(existing)
            yield (row_count := row_count + len(page))
        if table.is_numbered:
            with target.write() as db:
                db.run("set_table_counter", (last_number,), table=table.name, key=table.key)
        checksums[table.name] = hasher.checksum(last_number)
    return CopyResult(checksums, replaced)


def into_file(source: Connection, to: Path) -> Iterator[CopyProgress]:
    """Copies a snapshot into a new SQLite file, and reads all of it back before it reports the end."""
    with closing(SqliteDatabase(to, busy_timeout=_BUSY_TIMEOUT, on_create=lambda: None)) as target:
        total = count_rows(source)
        result = yield from map_progress(copy_tables(source, target), lambda rows: CopyProgress(rows, total))
        with target.snapshot() as db:
            checksums = yield from map_progress(compute_checksums(db), lambda _: CopyProgress(total, total))
        if wrong := differences(result.checksums, checksums):
            raise StoreError(f"{to} differs from what was copied: {'; '.join(wrong)}")
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
        hasher = _TableHasher()
        for _, page, _ in _pages(db, table):
            hasher.add(page)
            yield (row_count := row_count + len(page))
        checksums[table.name] = hasher.checksum(_last_number(db, table))
    return checksums


def differences(expected: dict[str, Checksum], actual: dict[str, Checksum]) -> list[str]:
    """Describes the tables of a copy that differ from the original."""
    return [
        f"{name} has {actual[name]}, instead of {checksum}"
        for name, checksum in expected.items()
        if actual[name] != checksum
    ]


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


def _pages(db: Connection, table: Table) -> Iterator[tuple[Key | None, Rows, Key | None]]:
    """Yields pages of rows: the key before a page, the page, and its last key; None at both ends."""
    after = None
    while True:
        page = _rows(db, table, after, None, PAGE if table.key else MAX_INT64)
        last = table.key_of(page[-1]) if table.key and len(page) == PAGE else None
        yield after, page, last
        if last is None:
            return
        after = last


def _rows(db: Connection, table: Table, after: Key | None, last: Key | None, limit: int) -> Rows:
    parts, params = table.between(after, last)
    result = db.run(
        "table_rows", [*params, limit], **parts, fields=table.fields, order=_quoted(table.key) or "1"
    )
    rows = [tuple(row) for row in result.fetchall()]
    if "trusted" in table.columns:  # a boolean in one database, a number in the other
        i = table.columns.split().index("trusted")
        rows = [(*row[:i], bool(row[i]), *row[i + 1 :]) for row in rows]
    return rows if table.key else sorted(rows, key=_encode)


def _last_number(db: Connection, table: Table) -> int:
    return int(db.run("table_counter", (), table=table.name, key=table.key).get) if table.is_numbered else 0
