"""One SQLite file: opening it safely, its connections, its errors as ours."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from alcove.core import cancellation
from alcove.core.clock import parse_rfc3339
from alcove.core.errors import AlcoveError, StoreError, Unavailable, hide_address
from alcove.engine.database import CheckResults, Database, Parameters, SkipVersion
from alcove.engine.rows import CopyProgress
from alcove.engine.schema_check import check_schema, sqlite_lines, sqlite_schema
from alcove.engine.sqlite.filter_sql import SqliteFilterCompiler
from alcove.engine.statements import SQLITE_HINTS, Params, Value, load_all, schema

APPLICATION_ID = 0x416C6376  # "Alcv", so that another program's file is never taken for ours
_create_lock = threading.Lock()
_SKIP = "alcove_skip"
"""The name of the SQL function that tells whether to skip a version."""

READER_CACHE_KB, WRITER_CACHE_KB = 8192, 2048
"""Page cache of a connection; the writer mostly uses a few pages, the ends of its indexes."""
STATEMENTS = load_all("sqlite", "quantized_index", hints=SQLITE_HINTS)
STEPS_BETWEEN_CHECKS = 50_000
"""Steps of SQLite's virtual machine, a few milliseconds, after which a read checks for cancellation."""


def migrations() -> list[str]:
    """The schema's version files, in order; the first makes version 1."""
    return schema("schema")


class Connection(apsw.Connection):
    """A connection, used by one thread at a time."""

    _skip: Callable[..., bool]

    def skip_versions(self, skip: SkipVersion) -> None:
        """Sets which versions the function `alcove_skip` skips."""
        self._skip = skip

    def skips(self, *seq: apsw.SQLiteValue) -> bool:
        """Implements `alcove_skip`; registered once, because that makes SQLite prepare all anew."""
        return self._skip(*seq)

    def run(self, name: str, params: Parameters = (), **parts: str) -> apsw.Cursor:
        statement = STATEMENTS[name]
        return self.execute(statement.format(**parts) if parts else statement, params)

    run_prepared = run

    def run_many(self, name: str, params: Iterable[Sequence[Value]]) -> apsw.Cursor:
        return self.executemany(STATEMENTS[name], params)

    def insert_rows(self, table: str, fields: str, rows: Sequence[Sequence[Any]]) -> None:
        places = ", ".join("?" * (fields.count(",") + 1))
        self.executemany(STATEMENTS["insert_rows"].format(table=table, fields=fields, places=places), rows)

    def flush(self) -> None:
        """Nothing is buffered here."""

    def update(self, name: str, *params: Value) -> int:
        self.execute(STATEMENTS[name], params)
        return self.changes()

    def mark(self, name: str) -> int:
        return int(self.execute(STATEMENTS["mark"], (name,)).get)

    def last_id(self) -> int:
        return self.last_insert_rowid()

    def run_text(self, statement: str) -> apsw.Cursor:
        return self.execute(statement)


class SqliteDatabase(Database):
    """The connections to one file."""

    has_quantized_index = True
    filters = SqliteFilterCompiler()

    def __init__(self, path: Path, *, busy_timeout: float, on_create: Callable[[], None]) -> None:
        self.path = path
        self._write_lock = threading.Lock()
        self._busy_timeout = busy_timeout
        self._readers: deque[Connection] = deque()
        """Idle connections."""
        self._closed = False
        self._is_durable = True
        """Whether the writer's commits currently wait for the disk."""
        _create_file(path)
        with translate_errors(self.path):
            self._writer = self._connect(cache_kb=WRITER_CACHE_KB)
            try:
                self._migrate(on_create)
            except BaseException:
                self._writer.close()
                raise

    @contextmanager
    def write(
        self, *, roll_back: bool = False, durable: bool = True, exclusive: bool = True
    ) -> Iterator[Connection]:
        with self._write_lock:
            if self._closed:
                raise self._closed_error()
            try:
                if durable is not self._is_durable:
                    self._set_durable(durable=durable)
                self._writer.execute("BEGIN IMMEDIATE")
                yield self._writer
                self._writer.execute("ROLLBACK" if roll_back else "COMMIT")
            except BaseException as error:
                if self._writer.in_transaction:  # a full disk has rolled it back already
                    self._writer.execute("ROLLBACK")
                if isinstance(error, apsw.Error):
                    raise _translate(error, self.path) from error
                raise

    def _set_durable(self, *, durable: bool) -> None:
        """FULL syncs the log and everything before it at each commit; NORMAL only at a checkpoint."""
        self._is_durable = False  # stays False if the next line fails
        self._writer.pragma("synchronous", "FULL" if durable else "NORMAL")
        self._is_durable = durable

    @contextmanager
    def read(self) -> Iterator[Connection]:
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = self._new_reader()
        try:
            yield reader
        except apsw.Error as error:
            raise _translate(error, self.path) from error
        finally:
            self._readers.append(reader)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        with self.read() as db, db:
            yield db

    def fetch(self, name: str, *params: Value) -> list[tuple[Any, ...]]:
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = self._new_reader()
        try:  # not `with self.read()`: every get runs this, and that costs as much as the statement
            return reader.execute(STATEMENTS[name], params).fetchall()
        except apsw.Error as error:
            raise _translate(error, self.path) from error
        finally:
            self._readers.append(reader)

    def stream(
        self, name: str, params: Params, skip: SkipVersion | None = None, **parts: str
    ) -> Iterator[tuple[Any, ...]]:
        with self.read() as db:
            if skip:
                db.skip_versions(skip)
                parts["condition"] = f"NOT {_SKIP}(seq) AND {parts['condition']}"
            cursor = db.run(name, params, **parts)
            try:
                yield from cursor
            finally:
                cursor.close()

    def index_hint(self, index: str | None) -> str:
        return f"INDEXED BY {index}" if index else "NOT INDEXED"

    def check_integrity(self) -> CheckResults:
        with self.snapshot() as db:
            pages = db.execute("PRAGMA page_count").fetchone()
            wrong = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
            yield "the file is sound", pages[0] if pages else 0, wrong

    def copy(self, to: Path) -> Iterator[CopyProgress]:
        from alcove.engine.sqlite.backup_file import copy  # noqa: PLC0415  it imports this module

        with self.read() as db:
            yield from copy(db, to)

    def _new_reader(self) -> Connection:
        if self._closed:
            raise self._closed_error()
        with translate_errors(self.path):
            reader = self._connect(cache_kb=READER_CACHE_KB)
            reader.create_scalar_function(_SKIP, reader.skips, 1)
            reader.set_progress_handler(cancellation.is_cancelled, STEPS_BETWEEN_CHECKS)
            return reader

    def rebuild(self, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Rewrites the whole file, so that no deleted byte is left in it or in its log.

        `secure_delete` is not enough: splitting a page leaves copies of keys in its unused part. False if a
        reader elsewhere prevented SQLite from emptying the log: it may still contain deleted bytes.
        """
        with self._write_lock, translate_errors(self.path):
            if self._closed:
                raise self._closed_error()
            self._set_durable(durable=True)
            rewrite(self._writer)
            ((busy, _, _),) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return not busy

    def close(self) -> None:
        """Closes idle connections; closing the last one empties the log into the file."""
        with self._write_lock:
            self._closed = True
            idle, self._readers = self._readers, deque(maxlen=0)  # keeps none that is returned later
            while idle:
                idle.pop().close()
            self._writer.close()

    def _closed_error(self) -> Unavailable:
        return hide_address(Unavailable(f"{self.path} has been closed"), self.path)

    def _connect(self, *, cache_kb: int) -> Connection:
        """Connects to the file if it is one of our stores; otherwise raises and does not change it."""
        db = Connection(os.fspath(self.path))
        try:
            self._check_ownership(db)
            # Without this, SQLite plans `ORDER BY` queries anew for every bound value.
            db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            db.create_scalar_function(
                "alcove_instant", lambda *texts: parse_rfc3339(str(texts[0])), 1, deterministic=True
            )
            self._switch_to_wal(db)
            db.execute(f"PRAGMA synchronous = FULL; PRAGMA cache_size = -{cache_kb}")
        except BaseException:
            db.close()
            raise
        return db

    def _switch_to_wal(self, db: apsw.Connection) -> None:
        """SQLite calls no busy handler here, so processes that open a new file at the same time retry."""
        keep_trying = _BusyHandler(self._busy_timeout)
        for tries in itertools.count():
            try:
                ((mode,),) = db.execute("PRAGMA journal_mode = WAL")
                break
            except apsw.BusyError:
                if not keep_trying(tries):
                    raise
        if mode != "wal":
            raise StoreError(f"{self.path} is on a file system that does not support a write-ahead log")

    def _check_ownership(self, db: apsw.Connection) -> None:
        db.set_busy_handler(_BusyHandler(self._busy_timeout))
        if db.readonly("main"):
            error = Unavailable(f"{self.path} is read-only: Alcove needs to write to it")
            raise hide_address(error, self.path)
        db.execute("BEGIN")  # one snapshot: another process may be creating it
        application_id, version = pragma(db, "application_id"), pragma(db, "user_version")
        is_empty = not db.execute("SELECT 1 FROM sqlite_schema").fetchone()
        db.execute("ROLLBACK")
        if application_id or not is_empty:  # not a new file
            check_ownership(self.path, application_id, version)

    def _migrate(self, on_create: Callable[[], None]) -> None:
        """Migrates the schema to this program's version; a new file's key is created in the same step."""
        scripts = migrations()
        if pragma(self._writer, "user_version") != len(scripts):
            with self.write() as db:
                version = pragma(db, "user_version")
                if version == 0:
                    on_create()
                    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                for script in scripts[version:]:
                    db.execute(script)
                db.execute(f"PRAGMA user_version = {len(scripts)}")
        check_schema(self.path, len(scripts), sqlite_schema(), sqlite_lines(self._writer))


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raises the driver's errors about a file as ours."""
    try:
        yield
    except apsw.Error as error:
        raise _translate(error, path) from error


def check_ownership(path: Path, application_id: int, version: int) -> None:
    """Raises unless a file with this id and schema version is a store that this program can read."""
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path} is another program's database, not an Alcove store")
    if version > len(migrations()):
        raise StoreError(f"{path} was made by a newer Alcove (schema {version}); upgrade first")


def _create_file(path: Path) -> None:
    """Creates an empty file that only its owner can read, if there is none; SQLite's log gets its mode.

    Only one thread at a time, because closing a file releases all of the process's locks on it.
    """
    with _create_lock, suppress(OSError):  # SQLite reports the reason
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


class _BusyHandler:
    """A busy handler that retries every millisecond or so, until the timeout."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = 0.0

    def __call__(self, tries: int) -> bool:
        if tries == 0:
            self._deadline = time.monotonic() + self._seconds
        time.sleep(min(0.0005 * (tries + 1), 0.005))
        return time.monotonic() < self._deadline


def rewrite(db: apsw.Connection) -> None:
    """Rewrites a whole file, without the bytes of deleted rows.

    The statistics of ANALYZE contain samples of keys, which VACUUM would copy: they are gathered again.
    """
    names = "SELECT name FROM sqlite_schema WHERE name GLOB 'sqlite_stat[1-4]'"
    statistics = [name for (name,) in db.execute(names).fetchall()]
    for name in statistics:
        db.execute(f"DROP TABLE {name}")
    db.execute("VACUUM").fetchall()
    if statistics:
        db.execute("ANALYZE").fetchall()


def distrust_schema(db: apsw.Connection) -> None:
    """Prevents a file of unknown origin from running its own code when it is read."""
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)


def pragma(db: apsw.Connection, name: str) -> int:
    ((value,),) = db.execute(f"PRAGMA {name}")
    return int(value)


def _translate(error: apsw.Error, path: Path) -> Exception:
    translated: AlcoveError
    match error:
        case apsw.InterruptError():
            return cancellation.Cancelled()
        case apsw.BusyError() | apsw.LockedError():
            translated = Unavailable(f"{path} is busy: another process locked it for too long")
        case apsw.FullError():
            translated = Unavailable(f"{path}: the disk is full; this write was not stored")
        case apsw.ReadOnlyError():
            translated = Unavailable(f"{path} is read-only: Alcove needs to write to it")
        case apsw.CantOpenError():
            translated = StoreError(
                f"{path} cannot be opened: does its folder exist, and may this user write to it?"
            )
        case apsw.NotADBError() | apsw.CorruptError():
            translated = StoreError(f"{path} is not a database, or it is damaged; restore it from a backup")
        case apsw.IOError():
            translated = Unavailable(f"{path}: the disk failed ({error}); this write was not stored")
        case _:
            translated = AlcoveError(f"{path}: {error}")
    return hide_address(translated, path)
