"""Removes the last bytes of deleted rows from the data files of PostgreSQL.

VACUUM frees the space of deleted rows, but their bytes stay in pages and indexes until something overwrites
them. Therefore every table of a store is rewritten (VACUUM FULL), with its indexes and its TOAST table. The
planner's statistics also contain samples of texts: they are gathered again and rewritten.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from psycopg import errors

from alcove.core.errors import StoreError
from alcove.core.records import Residue
from alcove.engine.postgres.connection import Connection, set_session
from alcove.engine.postgres.pgvector import drop_windows
from alcove.engine.schema_check import created

LOCK_MS = 200
"""How long a rewrite waits for a table. All users of the table queue behind it, so it does not wait for
a long reader but retries."""
PAUSE_SECONDS = 0.5
"""Pause between two attempts."""
_OTHER_TABLES = ("alcove_schema", "windows")
"""Tables that no version file of the schema creates."""

_PARTITION_START = re.compile(r"FROM \('(\\x[0-9a-f]*)'\)")
_BLANK = {"bigint": "0", "boolean": "FALSE", "bigint[]": "'{}'"}
"""The value of each column of a blank row, by type; for other types, an empty text or no bytes."""
_STATISTICS = ("pg_catalog.pg_statistic", "pg_catalog.pg_statistic_ext_data")

WAL = Residue(
    where="the server's write-ahead log (pg_wal), and wherever it is archived or replicated to",
    until="its segments are overwritten, which checkpoints and further writes bring about;"
    " archived segments, base backups and snapshots stay until you delete them",
    command="DO $$ BEGIN FOR twice IN 1..2 LOOP FOR each IN 1..(SELECT count(*) FROM pg_ls_waldir()) LOOP"
    " PERFORM pg_logical_emit_message(FALSE, 'alcove', ''); PERFORM pg_switch_wal(); END LOOP;"
    " EXECUTE 'CHECKPOINT'; END LOOP; END $$",
)
"""The log of all databases of the server, which no rewrite reaches. A superuser runs the command in psql: it
overwrites each segment with zeros, except those that a slot, the archiver or `wal_keep_size` needs."""
STATISTICS = Residue(
    where="samples of texts in the statistics of the planner (pg_statistic, pg_statistic_ext_data)",
    until="the server's own vacuum and other statistics take their place",
    command=f"VACUUM (FULL, FREEZE) {', '.join(_STATISTICS)}",
    in_data_files=True,
)
"""Only the owner of the database, or a superuser, can rewrite these."""


def table_names() -> list[str]:
    """Returns the tables of a store, from the files that create them, so that none can be forgotten."""
    return [*created("TABLE"), *_OTHER_TABLES]


class _Table(NamedTuple):
    oid: int
    name: str
    """Quoted for SQL."""
    is_partitioned: bool
    has_statistics: bool


class Scrub:
    """Rewrites all tables of a store, on a connection of its own."""

    def __init__(self, db: Connection, timeout_seconds: float) -> None:
        self._db = db
        self._timeout_seconds = timeout_seconds

    def run(self) -> bool:
        """Rewrites the tables; False if locks, or readers of old rows, prevented it for too long."""
        set_session(self._db, {"lock_timeout": f"{LOCK_MS}ms"})
        erased_by = self._db.run("next_transaction").get
        if not self._retry(lambda: bool(self._db.run("no_old_snapshots", (erased_by,)).get)):
            return False
        tables = self._tables()
        rewritten = all(self._rewrite(each, erased_by) for each in tables if not each.is_partitioned)
        return rewritten and self._renew_statistics(tables)

    def residues(self) -> list[Residue]:
        """Returns what this role cannot rewrite."""
        foreign = [each.name for each in self._tables() if not self._db.run("may_rewrite", (each.oid,)).get]
        residues = [] if self._may_rewrite_statistics() else [STATISTICS]
        if foreign:
            tables = ", ".join(foreign)
            owned_by_others = Residue(
                where=f"deleted rows in tables that this role may not rewrite: {tables}",
                until="their owner rewrites them, or grants this role MAINTAIN on them (PostgreSQL 17)",
                command=f"VACUUM (FULL, FREEZE, ANALYZE) {tables}",
                in_data_files=True,
            )
            residues.insert(0, owned_by_others)
        return residues

    def _tables(self) -> list[_Table]:
        tables = [*map(_Table._make, self._db.run("store_tables", (json.dumps(table_names()),)).fetchall())]
        if missing := {*created("TABLE")} - {each.name.rpartition(".")[2] for each in tables}:
            raise StoreError(f"tables of this store cannot be found: {', '.join(sorted(missing))}")
        return tables

    def _may_rewrite_statistics(self) -> bool:
        """Whether this role owns the database: only the owner may rewrite the tables of statistics."""
        return bool(self._db.run("may_rewrite_statistics").get)

    def _rewrite(self, table: _Table, erased_by: str) -> bool:
        """Rewrites a table and its indexes; returns whether every row that was deleted before is gone."""
        if table.name == "windows":
            # Building the vector index takes minutes, during which a rewrite would lock the table. The
            # indexer builds it again without a lock, as for a new table (`PgVectorIndex.optimize`).
            self._db.run("drop_hnsw_index", schema=self._db.run("own_schema").get)
        statement = "rewrite_and_analyze" if table.has_statistics else "rewrite"
        return self._when_unlocked(lambda: self._db.run(statement, table=table.name)) and self._is_rewritten(
            table.name, erased_by
        )

    def _is_rewritten(self, table: str, erased_by: str) -> bool:
        return bool(self._db.run("is_rewritten", (erased_by, table)).get)

    # Statistics

    def _renew_statistics(self, tables: list[_Table]) -> bool:
        """Drops samples of deleted rows; if this role may not drop all of them, `STATISTICS` says so."""
        for table in tables:
            if table.has_statistics and not self._when_unlocked(partial(self._renew, table)):
                return False
        if not self._may_rewrite_statistics():
            return True
        erased_by = self._db.run("next_transaction").get

        def rewrite(table: str) -> bool:
            is_rewritten = self._when_unlocked(lambda: self._db.run("rewrite", table=table))
            return is_rewritten and self._is_rewritten(table, erased_by)

        return all(self._retry(partial(rewrite, table)) for table in _STATISTICS)

    def _renew(self, table: _Table) -> None:
        """Samples the table again; the rewrite has done that, unless the table is partitioned."""
        if table.is_partitioned:
            self._db.run("analyze", table=table.name)
        if self._is_empty(table):
            (self._drop_windows if table.name == "windows" else self._forget_samples)(table)

    def _is_empty(self, table: _Table) -> bool:
        return bool(self._db.run("is_empty", table=table.name).get)

    def _drop_windows(self, table: _Table) -> None:
        """Drops the table; the first vectors create it again."""
        with self._db.transaction():
            self._db.run("lock_writers")
            if self._is_empty(table):
                drop_windows(self._db)
                self._db.run("reset_index")

    def _forget_samples(self, table: _Table) -> None:
        """Samples one blank row, because ANALYZE of an empty table does not replace its old samples.

        No other transaction sees the row: it is deleted in the transaction that inserts it.
        """
        row = dict[str, str]()
        columns = self._db.run("required_columns", (table.oid,)).fetchall()
        for column, column_type, is_namespace, bounds in columns:
            start = _PARTITION_START.search(bounds or "") if is_namespace else None
            row[column] = f"'{start[1]}'" if start else _BLANK.get(column_type, "''")
        with self._db.transaction():
            values = ", ".join(row.values())
            self._db.run("insert_blank", table=table.name, names=", ".join(row), values=values)
            self._db.run("analyze", table=table.name)
            self._db.run("delete_blank", table=table.name)

    # Retries

    def _when_unlocked(self, work: Callable[[], object]) -> bool:
        """Retries work until it gets its locks; False if it does not in time."""

        def try_once() -> bool:
            try:
                work()
            except (errors.LockNotAvailable, errors.DeadlockDetected):
                return False
            return True

        return self._retry(try_once)

    def _retry(self, try_once: Callable[[], bool]) -> bool:
        """Retries until it succeeds; False after the timeout."""
        deadline = time.monotonic() + self._timeout_seconds
        while not try_once():
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(PAUSE_SECONDS, self._timeout_seconds / 4))
        return True
