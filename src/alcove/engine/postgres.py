"""A PostgreSQL database: its connections, its schema, its errors in our words.

Writers of all nodes take turns by one advisory lock, held until the commit. So what is numbered inside a
transaction (versions, vectors, changes of expiry) is visible in the order of its numbers, and who has read up
to one has missed nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors, postgres, sql
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper

from alcove.core import cancellation
from alcove.core.addresses import without_password
from alcove.core.errors import AlcoveError, StoreError, Unavailable
from alcove.engine.database import Bound, Database, Findings, RuledOut, Value, pairs
from alcove.engine.locks import Locks, lock_number
from alcove.engine.postgres_dialect import STATEMENTS, escaped, numbered, restored, spelled, where
from alcove.engine.postgres_listening import Listener, ServerClock
from alcove.engine.postgres_pool import Pool, Raw, alive, renewed
from alcove.engine.rows import Copied, Scope
from alcove.engine.statements import schema
from alcove.store.filters import Params

TEXT = postgres.types["text"].oid
WRITING = 0x416C6376_0001
"""The lock that whoever writes holds until the commit."""
MIGRATING = 0x416C6376_0002
"""The lock under which the schema is brought to a version."""
MOST_READERS = 32
"""Connections of a node that read at the same time."""
CONNECT_SECONDS = 5
"""How long it may take to reach the server."""
NO_PGVECTOR = "pgvector is not there: every subtree is searched in memory, however large"
LEAST_PGVECTOR = (0, 8)
"""The version of the extension from which on it looks further where a filter leaves too little."""
_HOLDING = ("versions", "vectors", "terms", "pieces", "to_index", "replays", "namespaces", "data_keys")
"""Tables with something of people, which may be deleted."""
AT_ONCE = 200
"""Rows that are fetched at once of a statement whose reader may stop."""


class Found(psycopg.RawCursor[tuple[Any, ...]]):
    """The rows that a statement found."""

    @property
    def get(self) -> Any:
        row = self.fetchone()
        return row if row is None or len(row) > 1 else row[0]


class Connection:
    """A connection, which one user at a time has."""

    def __init__(self, connection: Raw) -> None:
        self.connection = connection
        self._last: Found | None = None

    def run(self, name: str, params: Bound = (), **parts: str) -> Found:
        statement = STATEMENTS[name]
        return self._execute(statement.format(**_unspoken(parts)) if parts else statement, params)

    def _execute(self, statement: str, params: Bound = ()) -> Found:
        text, names = numbered(statement)
        if isinstance(params, Mapping):
            params = [params[name] for name in names]
        found = Found(self.connection)
        found.execute(text, params or None, binary=True)
        self._last = found
        return found

    def run_each(self, name: str, every: Iterable[Sequence[Value]]) -> None:
        Found(self.connection).executemany(numbered(STATEMENTS[name])[0], every)

    def load(self, table: str, fields: str, rows: Sequence[Sequence[Any]]) -> None:
        queue = "ALTER TABLE versions {} TRIGGER version_to_index"  # looks for its place in line, row by row
        if table == "versions":
            self.connection.execute(queue.format("DISABLE"))
        with Found(self.connection).copy(STATEMENTS["load_rows"].format(table=table, fields=fields)) as copy:
            for row in rows:
                copy.write_row(row)
        if table == "versions":
            self.connection.execute(queue.format("ENABLE"))

    def changed(self, name: str, *params: Value) -> int:
        return self.run(name, params).rowcount

    def mark(self, name: str) -> int:
        return int(self.run("mark", (name,)).get)

    def added(self) -> int:
        assert self._last is not None
        return int(self._last.get)

    def checks(self, file: str) -> Findings:
        for name, count, finding in pairs(file):
            ((compared,),) = self._execute(spelled(count))
            yield name, compared, [str(row[0]) for row in self._execute(spelled(finding))]


class PostgresDatabase(Database):
    """The connections of one node to a database: a writer, and readers from a pool."""

    far = True

    def __init__(self, address: str, *, busy_timeout: float, on_create: Callable[[], None]) -> None:
        self._address = address
        self._place = without_password(address)
        self._turn = threading.Lock()
        self._writer: Raw | None = None
        self._closed = False
        self.clock = ServerClock()
        with self._explained():
            self._writer = self._connect()
            try:
                _migrate(self._writer, self._place, on_create)
                self.clock.measure(self._writer)
                self.finds_candidates = _has_vectors(self._writer)
                self.candidates_missing = None if self.finds_candidates else NO_PGVECTOR
            except BaseException:
                self._writer.close()
                raise
        self._readers = Pool(self._connect, most=MOST_READERS, patience=busy_timeout)
        self.locks = AdvisoryLocks(self._connect, self._explained)
        self._listener = Listener(self._connect, self.clock)

    def _connect(self) -> Raw:
        connection = psycopg.connect(self._address, autocommit=True, connect_timeout=CONNECT_SECONDS)
        _configure(connection)
        return connection

    @contextmanager
    def write(
        self, *, undo: bool = False, durable: bool = True, together: bool = False
    ) -> Iterator[Connection]:
        with self._turn, self._explained():
            if self._closed:
                raise self._no_longer_open()
            writer = self._writer = renewed(self._writer, self._connect)
            sent = False
            try:
                with writer.pipeline() if together else nullcontext():
                    for statement in _BEGIN[durable].split("; ") if together else [_BEGIN[durable]]:
                        writer.execute(statement)
                    yield Connection(writer)
                    sent = True
                    writer.execute("ROLLBACK" if undo else "COMMIT")
            except BaseException as error:
                if not writer.closed and writer.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    writer.execute("ROLLBACK")
                if sent and writer.closed and isinstance(error, psycopg.OperationalError):
                    raise self._in_doubt() from error
                raise

    def write_together(self) -> AbstractContextManager[Connection]:
        return self.write(together=True)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._explained(), self._reader() as reader:
            yield Connection(reader)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        with self.read() as db:
            db.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                yield db
            finally:
                if not db.connection.closed:
                    db.connection.execute("ROLLBACK")

    def fetch(self, name: str, *params: Value) -> list[tuple[Any, ...]]:
        with self.read() as db:
            return db.run(name, params).fetchall()

    def stream(
        self, name: str, params: Params, ruled_out: RuledOut | None = None, **parts: str
    ) -> Iterator[tuple[Any, ...]]:
        statement = STATEMENTS[name].format(**_unspoken(parts)) if parts else STATEMENTS[name]
        with self.read() as db:
            rows = Found(db.connection).stream(
                numbered(statement)[0], params or None, binary=True, size=AT_ONCE
            )
            for n, row in enumerate(rows):
                if n % AT_ONCE == 0:
                    cancellation.check()
                if not (ruled_out and ruled_out(row[0])):
                    yield row

    @contextmanager
    def _reader(self) -> Iterator[Raw]:
        if self._closed:
            raise self._no_longer_open()
        cancellation.check()
        reader = self._readers.take()
        try:
            yield reader
        finally:
            self._readers.give(reader)

    def when_told(self, call: Callable[[], None]) -> bool:
        self._listener.tell(call)
        return True

    def where(self, scope: Scope, params: Params) -> str:
        return where(scope, params)

    def sound(self) -> Findings:
        """PostgreSQL checks its pages as it reads them, where it was told to (`data_checksums`)."""
        yield from ()

    def copy(self, to: Path) -> Iterator[Copied]:
        from alcove.engine.table_copy import into_file  # noqa: PLC0415  for who makes a backup

        with self.snapshot() as db:
            yield from into_file(db, to)

    def rebuild(self) -> bool:
        """Frees the space of deleted rows, which no statement reaches any more.

        Their bytes stay in the files until other rows take their place (docs/promises.md).
        """
        with self._explained(), self._reader() as reader:
            windows = Found(reader).execute("SELECT to_regclass('windows')::text").get
            for table in (*_HOLDING, *([windows] if windows else [])):
                reader.execute(sql.SQL("VACUUM (FREEZE, TRUNCATE) {}").format(sql.Identifier(table)))
        return True

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
        return Unavailable(f"{self._place} has been closed")

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
        return Unavailable(f"{self._place} went away during the commit: {doubt}")


class AdvisoryLocks(Locks):
    """Those of a node, which the server gives back when its connection ends, however that happens."""

    def __init__(
        self, connect: Callable[[], Raw], explained: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`explained`: goes around what may raise the driver's errors."""
        self._connect = connect
        self._explained = explained
        self._connection: Raw | None = None
        self._held: set[int] = set()
        self._mutex = threading.Lock()

    def take(self, name: bytes) -> bool:
        number = lock_number(name)
        with self._mutex, self._explained():
            if number in self._held:
                return False
            before, self._connection = self._connection, renewed(self._connection, self._connect)
            if self._connection is not before:
                self._held = set()
            taken = Found(self._connection).execute("SELECT pg_try_advisory_lock($1)", (number,)).get
            if taken:
                self._held.add(number)
            return bool(taken)

    def give(self, name: bytes) -> None:
        number = lock_number(name)
        with self._mutex, self._explained():
            held = number in self._held
            self._held.discard(number)
            if held and self._connection is not None and alive(self._connection):
                Found(self._connection).execute("SELECT pg_advisory_unlock($1)", (number,))

    def close(self) -> None:
        with self._mutex:
            if self._connection is not None:
                self._connection.close()
            self._held.clear()


def _begin(*, durable: bool) -> str:
    lazily = "" if durable else "; SET LOCAL synchronous_commit = off"
    return f"BEGIN{lazily}; SELECT pg_advisory_xact_lock({WRITING})"


_BEGIN = {durable: _begin(durable=durable) for durable in (True, False)}


class _TextDumper(Dumper):
    """A text, of which every one can be kept."""

    format = Format.BINARY
    oid = TEXT

    def dump(self, obj: str) -> bytes:
        return escaped(obj).encode()


class _TextLoader(Loader):
    """What was kept."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return restored(bytes(data).decode())


def _configure(connection: psycopg.Connection[Any]) -> None:
    """Every integer of one width, so that a statement is planned once, and every text as it was."""
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(str, _TextDumper)
    connection.adapters.register_loader("text", _TextLoader)


def _unspoken(parts: dict[str, str]) -> dict[str, str]:
    """Parts of a statement without the index that SQLite is to read along."""
    return {**parts, "along": ""} if "along" in parts else parts


def _migrate(db: psycopg.Connection[Any], place: str, on_create: Callable[[], None]) -> None:
    """Brings the schema to this program's version, one node at a time; a new store's key is made with it."""
    scripts = schema("schema_postgres")
    with db.transaction():
        db.execute(f"SELECT pg_advisory_xact_lock({MIGRATING})")
        db.execute("CREATE TABLE IF NOT EXISTS alcove_schema (version BIGINT PRIMARY KEY)")
        ((version,),) = db.execute("SELECT coalesce(max(version), 0) FROM alcove_schema")
        if version > len(scripts):
            raise StoreError(f"{place} was made by a newer Alcove (schema {version}); upgrade first")
        if version == 0:
            on_create()
        for number, script in enumerate(scripts[version:], version + 1):
            db.execute(script)
            db.execute("INSERT INTO alcove_schema VALUES (%s)", (number,))


def _has_vectors(db: psycopg.Connection[Any]) -> bool:
    """Whether pgvector is there, which is switched on where that is allowed."""
    with suppress(psycopg.Error), db.transaction():
        db.execute(f"SELECT pg_advisory_xact_lock({MIGRATING})")
        db.execute("CREATE EXTENSION IF NOT EXISTS vector")
    version = Found(db).execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").get
    return version is not None and tuple(map(int, version.split(".")[:2])) >= LEAST_PGVECTOR


def _explain(error: Exception, place: str) -> Exception:
    match error:
        case errors.QueryCanceled():
            return cancellation.Cancelled()
        case errors.DiskFull():
            return Unavailable(f"{place}: the disk is full; nothing of this write was kept")
        case errors.ReadOnlySqlTransaction():
            return Unavailable(f"{place} is read-only: Alcove needs to write to it")
        case errors.LockNotAvailable():
            return Unavailable(f"{place} is busy: somebody wrote for too long")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return Unavailable(f"{place} cannot be reached: {str(error).strip()}")
        case _:
            return AlcoveError(f"{place}: {error}")
