"""Backup files: copying one moment of a store, and reading a file without changing a byte."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import apsw

from alcove.core.errors import StoreError
from alcove.engine.data_keys import DataKeys
from alcove.engine.rows import CopyProgress, Row, StoreFigures
from alcove.engine.sqlite.database import (
    STATEMENTS,
    check_ownership,
    distrust_schema,
    migrations,
    pragma,
    rewrite,
    translate_errors,
)

_DATA = re.compile(r"CREATE (TABLE|(UNIQUE )?INDEX)\b")
_PAGES = 1024
"""Pages in a step of the copy: 4 MiB, so that there is progress to show and nothing waits long."""


def copy(source: apsw.Connection, to: Path) -> Iterator[CopyProgress]:
    """Copies what `source` sees now, whatever others write in the meantime.

    Without the read transaction, SQLite would start again after every commit of another process. The new file
    has no journal: the caller deletes it if the copy fails.
    """
    source.execute("BEGIN")
    try:
        figures = StoreFigures._make(source.execute(STATEMENTS["figures"]).fetchall()[0])
        with translate_errors(to):
            target = apsw.Connection(os.fspath(to), vfs="unix-none")  # the caller holds a lock
            try:
                yield from _pages(source, target)
                _finish(target, figures)
            finally:
                target.close()
    finally:
        source.execute("ROLLBACK")
    yield CopyProgress(1, 1, figures._replace(scrubbed=figures.wipes))


def _pages(source: apsw.Connection, target: apsw.Connection) -> Iterator[CopyProgress]:
    _set(target, "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
    with target.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step(_PAGES)
            yield CopyProgress(backup.page_count - backup.remaining, backup.page_count)


def _finish(target: apsw.Connection, figures: StoreFigures) -> None:
    """Turns the copy into one file without a log, and without the bytes of unscrubbed wipes."""
    _set(target, "PRAGMA journal_mode = OFF")
    if figures.wipes > figures.scrubbed:
        rewrite(target)
        target.execute(STATEMENTS["set_mark"], (figures.wipes, "scrubbed"))


def remove_log(path: Path) -> None:
    """Switches a file that no process has open to a mode without a separate log, even for readers."""
    with translate_errors(path):
        db = apsw.Connection(os.fspath(path))
        try:
            _set(db, "PRAGMA journal_mode = DELETE")
        finally:
            db.close()


def _set(db: apsw.Connection, script: str) -> None:
    """Runs all of a script; `execute` alone stops at the first statement that returns a row."""
    db.execute(script).fetchall()


class BackupFile(AbstractContextManager["BackupFile"]):
    """A store's file that no process writes to, opened in a way that does not change it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data_keys = DataKeys(self._fetch, self._refuse_write)
        if not path.is_file():
            raise StoreError(f"{path} does not exist, or is not a file")
        _check_size(path)
        uri = f"file:{quote(os.fspath(path.absolute()))}?mode=ro&immutable=1"
        with translate_errors(path):
            self._db = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            self._check_contents()
        except BaseException:
            self.close()
            raise

    def _check_contents(self) -> None:
        with translate_errors(self.path):
            distrust_schema(self._db)
            version = pragma(self._db, "user_version")
            check_ownership(self.path, pragma(self._db, "application_id"), version)
            self._check_for_code(version)
        for suffix in ("-wal", "-journal"):
            log = self.path.with_name(self.path.name + suffix)
            if log.exists() and log.stat().st_size:
                raise StoreError(f"{self.path} is a store in use ({log.name} is next to it), not a backup")

    def _check_for_code(self, version: int) -> None:
        """Raises if there are triggers, views or virtual tables that a store of this version does not have.

        A store that is restored from this backup would run them with every write.
        """
        schema = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
        with apsw.Connection(":memory:") as reference:
            for script in migrations()[:version]:
                reference.execute(script)
            expected = {sql for _, sql in reference.execute(schema)}
        reference.close()
        for name, sql in self._db.execute(schema):
            if sql not in expected and not _DATA.match(sql):
                raise StoreError(
                    f"{self.path} is not a backup of a store: {name!r} is not one of its tables or indexes"
                )

    def check_integrity(self) -> None:
        """Raises unless SQLite finds every page and index in order."""
        with translate_errors(self.path):
            wrong = [row[0] for row in self._db.execute("PRAGMA integrity_check") if row[0] != "ok"]
        if wrong:
            raise StoreError(f"{self.path} is damaged ({wrong[0]})")

    def figures(self) -> StoreFigures:
        return StoreFigures._make(self._fetch("figures")[0])

    def every_version(self) -> Iterator[Row]:
        """Yields every version, in the order of the log."""
        with translate_errors(self.path):
            for row in self._db.execute(STATEMENTS["every_version"], (0, -1)):
                yield Row._make(row)

    def _refuse_write(self, **_: object) -> NoReturn:
        raise StoreError(f"{self.path} is incomplete: a data key is missing, and a backup is never changed")

    def _fetch(self, name: str, *params: apsw.SQLiteValue) -> list[tuple[Any, ...]]:
        with translate_errors(self.path):
            return self._db.execute(STATEMENTS[name], params).fetchall()

    def close(self) -> None:
        self._db.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_size(path: Path) -> None:
    """Raises if a file is shorter than its own header says; SQLite would only call it malformed."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    if len(head) < 100 or not head.startswith(b"SQLite format 3\0"):
        raise StoreError(f"{path} is not a database, or only its first bytes: it is not a backup")
    page = int.from_bytes(head[16:18], "big")
    expected = int.from_bytes(head[28:32], "big") * (65536 if page == 1 else page)
    if (size := path.stat().st_size) < expected:
        raise StoreError(f"{path} is truncated: it has {size:,} of {expected:,} bytes")
