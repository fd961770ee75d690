"""What Alcove is measured against: the bare driver on one plain table, as durable as Alcove is."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path
from typing import Self

import apsw

SCHEMA = """
CREATE TABLE IF NOT EXISTS rows (seq INTEGER PRIMARY KEY, ns BLOB, key BLOB, value BLOB);
CREATE UNIQUE INDEX IF NOT EXISTS place ON rows (ns, key);
"""
INSERT = "INSERT INTO rows (ns, key, value) VALUES (?, ?, ?)"
SELECT = "SELECT value FROM rows WHERE ns = ? AND key = ?"

Row = tuple[bytes, bytes, bytes]


class RawStore:
    """One connection in WAL mode with `synchronous=FULL`; nothing is encoded, checked or sealed."""

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(os.fspath(path))
        self._db.execute("PRAGMA journal_mode = WAL").fetchall()
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(SCHEMA)

    def insert(self, *rows: Row) -> None:
        """The rows in one transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        for row in rows:
            self._db.execute(INSERT, row)
        self._db.execute("COMMIT")

    def select(self, ns: bytes, key: bytes) -> bytes | None:
        found = self._db.execute(SELECT, (ns, key)).fetchone()
        return None if found is None else found[0]

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GroupCommit:
    """A thread that takes all rows that wait into one transaction; every writer waits for its own."""

    def __init__(self, store: RawStore) -> None:
        self._store = store
        self._waiting: queue.SimpleQueue[tuple[Row, threading.Lock] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._commit, daemon=True)
        self._thread.start()

    def insert(self, row: Row, signal: threading.Lock) -> None:
        """Returns when the row is on the disk; `signal` is the caller's own lock, held."""
        self._waiting.put((row, signal))
        signal.acquire()

    def _commit(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            while not self._waiting.empty():
                following = self._waiting.get()
                if following is None:
                    return  # only sent when nobody writes any more
                batch.append(following)
            self._store.insert(*(row for row, _ in batch))
            for _, signal in batch:
                signal.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.put(None)
        self._thread.join(timeout=10)
