"""Looking at a store from outside: is it sound, what happened in it, which bytes do its files hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import psycopg

from alcove import Alcove, Event
from alcove.engine.postgres.database import WRITER_LOCK
from tests.support.postgres_under_paths import address


def assert_sound(memory: Alcove) -> None:
    """The doctor compared something and found nothing wrong."""
    examinations = list(memory.doctor())
    assert examinations, "the doctor looked at nothing"
    wrong = [each for each in examinations if each.wrong]
    assert not wrong, wrong


def timeline(memory: Alcove, prefix: Sequence[str] = (), *, limit: int = 200) -> list[Event]:
    """Every event below a prefix, page by page."""
    return list(follow(memory, prefix, None, limit=limit))


def follow(memory: Alcove, prefix: Sequence[str], cursor: str | None, *, limit: int = 200) -> Iterator[Event]:
    """The events after a cursor, up to the end of the log as it is then."""
    while (page := memory.events(prefix, after_cursor=cursor, limit=limit)).events:
        yield from page.events
        assert page.after_cursor != cursor, "the cursor stands still"
        cursor = page.after_cursor


@contextmanager
def locked(at: Path) -> Iterator[Callable[[], None]]:
    """Nobody else can commit, until the end of the `with` or until what it gives is called."""
    db: apsw.Connection | psycopg.Connection[Any]
    if there := address(at):
        db = psycopg.connect(there, autocommit=True)
        db.execute(f"SELECT pg_advisory_lock({WRITER_LOCK})")
    else:
        db = apsw.Connection(str(at))
        db.execute("BEGIN IMMEDIATE")
    try:
        yield db.close
    finally:
        db.close()


def raw_bytes(path: Path) -> bytes:
    """All that lies on the disk for a store: the file, its log and index, the ledger of wipes.

    Of a database it is what its rows hold; docs/promises.md says which bytes stay beside them.
    """
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", ".wipes")]
    held = [file.read_bytes() for file in files if file.exists()]
    if there := address(path):
        with psycopg.connect(there) as db:
            tables = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            for (name,) in tables:
                with db.cursor().copy(f"COPY {name} TO STDOUT (FORMAT BINARY)") as rows:
                    held += map(bytes, rows)
    return b"\n".join(held)


def query(path: Path, sql: str) -> list[tuple[apsw.SQLiteValue, ...]]:
    """What a statement answers, past every layer of Alcove."""
    if there := address(path):
        with psycopg.connect(there) as asked:
            sql = re.sub(r"zeroblob\((\d+)\)", r"decode(repeat('00', \1), 'hex')", sql)
            found = asked.execute(re.sub(r"\buser =", '"user" =', sql))
            return found.fetchall() if found.description else []
    db = apsw.Connection(str(path))
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def processor_seconds(pid: int) -> float:
    """What a process with all its threads has used of processors so far."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9
