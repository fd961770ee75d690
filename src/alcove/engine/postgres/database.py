"""A PostgreSQL database: its connections, its schema, its errors in our words.

Writers of all nodes take turns by one advisory lock, held until the commit. So what is numbered inside a
transaction (versions, vectors, changes of expiry) is visible in the order of its numbers, and who has read up
to one has missed nothing.
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
from alcove.engine.database import Database, Findings, RuledOut
from alcove.engine.locks import Locks, lock_number
from alcove.engine.postgres.connection import AT_ONCE, STATEMENTS, Connection, number_parameters
from alcove.engine.postgres.filter_sql import PostgresFilterCompiler
from alcove.engine.postgres.listener import Listener, ServerClock
from alcove.engine.postgres.pool import Pool, alive, renewed
from alcove.engine.postgres.scrub import PAUSE_SECONDS, WAL, Scrub
from alcove.engine.rows.versions import CopyProgress
from alcove.engine.schema_check import POSTGRES_LINES, created, postgres_manifest, refuse_differences
from alcove.engine.statements import Params, Value
from alcove.engine.statements import schema as schema_scripts

log = logging.getLogger("alcove")
WRITING = "alcove_writing()"
"""The lock that whoever writes holds until the commit."""
EXTENDING = 0x416C6376_0002
"""The lock under which pgvector is switched on, for all stores of a database."""
MOST_READERS = 32
"""Connections of a node that read at the same time."""
NO_PGVECTOR = "pgvector is not there: every subtree is searched in memory, however large"
LEAST_PGVECTOR = (0, 8)
"""The version of the extension from which on it looks further where a filter leaves too little."""
SCRUBBING = b"scrub"
"""The name of the lock under which tables are written anew."""


class PostgresDatabase(Database):
    """The connections of one node to a database: a writer, and readers from a pool."""

    far = True
    filters = PostgresFilterCompiler()

    def __init__(self, address: str, *, busy_timeout: float, on_create: Callable[[], None]) -> None:
        self._address = address
        self._place = without_password(address)
        self._patience = f"SET lock_timeout = {max(1, int(busy_timeout * 1000))}"
        """How long who writes waits for another node's turn to end."""
        self._busy_timeout = busy_timeout
        self._turn = threading.Lock()
        self._writer: Connection | None = None
        self._closed = False
        self.clock = ServerClock()
        self._search_path: str | None = None
        with self._explained():
            self._writer = self._connect()
            try:
                self.schema = _schema_of(self._writer, self._place)
                self._search_path = _quoted(self.schema)
                self._writer.use({"search_path": self._search_path})
                _migrate(self._writer, self.schema, self._place, on_create)
                self.finds_candidates = _has_vectors(self._writer)
                self._search_path = _with_vectors(self._writer, self.schema)
                self._writer.use({"search_path": self._search_path})
                self._writer.execute(self._patience)
                self.clock.measure(self._writer)
                self.candidates_missing = None if self.finds_candidates else NO_PGVECTOR
            except BaseException:
                self._writer.close()
                raise
        self._readers = Pool(self._connect, most=MOST_READERS, patience=busy_timeout)
        self.locks = AdvisoryLocks(self._connect, self._explained, _store_key(self.schema))
        self._tell = f"NOTIFY {channel_of(self.schema)}"
        self._listener = Listener(self._connect, self.clock, channel_of(self.schema))

    def _connect(self) -> Connection:
        return Connection.to(self._address, self._search_path)

    def _connect_writer(self) -> Connection:
        connection = self._connect()
        connection.execute(self._patience)
        return connection

    @contextmanager
    def write(
        self, *, undo: bool = False, durable: bool = True, in_turn: bool = True
    ) -> Iterator[Connection]:
        with self._writing() if in_turn else self.read() as writer:
            sent = False
            try:
                with writer.together():
                    writer.run_text("BEGIN")
                    if not durable:
                        writer.run_text("SET LOCAL synchronous_commit = off")
                    if in_turn:
                        writer.run_text(_TURN)
                    yield writer
                    tells = in_turn and not undo
                    if tells and not self._listener.listens:
                        writer.run_text(self._tell)
                    sent = True
                    writer.run_text("ROLLBACK" if undo else "COMMIT")
                if tells and self._listener.listens:
                    self._listener.wrote()
            except BaseException as error:
                self._give_up(writer, error, sent=sent)
                raise

    def put_each(self, puts: Sequence[Sequence[Value]]) -> list[list[int]]:
        try:  # without the contexts of `_writing`: this is much of a put
            with self._turn:
                return self._put_each(self._writer_in_turn(), puts)
        except psycopg.Error as error:
            raise _explain(error, self._place) from error

    def _put_each(self, writer: Connection, puts: Sequence[Sequence[Value]]) -> list[list[int]]:
        listens = self._listener.listens
        sent = True
        try:
            if len(puts) == 1 and listens:
                found = [writer.run("put", puts[0])]
            else:
                with writer.together():  # one transaction, which ends with the last of them
                    try:
                        sent = False
                        found = [writer.run("put", each) for each in puts]
                        if not listens:
                            writer.run_text(self._tell)
                        sent = True
                    except BaseException:
                        writer.close()  # what was sent would be committed
                        raise
        except BaseException as error:
            self._give_up(writer, error, sent=sent)
            raise
        if listens:
            self._listener.wrote()
        return [each.get for each in found]

    def _give_up(self, writer: Connection, error: BaseException, *, sent: bool) -> None:
        """Leaves nothing of a transaction under way; `sent`: its commit was, and may have been done."""
        _broken_off(writer)
        if sent and writer.closed and isinstance(error, psycopg.OperationalError):
            raise self._in_doubt() from error

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._turn, self._explained():
            yield self._writer_in_turn()

    def _writer_in_turn(self) -> Connection:
        """The connection of who writes in turn."""
        if self._closed:
            raise self._no_longer_open()
        self._writer = renewed(self._writer, self._connect_writer)
        return self._writer

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._explained():
            reader = self._take()
            try:
                yield reader
            finally:
                self._readers.give(reader)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        with self.read() as db, _at_one_moment(db):
            yield db

    @contextmanager
    def snapshot_beside(self) -> Iterator[Connection | None]:
        try:
            db = self._readers.take(wait=False)  # whoever has one and waits for another may wait for ever
        except (Unavailable, psycopg.Error):  # all are in use, or the server takes no more of them
            yield None
            return
        try:
            with self._explained(), _at_one_moment(db):
                yield db
        finally:
            self._readers.give(db)

    def fetch(self, name: str, *params: Value) -> list[tuple[Any, ...]]:
        try:  # without the contexts of `read`: this is most of a get
            reader = self._take()
            try:
                return reader.run(name, params).fetchall()
            finally:
                self._readers.give(reader)
        except psycopg.Error as error:
            raise _explain(error, self._place) from error

    def stream(
        self, name: str, params: Params, ruled_out: RuledOut | None = None, **parts: str
    ) -> Iterator[tuple[Any, ...]]:
        statement = number_parameters(STATEMENTS[name].format(**parts))[0]
        with self.read() as db:
            rows = db.cursor().stream(statement, params or None, binary=True, size=AT_ONCE)
            for n, row in enumerate(rows):
                if n % AT_ONCE == 0:
                    cancellation.check()
                if not (ruled_out and ruled_out(row[0])):
                    yield row

    def _take(self) -> Connection:
        if self._closed:
            raise self._no_longer_open()
        cancellation.check()
        return self._readers.take()

    def when_told(self, call: Callable[[], None]) -> bool:
        self._listener.tell(call)
        return True

    def sound(self) -> Findings:
        """PostgreSQL checks its pages as it reads them, where it was told to (`data_checksums`)."""
        yield from ()

    def copy(self, to: Path) -> Iterator[CopyProgress]:
        from alcove.engine.table_copy import into_file  # noqa: PLC0415  for who makes a backup

        with self.snapshot() as db:
            yield from into_file(db, to)

    def rebuild(self, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Writes every table anew, one node at a time: see `postgres_scrub`.

        A table is locked while it is written, for readers too.
        """
        deadline = time.monotonic() + self._busy_timeout
        while not self.locks.take(SCRUBBING):
            if time.monotonic() >= deadline:
                return False
            time.sleep(PAUSE_SECONDS)
        try:
            with self._explained(), self._connect() as own:
                try:
                    return is_done() or Scrub(own, self._busy_timeout).run()
                except errors.DiskFull as error:  # a table needs its size once more
                    log.warning("scrub: %s; trying again later", str(error).strip().partition("\n")[0])
                    return False
        finally:
            self.locks.give(SCRUBBING)

    def residues(self) -> list[Residue]:
        with self.read() as reader:
            return [*Scrub(reader, 0).residues(), WAL]

    def close(self) -> None:
        with self._turn:
            if self._closed:
                return
            self._closed = True
            if self._writer is not None:
                self._writer.close()
        self._listener.close()
        self._readers.close()
        self.locks.close()

    def _no_longer_open(self) -> Unavailable:
        return hide_address(Unavailable(f"{self._place} has been closed"), self._place)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns the driver's errors into ours."""
        try:
            yield
        except psycopg.Error as error:
            raise _explain(error, self._place) from error

    def _in_doubt(self) -> Unavailable:
        """Of a commit, of which nobody knows whether it was done where the server goes away at it."""
        doubt = "the write may have been kept; look before you repeat it, or give it an idempotency key"
        return hide_address(Unavailable(f"{self._place} went away during the commit: {doubt}"), self._place)


class AdvisoryLocks(Locks):
    """Those of a node, which the server gives back when its connection ends, however that happens."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        explained: Callable[[], AbstractContextManager[None]],
        store: bytes,
    ) -> None:
        """`explained`: goes around what may raise the driver's errors. `store`: see `lock_number`."""
        self._connect = connect
        self._store = store
        self._explained = explained
        self._connection: Connection | None = None
        self._held: set[int] = set()
        self._mutex = threading.Lock()

    def take(self, name: bytes) -> bool:
        number = lock_number(name, self._store)
        with self._mutex, self._explained():
            if number in self._held:
                return False
            before, self._connection = self._connection, renewed(self._connection, self._connect)
            if self._connection is not before:  # what was held on the other is taken again, where it is free
                self._held = {each for each in self._held if self._try(self._connection, each)}
            if taken := self._try(self._connection, number):
                self._held.add(number)
            return taken

    def _try(self, connection: Connection, number: int) -> bool:
        return bool(connection.run_text("SELECT pg_try_advisory_lock(?)", (number,)).get)

    def give(self, name: bytes) -> None:
        number = lock_number(name, self._store)
        with self._mutex, self._explained():
            held = number in self._held
            self._held.discard(number)
            if held and self._connection is not None and alive(self._connection):
                self._connection.run_text("SELECT pg_advisory_unlock(?)", (number,))

    def close(self) -> None:
        with self._mutex:
            if self._connection is not None:
                self._connection.close()
            self._held.clear()


_TURN = f"SELECT pg_advisory_xact_lock({WRITING})"


@contextmanager
def _at_one_moment(db: Connection) -> Iterator[None]:
    """Lets statements see one moment, and sends them together."""
    try:
        with db.together():
            db.run_text("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield
            db.run_text("ROLLBACK")
    except BaseException:
        _broken_off(db)
        raise


def _broken_off(db: Connection) -> None:
    """Leaves no transaction open that did not come to its end."""
    match db.pgconn.transaction_status:
        case TransactionStatus.INTRANS | TransactionStatus.INERROR:
            db.run_text("ROLLBACK")
        case TransactionStatus.ACTIVE:  # broken off while it waited for an answer
            db.close()


def _schema_of(db: Connection, place: str) -> str:
    """The schema that holds the store: the first one of the search path, which has to exist.

    Found once, when the store is opened: a schema that is made later, under the role's name for example, must
    not move the store.
    """
    path, schema, encoding = db.run_text(_PLACE).get
    first = _FIRST_NAME.match(path)
    named = (first["quoted"] or first["plain"].strip().lower()) if first else ""
    if schema is None or named not in (schema, "$user"):
        missing = f"the schema {named!r}, which its search_path names first, does not exist"
        raise StoreError(f'{place}: {missing}; run CREATE SCHEMA "{named}" in it, or name another one')
    if encoding != "UTF8":
        ((versions,),) = db.execute("SELECT to_regclass('versions') IS NULL")
        if versions:  # an older store goes on as it was
            create = "createdb --template=template0 --encoding=UTF8"
            raise StoreError(f"{place} has the encoding {encoding}, and a store needs UTF8: use {create}")
    return str(schema)


_PLACE = "SELECT current_setting('search_path'), current_schema(), current_setting('server_encoding')"
_FIRST_NAME = re.compile(r'\s*(?:"(?P<quoted>[^"]+)"|(?P<plain>[^,]*))')


def _with_vectors(db: Connection, schema: str) -> str:
    """A search path of the store's schema and of pgvector's, where no table of others is taken for ours."""
    found = db.run_text(_PGVECTOR_SCHEMA).get
    return ", ".join(_quoted(each) for each in dict.fromkeys((schema, found)) if each)


_PGVECTOR_SCHEMA = """
    SELECT nspname FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'vector'"""


def _quoted(name: str) -> str:
    """A name as an identifier in SQL."""
    return '"{}"'.format(name.replace('"', '""'))


def _store_key(schema: str) -> bytes:
    """What tells the locks and the channel of a store from those of others in its database.

    Empty for the usual schema, so that nodes of an earlier version and of this one share them.
    """
    return b"" if schema == "public" else schema.encode()


def channel_of(schema: str) -> str:
    """Where the nodes of a store tell one another of commits."""
    key = _store_key(schema)
    return f"alcove_{lock_number(b'commits', key):x}" if key else "alcove"


def migration_lock(schema: str) -> int:
    """The lock under which the tables of a store are brought to this program's version."""
    return lock_number(b"alcove schema", _store_key(schema))


def _migrate(db: Connection, schema: str, place: str, on_create: Callable[[], None]) -> None:
    """Brings the schema to this program's version, one node at a time; a new store's key is made with it."""
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
        refuse_differences(place, len(scripts), postgres_manifest(), schema_lines(db))


def schema_lines(db: Connection) -> list[str]:
    """What the server says of the tables and functions of a store."""
    names = (json.dumps(created("TABLE")), json.dumps(created("FUNCTION")))
    return [line for (line,) in db.run_text(POSTGRES_LINES, names).fetchall()]


def _has_vectors(db: Connection) -> bool:
    """Whether pgvector is there, which is switched on where that is allowed."""
    asked = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    if (version := db.run_text(asked).get) is None:
        with suppress(psycopg.Error), db.transaction():
            db.execute(f"SELECT pg_advisory_xact_lock({EXTENDING})")
            db.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        version = db.run_text(asked).get
    return version is not None and tuple(map(int, version.split(".")[:2])) >= LEAST_PGVECTOR


def _explain(error: psycopg.Error, place: str) -> Exception:
    match error:
        case errors.QueryCanceled():
            return cancellation.Cancelled()
        case errors.DiskFull():
            why = "the disk is full; nothing of this write was kept"
        case errors.ReadOnlySqlTransaction():
            why = "it is read-only, and Alcove needs to write to it"
        case errors.LockNotAvailable():
            why = "it is busy: somebody wrote for too long"
        case errors.DeadlockDetected() | errors.SerializationFailure():
            why = "others were in the way; nothing of this was kept, try again"
        case psycopg.OperationalError() | psycopg.InterfaceError():
            said = " ".join(str(error).split())
            return hide_address(
                Unavailable(f"{place} cannot be reached: {said}"), place, "the store cannot be reached"
            )
        case _:
            said = error.diag.message_primary or str(error)  # its details may show a row
            return hide_address(AlcoveError(f"{place}: {said}"), place, "the store has failed")
    return hide_address(Unavailable(f"{place}: {why}"), place)
