"""A PostgreSQL database: its connections, its schema, and its errors as ours.

Writers of all nodes take turns by one advisory lock, held until the commit. So rows that a transaction
numbers (versions, vectors, changes of expiry) become visible in the order of their numbers, and a reader that
has read up to a number has missed no row.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from alcove.core import cancellation
from alcove.core.addresses import without_password
from alcove.core.errors import AlcoveError, StoreError, Unavailable, hide_address
from alcove.core.records import Residue
from alcove.engine.database import CheckResults, Database, SkipVersion
from alcove.engine.locks import Locks, lock_number
from alcove.engine.postgres.connection import (
    FETCH_SIZE,
    STATEMENTS,
    Connection,
    number_parameters,
    set_session,
)
from alcove.engine.postgres.filter_sql import PostgresFilterCompiler
from alcove.engine.postgres.listener import Listener, ServerClock
from alcove.engine.postgres.pool import Pool, is_alive, reconnect_if_lost
from alcove.engine.postgres.scrub import PAUSE_SECONDS, WAL, Scrub
from alcove.engine.rows import CopyProgress
from alcove.engine.schema_check import POSTGRES_LINES, check_schema, created, postgres_manifest
from alcove.engine.statements import Params, Value
from alcove.engine.statements import schema as schema_scripts

log = logging.getLogger("alcove")
WRITER_LOCK = "alcove_writing()"
"""The lock that a writer holds until the commit."""
EXTENSION_LOCK = 0x416C6376_0002
"""The lock under which pgvector is installed, for all stores of a database."""
MAX_READERS = 32
"""Connections of a node that read at the same time."""
NO_PGVECTOR = "pgvector is not installed: every subtree is searched in memory, however large"
MIN_PGVECTOR = (0, 8)
"""The first version of the extension with iterative scans, which continue if a filter leaves too few rows."""
SCRUB_LOCK = b"scrub"
"""The name of the lock under which tables are rewritten."""


class PostgresDatabase(Database):
    """The connections of one node to a database: a writer, and readers from a pool."""

    is_remote = True
    filters = PostgresFilterCompiler()

    def __init__(self, address: str, *, busy_timeout: float, on_create: Callable[[], None]) -> None:
        self._address = address
        self._place = without_password(address)
        self._set_lock_timeout = f"SET lock_timeout = {max(1, int(busy_timeout * 1000))}"
        """Limits how long a writer waits for the writer of another node."""
        self._busy_timeout = busy_timeout
        self._write_lock = threading.Lock()
        self._writer: Connection | None = None
        self._closed = False
        self.clock = ServerClock()
        self._search_path: str | None = None
        with self._translate_errors():
            self._writer = self._connect()
            try:
                self.schema = _schema_of(self._writer, self._place)
                self._search_path = _quoted(self.schema)
                set_session(self._writer, {"search_path": self._search_path})
                _migrate(self._writer, self.schema, self._place, on_create)
                self.finds_candidates = _has_pgvector(self._writer)
                self._search_path = _search_path(self._writer, self.schema)
                set_session(self._writer, {"search_path": self._search_path})
                self._writer.execute(self._set_lock_timeout)
                self.clock.measure(self._writer)
                self.candidates_missing = None if self.finds_candidates else NO_PGVECTOR
            except BaseException:
                self._writer.close()
                raise
        self._readers = Pool(self._connect, max_size=MAX_READERS, timeout_seconds=busy_timeout)
        self.locks = AdvisoryLocks(self._connect, self._translate_errors, _store_key(self.schema))
        self._notify_commit = f"NOTIFY {channel_of(self.schema)}"
        self._listener = Listener(self._connect, self.clock, channel_of(self.schema))

    def _connect(self) -> Connection:
        return Connection.to(self._address, self._search_path)

    @contextmanager
    def write(
        self, *, roll_back: bool = False, durable: bool = True, exclusive: bool = True
    ) -> Iterator[Connection]:
        with self._exclusive_writer() if exclusive else self.read() as writer:
            is_commit_sent = False
            try:
                with writer.pipelined():
                    writer.run_text("BEGIN")
                    if not durable:
                        writer.run_text("SET LOCAL synchronous_commit = off")
                    if exclusive:
                        writer.run_text(_LOCK_WRITERS)
                    yield writer
                    notifies = exclusive and not roll_back
                    if notifies and not self._listener.is_running:
                        writer.run_text(self._notify_commit)
                    is_commit_sent = True
                    writer.run_text("ROLLBACK" if roll_back else "COMMIT")
                if notifies and self._listener.is_running:
                    self._listener.announce_commit()
            except BaseException as error:
                self._abort(writer, error, is_commit_sent=is_commit_sent)
                raise

    def put_many(self, puts: Sequence[Sequence[Value]]) -> list[list[int]]:
        try:  # without context managers, which would cost much of a put
            with self._write_lock:
                return self._put_many(self._live_writer(), puts)
        except psycopg.Error as error:
            raise _translate(error, self._place) from error

    def _put_many(self, writer: Connection, puts: Sequence[Sequence[Value]]) -> list[list[int]]:
        is_listening = self._listener.is_running
        is_commit_sent = True
        try:
            if len(puts) == 1 and is_listening:
                results = [writer.run("put", puts[0])]
            else:
                with writer.pipelined():  # one transaction, which ends with the last of them
                    try:
                        is_commit_sent = False
                        results = [writer.run("put", each) for each in puts]
                        if not is_listening:
                            writer.run_text(self._notify_commit)
                        is_commit_sent = True
                    except BaseException:
                        writer.close()  # otherwise the server would commit what it received
                        raise
        except BaseException as error:
            self._abort(writer, error, is_commit_sent=is_commit_sent)
            raise
        if is_listening:
            self._listener.announce_commit()
        return [result.get for result in results]

    def _abort(self, writer: Connection, error: BaseException, *, is_commit_sent: bool) -> None:
        """Ends a failed transaction; if its commit was sent, the server may have committed it."""
        _end_transaction(writer)
        if is_commit_sent and writer.closed and isinstance(error, psycopg.OperationalError):
            advice = "the write may be stored; check before you repeat it, or use an idempotency key"
            doubt = Unavailable(f"{self._place}: the connection was lost during the commit: {advice}")
            raise hide_address(doubt, self._place) from error

    @contextmanager
    def _exclusive_writer(self) -> Iterator[Connection]:
        with self._write_lock, self._translate_errors():
            yield self._live_writer()

    def _connect_writer(self) -> Connection:
        connection = self._connect()
        connection.execute(self._set_lock_timeout)
        return connection

    def _live_writer(self) -> Connection:
        """Returns the writer's connection, and reconnects if it is lost; the caller holds the write lock."""
        if self._closed:
            raise self._closed_error()
        self._writer = reconnect_if_lost(self._writer, self._connect_writer)
        return self._writer

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._translate_errors():
            reader = self._acquire_reader()
            try:
                yield reader
            finally:
                self._readers.release(reader)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        with self.read() as db, _repeatable_read(db):
            yield db

    @contextmanager
    def try_snapshot(self) -> Iterator[Connection | None]:
        try:
            db = self._readers.acquire(
                wait=False
            )  # a caller that has a connection must not wait for another: deadlock
        except (Unavailable, psycopg.Error):  # all are in use, or the server accepts no more
            yield None
            return
        try:
            with self._translate_errors(), _repeatable_read(db):
                yield db
        finally:
            self._readers.release(db)

    def fetch(self, name: str, *params: Value) -> list[tuple[Any, ...]]:
        try:  # without the context managers of `read`, which would cost much of a get
            reader = self._acquire_reader()
            try:
                return reader.run(name, params).fetchall()
            finally:
                self._readers.release(reader)
        except psycopg.Error as error:
            raise _translate(error, self._place) from error

    def stream(
        self, name: str, params: Params, skip: SkipVersion | None = None, **parts: str
    ) -> Iterator[tuple[Any, ...]]:
        statement = number_parameters(STATEMENTS[name].format(**parts))[0]
        with self.read() as db:
            rows = db.cursor().stream(statement, params or None, binary=True, size=FETCH_SIZE)
            for n, row in enumerate(rows):
                if n % FETCH_SIZE == 0:
                    cancellation.check()
                if not (skip and skip(row[0])):
                    yield row

    def _acquire_reader(self) -> Connection:
        if self._closed:
            raise self._closed_error()
        cancellation.check()
        return self._readers.acquire()

    def on_commit(self, call: Callable[[], None]) -> bool:
        self._listener.on_commit(call)
        return True

    def check_integrity(self) -> CheckResults:
        """Checks nothing: PostgreSQL checks pages as it reads them, with `data_checksums`."""
        yield from ()

    def copy(self, to: Path) -> Iterator[CopyProgress]:
        from alcove.engine.table_copy import into_file  # noqa: PLC0415  needed for backups only

        with self.snapshot() as db:
            yield from into_file(db, to)

    def rebuild(self, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Rewrites every table, on one node at a time: see `Scrub`.

        A table is locked while it is rewritten, also for readers.
        """
        deadline = time.monotonic() + self._busy_timeout
        while not self.locks.try_acquire(SCRUB_LOCK):
            if time.monotonic() >= deadline:
                return False
            time.sleep(PAUSE_SECONDS)
        try:
            with self._translate_errors(), self._connect() as connection:
                try:
                    return is_done() or Scrub(connection, self._busy_timeout).run()
                except errors.DiskFull as error:  # a rewrite needs the table's size once more
                    log.warning("scrub: %s; trying again later", str(error).strip().partition("\n")[0])
                    return False
        finally:
            self.locks.release(SCRUB_LOCK)

    def residues(self) -> list[Residue]:
        with self.read() as reader:
            return [*Scrub(reader, 0).residues(), WAL]

    def close(self) -> None:
        with self._write_lock:
            if self._closed:
                return
            self._closed = True
            if self._writer is not None:
                self._writer.close()
        self._listener.close()
        self._readers.close()
        self.locks.close()

    def _closed_error(self) -> Unavailable:
        return hide_address(Unavailable(f"{self._place} has been closed"), self._place)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raises the driver's errors as ours."""
        try:
            yield
        except psycopg.Error as error:
            raise _translate(error, self._place) from error


class AdvisoryLocks(Locks):
    """The locks of a node, which the server releases when its connection ends, even by a crash."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        translate_errors: Callable[[], AbstractContextManager[None]],
        store: bytes,
    ) -> None:
        """`store`: see `lock_number`."""
        self._connect = connect
        self._store = store
        self._translate_errors = translate_errors
        self._connection: Connection | None = None
        self._acquired: set[int] = set()
        self._mutex = threading.Lock()

    def try_acquire(self, name: bytes) -> bool:
        number = lock_number(name, self._store)
        with self._mutex, self._translate_errors():
            if number in self._acquired:
                return False
            before = self._connection
            self._connection = reconnect_if_lost(before, self._connect)
            if self._connection is not before:  # the locks of the lost one are free: acquire them again
                self._acquired = {each for each in self._acquired if self._try(self._connection, each)}
            if is_acquired := self._try(self._connection, number):
                self._acquired.add(number)
            return is_acquired

    def _try(self, connection: Connection, number: int) -> bool:
        return bool(connection.run_text("SELECT pg_try_advisory_lock(?)", (number,)).get)

    def release(self, name: bytes) -> None:
        number = lock_number(name, self._store)
        with self._mutex, self._translate_errors():
            was_acquired = number in self._acquired
            self._acquired.discard(number)
            if was_acquired and self._connection is not None and is_alive(self._connection):
                self._connection.run_text("SELECT pg_advisory_unlock(?)", (number,))

    def close(self) -> None:
        with self._mutex:
            if self._connection is not None:
                self._connection.close()
            self._acquired.clear()


_LOCK_WRITERS = f"SELECT pg_advisory_xact_lock({WRITER_LOCK})"


@contextmanager
def _repeatable_read(db: Connection) -> Iterator[None]:
    """Lets statements see one moment, and pipelines them."""
    try:
        with db.pipelined():
            db.run_text("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield
            db.run_text("ROLLBACK")
    except BaseException:
        _end_transaction(db)
        raise


def _end_transaction(db: Connection) -> None:
    """Rolls back a transaction that did not end by itself."""
    match db.pgconn.transaction_status:
        case TransactionStatus.INTRANS | TransactionStatus.INERROR:
            db.run_text("ROLLBACK")
        case TransactionStatus.ACTIVE:  # interrupted while it waited for an answer
            db.close()


def _schema_of(db: Connection, place: str) -> str:
    """Returns the schema that holds the store: the first one of the search path, which must exist.

    It is determined once, when the store is opened: a schema that is created later, for example with the
    role's name, must not change it.
    """
    path, schema, encoding = db.run_text(_LOCATION).get
    first = _FIRST_NAME.match(path)
    first_name = (first["quoted"] or first["plain"].strip().lower()) if first else ""
    if schema is None or first_name not in (schema, "$user"):
        missing = f"the schema {first_name!r}, which its search_path names first, does not exist"
        raise StoreError(f'{place}: {missing}; run CREATE SCHEMA "{first_name}" in it, or name another one')
    # An older store retains its encoding.
    if encoding != "UTF8" and db.run_text("SELECT to_regclass('versions') IS NULL").get:
        create = "createdb --template=template0 --encoding=UTF8"
        raise StoreError(f"{place} has the encoding {encoding}, and a store needs UTF8: use {create}")
    return str(schema)


_LOCATION = "SELECT current_setting('search_path'), current_schema(), current_setting('server_encoding')"
_FIRST_NAME = re.compile(r'\s*(?:"(?P<quoted>[^"]+)"|(?P<plain>[^,]*))')


def _search_path(db: Connection, schema: str) -> str:
    """Returns a search path of the store's schema and of pgvector's, without tables of other stores."""
    extension_schema = db.run_text(
        "SELECT nspname FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace"
        " WHERE extname = 'vector'"
    ).get
    return ", ".join(_quoted(each) for each in dict.fromkeys((schema, extension_schema)) if each)


def _quoted(name: str) -> str:
    """Quotes a name as an identifier in SQL."""
    return '"{}"'.format(name.replace('"', '""'))


def _store_key(schema: str) -> bytes:
    """Returns the key of a store's locks and channel, unique among the stores of its database.

    Empty for the default schema, so that nodes of an earlier version and of this one share them.
    """
    return b"" if schema == "public" else schema.encode()


def channel_of(schema: str) -> str:
    """Returns the channel on which the nodes of a store notify each other of commits."""
    key = _store_key(schema)
    return f"alcove_{lock_number(b'commits', key):x}" if key else "alcove"


def migration_lock(schema: str) -> int:
    """Returns the lock under which the tables of a store are migrated."""
    return lock_number(b"alcove schema", _store_key(schema))


def _migrate(db: Connection, schema: str, place: str, on_create: Callable[[], None]) -> None:
    """Migrates the schema to this program's version, one node at a time; creates the key of a new store."""
    scripts = schema_scripts("schema_postgres")
    with db.transaction():
        db.execute(f"SELECT pg_advisory_xact_lock({migration_lock(schema)})")
        db.execute("CREATE TABLE IF NOT EXISTS alcove_schema (version BIGINT PRIMARY KEY)")
        ((version,),) = db.execute("SELECT coalesce(max(version), 0) FROM alcove_schema")
        if version > len(scripts):
            raise StoreError(f"{place} was made by a newer Alcove (schema {version}); upgrade first")
        if version == 0:
            on_create()
        for number, script in enumerate(scripts[version:], version + 1):
            db.execute(script)
            db.execute("INSERT INTO alcove_schema VALUES ($1)", (number,))
        check_schema(place, len(scripts), postgres_manifest(), schema_lines(db))


def schema_lines(db: Connection) -> list[str]:
    """Returns the server's description of the tables and functions of a store."""
    names = (json.dumps(created("TABLE")), json.dumps(created("FUNCTION")))
    return [line for (line,) in db.run_text(POSTGRES_LINES, names).fetchall()]


def _has_pgvector(db: Connection) -> bool:
    """True if pgvector can be used; installs it if the role may do so."""
    query = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    if (version := db.run_text(query).get) is None:
        with suppress(psycopg.Error), db.transaction():
            db.execute(f"SELECT pg_advisory_xact_lock({EXTENSION_LOCK})")
            db.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        version = db.run_text(query).get
    return version is not None and tuple(map(int, version.split(".")[:2])) >= MIN_PGVECTOR


def _translate(error: psycopg.Error, place: str) -> Exception:
    match error:
        case errors.QueryCanceled():
            return cancellation.Cancelled()
        case errors.DiskFull():
            why = "the disk is full; this write was not stored"
        case errors.ReadOnlySqlTransaction():
            why = "it is read-only, and Alcove needs to write to it"
        case errors.LockNotAvailable():
            why = "it is busy: another writer took too long"
        case errors.DeadlockDetected() | errors.SerializationFailure():
            why = "it conflicted with another transaction and was not stored; try again"
        case psycopg.OperationalError() | psycopg.InterfaceError():
            reason = " ".join(str(error).split())
            return hide_address(
                Unavailable(f"{place} cannot be reached: {reason}"), place, "the store cannot be reached"
            )
        case _:
            reason = error.diag.message_primary or str(error)  # the details may show a row
            return hide_address(AlcoveError(f"{place}: {reason}"), place, "the store has failed")
    return hide_address(Unavailable(f"{place}: {why}"), place)
