"""One moment of a store as a file: writing it, and looking into it without changing a byte."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import apsw

from alcove.core.errors import StoreError, Unavailable
from alcove.engine.data_keys import DataKey, DataKeys
from alcove.engine.rows.versions import CopyProgress, Row, StoreFigures
from alcove.engine.sqlite.database import (
    STATEMENTS,
    distrust_schema,
    explained,
    migrations,
    pragma,
    refuse_foreign,
    rewrite,
)

_DATA = re.compile(r"CREATE (TABLE|(UNIQUE )?INDEX)\b")
_PAGES = 1024
"""A step of the copy: 4 MiB, so that progress shows and nothing waits long for its turn."""


def copy(source: apsw.Connection, to: Path) -> Iterator[CopyProgress]:
    """Copies what `source` sees now, however much others write meanwhile.

    The read transaction keeps SQLite from starting again with every foreign commit. There is no
    journal for the new file: who calls this throws an unfinished one away.
    """
    source.execute("BEGIN")
    try:
        summary = StoreFigures._make(source.execute(STATEMENTS["summary"]).fetchall()[0])
        with explained(to):
            target = apsw.Connection(os.fspath(to), vfs="unix-none")  # it is locked already, in another way
            try:
                yield from _pages(source, target)
                _finish(target, summary)
            finally:
                target.close()
    finally:
        source.execute("ROLLBACK")
    yield CopyProgress(1, 1, summary._replace(scrubbed=summary.wipes))


def _pages(source: apsw.Connection, target: apsw.Connection) -> Iterator[CopyProgress]:
    _set(target, "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
    with target.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step(_PAGES)
            yield CopyProgress(backup.page_count - backup.remaining, backup.page_count)


def _finish(target: apsw.Connection, summary: StoreFigures) -> None:
    """One file without a log beside it, and without the bytes of a wipe that still waits for its scrub."""
    _set(target, "PRAGMA journal_mode = OFF")
    if summary.wipes > summary.scrubbed:
        rewrite(target)
        target.execute(STATEMENTS["set_mark"], (summary.wipes, "scrubbed"))


def without_log(path: Path) -> None:
    """Makes a file that nobody has open one without a log beside it, whoever reads it."""
    with explained(path):
        db = apsw.Connection(os.fspath(path))
        try:
            _set(db, "PRAGMA journal_mode = DELETE")
        finally:
            db.close()


def _set(db: apsw.Connection, script: str) -> None:
    """Runs all of a script; `execute` alone stops at the first statement that answers with a row."""
    db.execute(script).fetchall()


class Copy(DataKeys, AbstractContextManager["Copy"]):
    """A store's file that nobody writes to, opened so that it stays exactly as it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise StoreError(f"{path} is not there, or is no file")
        _refuse_cut_short(path)
        uri = f"file:{quote(os.fspath(path.absolute()))}?mode=ro&immutable=1"
        with explained(path):
            self._db = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            self._refuse_what_is_not_ours()
        except BaseException:
            self.close()
            raise

    def _refuse_what_is_not_ours(self) -> None:
        with explained(self.path):
            distrust_schema(self._db)
            version = pragma(self._db, "user_version")
            refuse_foreign(self.path, pragma(self._db, "application_id"), version)
            self._refuse_foreign_code(version)
        for suffix in ("-wal", "-journal"):
            log = self.path.with_name(self.path.name + suffix)
            if log.exists() and log.stat().st_size:
                raise StoreError(f"{self.path} is a store in use ({log.name} lies beside it), not a backup")

    def _refuse_foreign_code(self, version: int) -> None:
        """Refuses triggers, views and virtual tables that a store of this version does not have.

        The store that a backup becomes would run them with every write.
        """
        schema = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
        with apsw.Connection(":memory:") as ours:
            for script in migrations()[:version]:
                ours.execute(script)
            known = {sql for _, sql in ours.execute(schema)}
        ours.close()
        for name, sql in self._db.execute(schema):
            if sql not in known and not _DATA.match(sql):
                raise StoreError(
                    f"{self.path} is not a backup of a store: {name!r} is no table or index of one"
                )

    def refuse_damaged(self) -> None:
        """Raises unless SQLite finds every page and index in order."""
        with explained(self.path):
            wrong = [row[0] for row in self._db.execute("PRAGMA integrity_check") if row[0] != "ok"]
        if wrong:
            raise StoreError(f"{self.path} is damaged ({wrong[0]})")

    def summary(self) -> StoreFigures:
        """What it holds, in figures."""
        return StoreFigures._make(self._fetch("summary")[0])

    def every_version(self) -> Iterator[Row]:
        """Every version, in the order of the log."""
        with explained(self.path):
            for row in self._db.execute(STATEMENTS["every_version"], (0, -1)):
                yield Row._make(row)

    # What a vault asks of its store.

    def add_data_key(
        self, subject: str, wrapped: bytes, wrapped_by: str, wipes: int | None = None
    ) -> NoReturn:
        raise StoreError(f"{self.path} is not whole: the data key {subject!r} is missing")

    def rewrap(self, keys: Sequence[DataKey]) -> NoReturn:
        raise Unavailable(f"{self.path} is not to be changed")

    def _fetch(self, name: str, *params: apsw.SQLiteValue) -> list[tuple[Any, ...]]:
        with explained(self.path):
            return self._db.execute(STATEMENTS[name], params).fetchall()

    def close(self) -> None:
        """Lets go of the file."""
        self._db.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_cut_short(path: Path) -> None:
    """By the size that stands in the file's own head; SQLite's word for it would be `malformed`."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    if len(head) < 100 or not head.startswith(b"SQLite format 3\0"):
        raise StoreError(f"{path} is not a database, or only its first bytes: it is not a backup")
    page = int.from_bytes(head[16:18], "big")
    wanted = int.from_bytes(head[28:32], "big") * (65536 if page == 1 else page)
    if (size := path.stat().st_size) < wanted:
        raise StoreError(f"{path} is cut short: it has {size:,} of {wanted:,} bytes")
