"""One SQLite file: opening it safely, its connections, its statements by name, its errors in our words."""

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
from alcove.engine.database import Bound, Database, Findings, RuledOut, format_finding, pairs
from alcove.engine.rows.versions import CopyProgress
from alcove.engine.schema_check import refuse_differences, sqlite_lines, sqlite_manifest
from alcove.engine.sqlite.filter_sql import SqliteFilterCompiler
from alcove.engine.statements import SQLITE_HINTS, Params, Value, load_all, schema

APPLICATION_ID = 0x416C6376  # "Alcv", so that another program's file is never taken for ours
_making = threading.Lock()
RULED_OUT = "alcove_ruled_out"
"""What a statement asks that with."""

READER_CACHE_KB, WRITER_CACHE_KB = 8192, 2048
"""What a connection keeps of the file; the writer comes by the same few pages, the ends of its indexes."""
STATEMENTS = load_all("sqlite", "digests", hints=SQLITE_HINTS)
STEPS_BETWEEN_CHECKS = 50_000
"""Steps of SQLite's machine, a few milliseconds, after which a read looks whether anybody waits for it."""


def migrations() -> list[str]:
    """The schema's version files, in order; the first makes version 1."""
    return schema("schema")


class Connection(apsw.Connection):
    """A connection, which one user at a time has."""

    ruled_out: Callable[..., bool]

    def asked(self, *seq: apsw.SQLiteValue) -> bool:
        """What `RULED_OUT` is registered as, once: registering another makes SQLite plan everything anew."""
        return self.ruled_out(*seq)

    def run(self, name: str, params: Bound = (), **parts: str) -> apsw.Cursor:
        statement = STATEMENTS[name]
        return self.execute(statement.format(**parts) if parts else statement, params)

    run_kept = run

    def run_each(self, name: str, every: Iterable[Sequence[Value]]) -> apsw.Cursor:
        return self.executemany(STATEMENTS[name], every)

    def load(self, table: str, fields: str, rows: Sequence[Sequence[Any]]) -> None:
        places = ", ".join("?" * (fields.count(",") + 1))
        self.executemany(STATEMENTS["load_rows"].format(table=table, fields=fields, places=places), rows)

    def send(self) -> None:
        """Nothing is held back here."""

    def changed(self, name: str, *params: Value) -> int:
        self.execute(STATEMENTS[name], params)
        return self.changes()

    def mark(self, name: str) -> int:
        return int(self.execute(STATEMENTS["mark"], (name,)).get)

    def added(self) -> int:
        return self.last_insert_rowid()

    def checks(self, file: str) -> Findings:
        for name, count, finding in pairs(file):
            ((compared,),) = self.execute(count)
            yield name, compared, [format_finding(row[0]) for row in self.execute(finding)]


class SqliteDatabase(Database):
    """The connections to one file."""

    keeps_digests = True
    filters = SqliteFilterCompiler()

    def __init__(self, path: Path, *, busy_timeout: float, on_create: Callable[[], None]) -> None:
        self.path = path
        self._turn = threading.Lock()
        self._busy_timeout = busy_timeout
        self._readers: deque[Connection] = deque()
        """Connections that nobody uses at the moment."""
        self._closed = False
        self._syncs = True
        """Whether the writer's commits wait for the disk, as it was last told."""
        _make(path)
        with explained(self.path):
            self._writer = self._connect(cache_kb=WRITER_CACHE_KB)
            try:
                self._migrate(on_create)
            except BaseException:
                self._writer.close()
                raise

    @contextmanager
    def write(
        self, *, undo: bool = False, durable: bool = True, in_turn: bool = True
    ) -> Iterator[Connection]:
        with self._turn:
            if self._closed:
                raise self._no_longer_open()
            try:
                if durable is not self._syncs:
                    self._sync(durable=durable)
                self._writer.execute("BEGIN IMMEDIATE")
                yield self._writer
                self._writer.execute("ROLLBACK" if undo else "COMMIT")
            except BaseException as error:
                if self._writer.in_transaction:  # a full disk has rolled it back already
                    self._writer.execute("ROLLBACK")
                if isinstance(error, apsw.Error):
                    raise _explain(error, self.path) from error
                raise

    def _sync(self, *, durable: bool) -> None:
        """FULL syncs the log, with all that came before, at each commit; NORMAL only when it is emptied."""
        self._syncs = False  # and True only once it is
        self._writer.pragma("synchronous", "FULL" if durable else "NORMAL")
        self._syncs = durable

    @contextmanager
    def read(self) -> Iterator[Connection]:
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = self._new_reader()
        try:
            yield reader
        except apsw.Error as error:
            raise _explain(error, self.path) from error
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
        try:  # and not `with`: every get comes here, and that costs as much as the statement
            return reader.execute(STATEMENTS[name], params).fetchall()
        except apsw.Error as error:
            raise _explain(error, self.path) from error
        finally:
            self._readers.append(reader)

    def stream(
        self, name: str, params: Params, ruled_out: RuledOut | None = None, **parts: str
    ) -> Iterator[tuple[Any, ...]]:
        with self.read() as db:
            if ruled_out:
                db.ruled_out = ruled_out
                parts["where"] = f"NOT {RULED_OUT}(seq) AND {parts['where']}"
            cursor = db.run(name, params, **parts)
            try:
                yield from cursor
            finally:
                cursor.close()

    def index_hint(self, index: str | None) -> str:
        return f"INDEXED BY {index}" if index else "NOT INDEXED"

    def sound(self) -> Findings:
        with self.snapshot() as db:
            pages = db.execute("PRAGMA page_count").fetchone()
            wrong = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
            yield "the file is sound", pages[0] if pages else 0, wrong

    def copy(self, to: Path) -> Iterator[CopyProgress]:
        from alcove.engine.sqlite.backup_file import copy  # noqa: PLC0415  it reads what is here

        with self.read() as db:
            yield from copy(db, to)

    def _new_reader(self) -> Connection:
        if self._closed:
            raise self._no_longer_open()
        with explained(self.path):
            reader = self._connect(cache_kb=READER_CACHE_KB)
            reader.create_scalar_function(RULED_OUT, reader.asked, 1)
            reader.set_progress_handler(cancellation.is_cancelled, STEPS_BETWEEN_CHECKS)
            return reader

    def rebuild(self, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Writes the whole file anew, so that no deleted byte is left in it or in its log.

        `secure_delete` would not do: splitting a page leaves copies of keys in its unused part. False
        where a reader elsewhere kept the log from being emptied; deleted bytes may then be left in it.
        """
        with self._turn, explained(self.path):
            if self._closed:
                raise self._no_longer_open()
            self._sync(durable=True)
            rewrite(self._writer)
            ((busy, _, _),) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return not busy

    def close(self) -> None:
        """Closes every connection that is not in use; the last one empties the log into the file."""
        with self._turn:
            self._closed = True
            idle, self._readers = self._readers, deque(maxlen=0)  # which keeps none that comes back later
            while idle:
                idle.pop().close()
            self._writer.close()

    def _no_longer_open(self) -> Unavailable:
        return hide_address(Unavailable(f"{self.path} has been closed"), self.path)

    def _connect(self, *, cache_kb: int) -> Connection:
        """A connection to the file, once it is known to be ours; refusing it leaves it as it was.

        `cache_kb`: how much of the file it keeps in memory.
        """
        db = Connection(os.fspath(self.path))
        try:
            self._refuse_what_is_not_ours(db)
            # One plan a statement: without this, SQLite plans `ORDER BY` queries anew for every value bound.
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
        """SQLite asks no busy handler here, so processes that open a new file together ask again."""
        patience = _Patience(self._busy_timeout)
        for tries in itertools.count():
            try:
                ((mode,),) = db.execute("PRAGMA journal_mode = WAL")
                break
            except apsw.BusyError:
                if not patience(tries):
                    raise
        if mode != "wal":
            raise StoreError(f"{self.path} is on a file system that cannot keep a write-ahead log")

    def _refuse_what_is_not_ours(self, db: apsw.Connection) -> None:
        db.set_busy_handler(_Patience(self._busy_timeout))
        if db.readonly("main"):
            error = Unavailable(f"{self.path} is read-only: Alcove needs to write to it")
            raise hide_address(error, self.path)
        db.execute("BEGIN")  # one look: another process may be making it at this moment
        mark, version = pragma(db, "application_id"), pragma(db, "user_version")
        empty = not db.execute("SELECT 1 FROM sqlite_schema").fetchone()
        db.execute("ROLLBACK")
        if mark == 0 and empty:
            return  # nobody's yet
        refuse_foreign(self.path, mark, version)

    def _migrate(self, on_create: Callable[[], None]) -> None:
        """Brings the schema to this program's version; a new file's key is made in the same step."""
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
        refuse_differences(self.path, len(scripts), sqlite_manifest(), sqlite_lines(self._writer))


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns the driver's errors over a file into ours."""
    try:
        yield
    except apsw.Error as error:
        raise _explain(error, path) from error


def refuse_foreign(path: Path, mark: int, version: int) -> None:
    """Raises unless these marks are those of a store that this program can read."""
    if mark != APPLICATION_ID:
        raise StoreError(f"{path} is another program's database, not an Alcove store")
    if version > len(migrations()):
        raise StoreError(f"{path} was made by a newer Alcove (schema {version}); upgrade first")


def _make(path: Path) -> None:
    """Makes an empty file that only its owner can read, unless there is one; SQLite's log gets its mode.

    One thread at a time: when a file is closed, this process loses its other locks on it.
    """
    with _making, suppress(OSError):  # SQLite explains what is in the way
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


class _Patience:
    """A busy handler that asks again every millisecond or so, until the time-out."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = 0.0

    def __call__(self, tries: int) -> bool:
        if tries == 0:
            self._deadline = time.monotonic() + self._seconds
        time.sleep(min(0.0005 * (tries + 1), 0.005))
        return time.monotonic() < self._deadline


def rewrite(db: apsw.Connection) -> None:
    """Writes a whole file anew, without the bytes of deleted rows.

    Statistics that an ANALYZE left have samples of keys, which VACUUM would copy: they are gathered anew.
    """
    names = "SELECT name FROM sqlite_schema WHERE name GLOB 'sqlite_stat[1-4]'"
    statistics = [name for (name,) in db.execute(names).fetchall()]
    for name in statistics:
        db.execute(f"DROP TABLE {name}")
    db.execute("VACUUM").fetchall()
    if statistics:
        db.execute("ANALYZE").fetchall()


def distrust_schema(db: apsw.Connection) -> None:
    """Keeps a file that somebody else may have made from running anything of its own when it is read."""
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)


def pragma(db: apsw.Connection, name: str) -> int:
    ((value,),) = db.execute(f"PRAGMA {name}")
    return int(value)


def _explain(error: apsw.Error, path: Path) -> Exception:
    if isinstance(error, apsw.InterruptError):
        return cancellation.Cancelled()
    return hide_address(_in_our_words(error, path), path)


def _in_our_words(error: apsw.Error, path: Path) -> AlcoveError:
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return Unavailable(f"{path} is busy: another process held it for too long")
        case apsw.FullError():
            return Unavailable(f"{path}: the disk is full; nothing of this write was kept")
        case apsw.ReadOnlyError():
            return Unavailable(f"{path} is read-only: Alcove needs to write to it")
        case apsw.CantOpenError():
            return StoreError(f"{path} cannot be opened: is its folder there, and may this user write to it?")
        case apsw.NotADBError() | apsw.CorruptError():
            return StoreError(f"{path} is not a database, or it is damaged; restore it from a backup")
        case apsw.IOError():
            return Unavailable(f"{path}: the disk refused ({error}); nothing of this write was kept")
        case _:
            return AlcoveError(f"{path}: {error}")
