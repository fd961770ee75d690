"""A connection to PostgreSQL that runs statements by name, each prepared once, many in one round trip.

It uses libpq directly, because the driver's cursors would cost several times as much as a statement. The
driver converts values and errors, and does streams and COPY.
"""

from __future__ import annotations

import json
import re
import select
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import errors, postgres
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader, PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8BinaryDumper

from alcove.engine.database import Parameters
from alcove.engine.postgres.text_escaping import escape, unescape
from alcove.engine.statements import NO_HINTS, Value, load_all

STATEMENTS = load_all("postgres", "candidates", "vector_store", "scrub", hints=NO_HINTS)
_PARAMETER = re.compile(r"\?(\d*)|(?<!:):([a-z]\w*)")
CONNECT_SECONDS = 5
"""How long it may take to reach the server."""
FETCH_SIZE = 200
"""Rows that are fetched at once for a reader that may stop."""
MAX_PREPARED = 500
"""Prepared statements of a connection; one for every set of parameter types of a statement."""
SESSION_SETTINGS = {
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "DateStyle": "ISO, YMD",
    "TimeZone": "UTC",
    "quote_all_identifiers": "off",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
"""The settings of every connection, whatever the defaults of the server, the database or the role are.

Writers queue for an advisory lock and must then see what was committed while they waited: read committed.
Consistent reads ask for repeatable read themselves. Requests, writers and scrubs have time limits of their
own, and a connection that the server closes because it is idle loses its locks.

`default_transaction_read_only` is left alone: an operator, or a provider whose disk is full, stops writes
with it.
"""
_SET_SESSION = """
    SELECT set_config(name, value, FALSE) FROM (
        SELECT * FROM json_each_text(CAST($1 AS JSON)) UNION ALL
        SELECT 'synchronous_commit', 'on' WHERE current_setting('synchronous_commit') = 'off' UNION ALL
        SELECT 'session_replication_role', 'origin'
        WHERE current_setting('session_replication_role') = 'replica'
    ) needed (name, value) WHERE current_setting(name, TRUE) IS NOT NULL"""
"""Skips settings that older servers do not have. A commit waits at least for the server's disk; operators may
require more, such as a replica's. The triggers that maintain the queue and the vectors do not fire in the
replication role `replica`, which only a superuser can set."""
_TO_INDEX = "ALTER TABLE versions {} TRIGGER version_to_index"
_LOAD_BY_VERSION = (
    "CREATE TEMPORARY TABLE loading AS SELECT {fields} FROM {table} LIMIT 0",
    "loading",
    "INSERT INTO {table} (ns, {fields}) SELECT v.ns, l.* FROM loading l JOIN versions v USING (seq);"
    "DROP TABLE loading",
)
_LOADING = {
    "versions": (_TO_INDEX.format("DISABLE"), "versions", _TO_INDEX.format("ENABLE")),
    **dict.fromkeys(("to_index", "pieces", "touches"), _LOAD_BY_VERSION),
}
"""How rows of a table are loaded: a statement before, the table to copy into, and a statement after. The
trigger must not run, because it would put versions into the queue. Some rows get their
namespaces from versions, because other databases do not store them."""
_Prepared = tuple[bytes, tuple[int, ...]]
"""A statement, and the types of its parameters."""


class LazyResult:
    """The rows of a statement; it waits for them when they are read."""

    __slots__ = ("_db", "_position", "answer")

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._position = 0
        self.answer: PGresult | None = None
        """The server's answer, once it has arrived."""

    def _rows(self, end: int | None = None) -> list[tuple[Any, ...]]:
        answer = self.answer or self._db.wait_for(self)
        start, self._position = self._position, min(answer.ntuples, answer.ntuples if end is None else end)
        self._db.adapt.set_pgresult(answer)
        return self._db.adapt.load_rows(start, self._position, tuple)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while rows := self._rows(self._position + FETCH_SIZE):
            yield from rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(iter(self._rows(self._position + 1)), None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows()

    @property
    def rowcount(self) -> int:
        """How many rows the statement returned or changed."""
        return (self.answer or self._db.wait_for(self)).command_tuples or 0

    @property
    def get(self) -> Any:
        row = self.fetchone()
        return row if row is None or len(row) > 1 else row[0]


def set_session(db: psycopg.Connection[Any], settings: Mapping[str, str] = SESSION_SETTINGS) -> None:
    """Changes settings of any connection until it is closed; the connection must be in autocommit mode."""
    with psycopg.RawCursor(db) as cursor:
        cursor.execute(_SET_SESSION, (json.dumps(settings),))


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection, used by one thread at a time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Sends all integers with one width, so that a statement is prepared once; escapes NUL characters."""
        super().__init__(*args, **options)
        self.cursor_factory = psycopg.RawCursor
        self.adapters.register_dumper(int, Int8BinaryDumper)
        self.adapters.register_dumper(str, _TextDumper)
        self.adapters.register_loader("text", _TextLoader)
        self.adapt = Transformer(self)
        self._statement_names: dict[_Prepared, bytes] = {}
        self._statement_names_count = 0
        self._in_pipeline = self._has_unsent = False
        self._pending: deque[LazyResult | _Prepared] = deque()
        """Requests without an answer yet, in order."""
        self._error: psycopg.Error | None = None
        self._last: LazyResult | None = None
        self._readable, self._ready = select.poll(), select.poll()
        self._readable.register(self.fileno(), select.POLLIN)
        self._ready.register(self.fileno(), select.POLLIN | select.POLLOUT)

    @classmethod
    def to(cls, address: str, search_path: str | None = None) -> Connection:
        """Connects with the settings that the engine relies on; every connection is made here.

        `search_path`: the schemas of tables and types, instead of those in the address. The driver prepares
        no statements itself, because it would also drop them.
        """
        db = cls.connect(address, autocommit=True, connect_timeout=CONNECT_SECONDS, prepare_threshold=None)
        try:
            set_session(db, SESSION_SETTINGS | ({"search_path": search_path} if search_path else {}))
        except BaseException:
            db.close()
            raise
        return db

    def run(self, name: str, params: Parameters = (), **parts: str) -> LazyResult:
        statement = STATEMENTS[name]
        if parts:
            return self.run_text(statement.format(**parts), params, prepare=False)
        return self.run_text(statement, params)

    def run_prepared(self, name: str, params: Parameters = (), **parts: str) -> LazyResult:
        return self.run_text(STATEMENTS[name].format(**parts), params)

    def run_text(self, statement: str, params: Parameters = (), *, prepare: bool = True) -> LazyResult:
        """Runs the text of a statement; `prepare`: prepares it; use it for few statements that repeat."""
        text, names = number_parameters(statement)
        if isinstance(params, Mapping):
            params = [params[name] for name in names]
        values = self.adapt.dump_sequence(params, [PyFormat.BINARY] * len(params))
        types, formats = self.adapt.types or (), self.adapt.formats
        key = text, types
        name = self._statement_names.get(key)
        if name is None and prepare and len(self._statement_names) < MAX_PREPARED:
            self._statement_names_count += 1
            self._statement_names[key] = name = b"alcove_%d" % self._statement_names_count
            self.pgconn.send_prepare(name, text, types)
            self._add_pending(key)
        if name is None:
            self.pgconn.send_query_params(text, values, types, formats, Format.BINARY)
        else:
            self.pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        self._last = result = LazyResult(self)
        self._add_pending(result)
        return result

    def run_many(self, name: str, params: Iterable[Sequence[Value]]) -> None:
        with self.pipelined():
            for each in params:
                self.run(name, each)

    def insert_rows(self, table: str, fields: str, rows: Sequence[Sequence[Any]]) -> None:
        if was_pipelined := self._in_pipeline:
            self._sync()
        parts = {"table": table, "fields": fields}
        before, into, after = _LOADING.get(table, ("SELECT", table, "SELECT"))
        self.execute(before.format(**parts))
        with self.cursor().copy(f"COPY {into} ({fields}) FROM STDIN (FORMAT BINARY)") as copy:
            for row in rows:
                copy.write_row(row)
        self.execute(after.format(**parts))
        if was_pipelined:
            self._begin_pipeline()

    def update(self, name: str, *params: Value) -> int:
        return self.run(name, params).rowcount

    def mark(self, name: str) -> int:
        return int(self.run("mark", (name,)).get)

    def last_id(self) -> int:
        assert self._last is not None
        return int(self._last.get)

    @contextmanager
    def pipelined(self) -> Iterator[None]:
        """Buffers statements until an answer is read or the block ends."""
        if self._in_pipeline:
            yield
            return
        self._begin_pipeline()
        try:
            yield
        except Exception:
            with suppress(psycopg.Error):
                self._sync()
            raise
        else:
            self._sync()

    def _begin_pipeline(self) -> None:
        self.pgconn.enter_pipeline_mode()
        self._in_pipeline = True

    def _add_pending(self, request: LazyResult | _Prepared) -> None:
        """Remembers a request; outside of a pipeline, waits for its answer."""
        self._pending.append(request)
        if self._in_pipeline:
            self._has_unsent = True
            return
        self._flush()
        while answer := self._next():
            self._accept(answer)
        self._raise()

    def flush(self) -> None:
        """Sends buffered requests, and does not wait."""
        if self._has_unsent:
            self.pgconn.send_flush_request()
            self._flush()

    def wait_for(self, result: LazyResult) -> PGresult:
        """Waits for the answer to a pipelined statement."""
        self.flush()
        while result.answer is None:
            if not self._pending:
                raise psycopg.InterfaceError("a statement was interrupted")
            if answer := self._next():
                self._accept(answer)
            if self._error:
                raise self._error
        return result.answer

    def _sync(self) -> None:
        """Waits for all answers, ends the pipeline and raises the first error."""
        self._in_pipeline = False
        self.pgconn.pipeline_sync()
        self._flush()
        while not (answer := self._next()) or answer.status != ExecStatus.PIPELINE_SYNC:
            if answer:
                self._accept(answer)
        self.pgconn.exit_pipeline_mode()
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error:
            raise error

    def _flush(self) -> None:
        self._has_unsent = False
        while self.pgconn.flush():
            self._ready.poll()
            self.pgconn.consume_input()  # a server that cannot send its answers stops receiving

    def _next(self) -> PGresult | None:
        """Returns the next answer; None after the last answer to a statement."""
        pgconn = self.pgconn
        while pgconn.is_busy():
            self._readable.poll()
            pgconn.consume_input()
        if (answer := pgconn.get_result()) is None and pgconn.status != ConnStatus.OK:
            raise psycopg.OperationalError("the server closed the connection")
        return answer

    def _accept(self, answer: PGresult) -> None:
        request = (
            self._pending.popleft() if self._pending else None
        )  # a server that shuts down sends an error without a request
        if answer.status in _SUCCESS:
            if isinstance(request, LazyResult):
                request.answer = answer
            return
        if isinstance(request, tuple):
            self._statement_names.pop(request, None)
        if self.pgconn.status != ConnStatus.OK:
            raise psycopg.OperationalError(answer.get_error_message())
        if self._error is None:
            self._error = errors.error_from_result(answer)


_SUCCESS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


@lru_cache(1024)
def number_parameters(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """Returns a statement with `$1`, `$2`, … for `?`, `?2` and `:name`; and those names in order."""
    names: list[str] = []
    highest = 0

    def number(match: re.Match[str]) -> str:
        nonlocal highest
        if name := match[2]:
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        place = int(match[1]) if match[1] else highest + 1
        highest = max(highest, place)
        return f"${place}"

    return _PARAMETER.sub(number, statement).encode(), tuple(names)


class _TextDumper(Dumper):
    """Escapes what PostgreSQL texts cannot hold."""

    format = Format.BINARY
    oid = postgres.types["text"].oid

    def dump(self, obj: str) -> bytes:
        return escape(obj).encode()


class _TextLoader(Loader):
    """Restores the text that was stored."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return unescape(bytes(data).decode())
