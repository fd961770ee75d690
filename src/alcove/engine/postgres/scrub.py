"""Removing the last bytes of deleted rows from the data files of PostgreSQL.

VACUUM gives the space of deleted rows back, but leaves their bytes in pages and indexes until others take
their place. Here every table of a store is written anew (VACUUM FULL), with its indexes and its TOAST table.
The planner's statistics hold samples of texts too, and are gathered anew and written anew.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from psycopg import errors

from alcove.core.errors import StoreError
from alcove.core.records import Residue
from alcove.engine.postgres.connection import Connection
from alcove.engine.postgres.pgvector import drop_windows
from alcove.engine.schema_check import created

LOCK_MS = 200
"""How long a rewrite waits for a table. All who use the table meanwhile wait behind it, so it does not wait
for a long reader but tries again."""
PAUSE_SECONDS = 0.5
"""Between two tries."""
_MADE_ELSEWHERE = ("alcove_schema", "windows")
"""Tables that no version file of the schema creates."""

_FIRST_OF_PART = re.compile(r"FROM \('(\\x[0-9a-f]*)'\)")
_BLANK = {"bigint": "0", "boolean": "FALSE", "bigint[]": "'{}'"}
"""What a column of a row holds that says nothing; an empty text, or no bytes, for other types."""
_STATISTICS = ("pg_catalog.pg_statistic", "pg_catalog.pg_statistic_ext_data")

WAL = Residue(
    where="the server's write-ahead log (pg_wal), and wherever it is archived or replicated to",
    until="its segments are overwritten, which checkpoints and further writes bring about;"
    " archived segments, base backups and snapshots stay until you delete them",
    command="DO $$ BEGIN FOR twice IN 1..2 LOOP FOR each IN 1..(SELECT count(*) FROM pg_ls_waldir()) LOOP"
    " PERFORM pg_logical_emit_message(FALSE, 'alcove', ''); PERFORM pg_switch_wal(); END LOOP;"
    " EXECUTE 'CHECKPOINT'; END LOOP; END $$",
)
"""What no rewrite reaches: the log of all databases of the server. A superuser runs the command, in psql: it
fills each segment there is with zeros. A segment that a slot, the archiver or `wal_keep_size` needs stays."""
STATISTICS = Residue(
    where="samples of texts in the statistics of the planner (pg_statistic, pg_statistic_ext_data)",
    until="the server's own vacuum and other statistics take their place",
    command=f"VACUUM (FULL, FREEZE) {', '.join(_STATISTICS)}",
    in_data_files=True,
)
"""What only the owner of the database, or a superuser, can rewrite."""


def tables_of_others(names: Sequence[str]) -> Residue:
    """What only the owner of these tables can rewrite, or a role that may maintain them."""
    return Residue(
        where=f"deleted rows in tables that this role may not rewrite: {', '.join(names)}",
        until="their owner rewrites them, or grants this role MAINTAIN on them (PostgreSQL 17)",
        command=f"VACUUM (FULL, FREEZE, ANALYZE) {', '.join(names)}",
        in_data_files=True,
    )


def table_names() -> list[str]:
    """The tables of a store, from the files that make them: a new one cannot be forgotten."""
    return [*created("TABLE"), *_MADE_ELSEWHERE]


class _Table(NamedTuple):
    oid: int
    name: str
    """As SQL spells it."""
    is_split: bool
    has_statistics: bool


class Scrub:
    """One rewrite of all tables of a store, on a connection that nobody else uses."""

    def __init__(self, db: Connection, patience_seconds: float) -> None:
        self._db = db
        self._patience_seconds = patience_seconds

    def run(self) -> bool:
        """Rewrites the tables; False where somebody was in the way, or could see old rows, for too long."""
        self._db.use({"lock_timeout": f"{LOCK_MS}ms"})
        erased_before = self._db.run("next_transaction").get
        if not self._retry(lambda: bool(self._db.run("nobody_looks_back", (erased_before,)).get)):
            return False
        tables = self._tables()
        rewritten = all(self._rewrite(each, erased_before) for each in tables if not each.is_split)
        return rewritten and self._renew_statistics(tables)

    def residues(self) -> list[Residue]:
        """What this role cannot rewrite."""
        foreign = [each.name for each in self._tables() if not self._db.run("may_rewrite", (each.oid,)).get]
        found = [tables_of_others(foreign)] if foreign else []
        return found if self._may_rewrite_statistics() else [*found, STATISTICS]

    def _tables(self) -> list[_Table]:
        found = [*map(_Table._make, self._db.run("store_tables", (json.dumps(table_names()),)).fetchall())]
        if missing := {*created("TABLE")} - {each.name.rpartition(".")[2] for each in found}:
            raise StoreError(f"tables of this store cannot be found: {', '.join(sorted(missing))}")
        return found

    def _may_rewrite_statistics(self) -> bool:
        """Whether this role owns the database: only then it may rewrite the tables of statistics."""
        return bool(self._db.run("may_rewrite_statistics").get)

    def _rewrite(self, table: _Table, erased_before: str) -> bool:
        """Writes a table and its indexes anew; whether nothing is left of what was deleted before."""
        if table.name == "windows":
            # The index by meaning takes minutes to make, during which a rewrite would lock the table. Who
            # indexes makes it again beside others, as for a new table (`PgVectorIndex.tidy`).
            self._db.run("forget_order", schema=self._db.run("own_schema").get)
        how = "rewrite_and_sample" if table.has_statistics else "rewrite"
        return self._unhindered(lambda: self._db.run(how, table=table.name)) and self._is_rewritten(
            table.name, erased_before
        )

    def _is_rewritten(self, table: str, erased_before: str) -> bool:
        return bool(self._db.run("is_rewritten", (erased_before, table)).get)

    # Statistics

    def _renew_statistics(self, tables: list[_Table]) -> bool:
        """Drops samples of what is gone; where this role may not drop all of them, `STATISTICS` says so."""
        for table in tables:
            if table.has_statistics and not self._unhindered(partial(self._renew, table)):
                return False
        if not self._may_rewrite_statistics():
            return True
        erased_before = self._db.run("next_transaction").get
        return all(self._rewrite_statistics(each, erased_before) for each in _STATISTICS)

    def _rewrite_statistics(self, table: str, erased_before: str) -> bool:
        return self._retry(
            lambda: (
                self._unhindered(lambda: self._db.run("rewrite", table=table))
                and self._is_rewritten(table, erased_before)
            )
        )

    def _renew(self, table: _Table) -> None:
        """Has the planner sample what a table holds now; its rewrite has done that, unless it has parts."""
        if table.is_split:
            self._db.run("sample", table=table.name)
        if self._is_empty(table):
            (self._drop_windows if table.name == "windows" else self._forget_samples)(table)

    def _is_empty(self, table: _Table) -> bool:
        return bool(self._db.run("is_empty", table=table.name).get)

    def _drop_windows(self, table: _Table) -> None:
        """Drops the table, which is made again with the first text that is found by meaning."""
        with self._db.transaction():
            self._db.run("take_writers_turn")
            if self._is_empty(table):
                drop_windows(self._db)
                self._db.run("start_over")

    def _forget_samples(self, table: _Table) -> None:
        """Has the planner sample one blank row: of an empty table, it keeps what it sampled before.

        Nobody else sees the row, which is deleted by the transaction that adds it.
        """
        row = dict[str, str]()
        for column, kind, is_namespace, bounds in self._db.run("columns_to_fill", (table.oid,)).fetchall():
            first = _FIRST_OF_PART.search(bounds or "") if is_namespace else None
            row[column] = f"'{first[1]}'" if first else _BLANK.get(kind, "''")
        with self._db.transaction():
            self._db.run(
                "add_blank", table=table.name, columns_to_fill=", ".join(row), blanks=", ".join(row.values())
            )
            self._db.run("sample", table=table.name)
            self._db.run("remove_blank", table=table.name)

    # Waiting

    def _unhindered(self, work: Callable[[], object]) -> bool:
        """Does something when nobody holds a lock that it needs; False where somebody did for too long."""

        def is_done() -> bool:
            try:
                work()
            except (errors.LockNotAvailable, errors.DeadlockDetected):
                return False
            return True

        return self._retry(is_done)

    def _retry(self, is_done: Callable[[], bool]) -> bool:
        """Tries something again and again; whether it was done before patience ran out."""
        deadline = time.monotonic() + self._patience_seconds
        while not is_done():
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(PAUSE_SECONDS, self._patience_seconds / 4))
        return True
