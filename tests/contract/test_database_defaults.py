"""What an operator set as defaults of the database or of the role changes nothing in what a store does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest

from alcove import Alcove, AlcoveError, Settings, StoreError, Unavailable
from alcove.engine.postgres.database import WRITER_LOCK
from tests.support.postgres import new_database
from tests.support.postgres_nodes import opened
from tests.support.store_inspection import assert_sound
from tests.support.waiting import until

ISOLATION = ("read committed", "repeatable read", "serializable")
HOME = ("user", "noop")
Set = Callable[[str, str], None]


@pytest.fixture
def address() -> str:
    return new_database()


@pytest.fixture
def set_default(address: str) -> Set:
    """Changes what every later connection to the database begins with."""

    def set_default(name: str, value: str) -> None:
        with psycopg.connect(address, autocommit=True) as db:
            ((database,),) = db.execute("SELECT quote_ident(current_database())")
            db.execute(f"ALTER DATABASE {database} SET {name} = '{value}'")

    return set_default


@contextmanager
def writers_wait(address: str) -> Iterator[Callable[[int], bool]]:
    """Nobody can write until the end; what it gives waits until so many want to."""
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(f"SELECT pg_advisory_lock({WRITER_LOCK})")

        def waiting() -> int:
            asked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            return int(db.execute(asked).fetchall()[0][0])

        yield lambda count: until(lambda: waiting() == count)


def rows(address: str, statement: LiteralString) -> list[tuple[object, ...]]:
    with psycopg.connect(address) as db:
        return db.execute(statement).fetchall()


@pytest.mark.parametrize("level", ISOLATION)
def test_a_put_behind_a_wipe_is_sealed_with_a_key_that_exists(
    level: str, tmp_path: Path, address: str, set_default: Set
) -> None:
    set_default("default_transaction_isolation", level)
    with opened(tmp_path, address) as one, opened(tmp_path, address) as two, ThreadPoolExecutor(2) as threads:
        alice = two.as_user("alice")
        alice.put(("user", "alice"), "k", {"n": 1}, index={"text": "tea"})
        with writers_wait(address) as until_waiting:
            wiped = threads.submit(one.wipe, "alice")
            until_waiting(1)
            put = threads.submit(alice.put, ("user", "alice"), "later", {"n": 2}, index={"text": "rum"})
            until_waiting(2)
        assert wiped.result().removed["memories"] == 1
        put.result()
        dead = rows(address, "SELECT key FROM versions WHERE data_key NOT IN (SELECT id FROM data_keys)")
        assert dead == []
        found = alice.get(("user", "alice"), "later")
        assert found is not None
        assert found.value == {"n": 2}
        assert_sound(one)


@pytest.mark.parametrize("level", ISOLATION)
def test_puts_and_batches_of_one_key_by_several_nodes_all_succeed(
    level: str, tmp_path: Path, address: str, set_default: Set
) -> None:
    set_default("default_transaction_isolation", level)
    nodes = [opened(tmp_path, address) for _ in range(4)]
    try:
        together = threading.Barrier(len(nodes))

        def write(node: Alcove) -> None:
            together.wait()
            for n in range(10):
                node.put(HOME, "raced", {"n": n})
                node.batch([{"op": "put", "namespace": HOME, "key": "raced", "value": {"n": n}}])

        with ThreadPoolExecutor(len(nodes)) as threads:
            list(threads.map(write, nodes))
        found = nodes[0].get(HOME, "raced")
        assert found is not None
        assert found.revision == 80
        assert_sound(nodes[0])
    finally:
        for node in nodes:
            node.close()


NEEDED = {
    "default_transaction_isolation": ("serializable", "read committed"),
    "default_transaction_deferrable": ("on", None),
    "synchronous_commit": ("off", "on"),
    "session_replication_role": ("replica", "origin"),
    "standard_conforming_strings": ("off", "on"),
    "client_encoding": ("LATIN1", "UTF8"),
    "TimeZone": ("Asia/Kathmandu", "UTC"),
    "DateStyle": ("German, DMY", "ISO, YMD"),
    "bytea_output": ("escape", None),
    "statement_timeout": ("1min", "0"),
    "lock_timeout": ("1min", None),
    "idle_in_transaction_session_timeout": ("1min", "0"),
    "idle_session_timeout": ("1min", "0"),
    "transaction_timeout": ("1min", "0"),
    "extra_float_digits": ("-15", None),
    "IntervalStyle": ("sql_standard", None),
    "escape_string_warning": ("on", None),
}
"""Defaults of a database, and what a connection of ours has instead; None where it makes no difference."""


def test_every_connection_has_the_settings_that_the_engine_needs(
    tmp_path: Path, address: str, set_default: Set
) -> None:
    with psycopg.connect(address) as db:
        known = {name for (name,) in db.execute("SELECT name FROM pg_settings").fetchall()}
    for name, (default, _) in NEEDED.items():
        if name in known:
            set_default(name, default)
    with opened(tmp_path, address) as memory:
        alice, heard = memory.as_user("alice"), threading.Event()
        assert memory.memories.timeline.on_commit(heard.set)
        room = ("user", "alice")
        alice.put(room, "zażółć", {"n": 1.5, "at": "2024-02-03T04:05:06+05:45"}, index={"text": "tea\\x00 ✓"})
        alice.put(room, "old", {"n": 2}, ttl_seconds=1000)
        later = {"at": {"$gt": "2024-02-02T22:20:05Z"}}
        assert [found.key for found in alice.search(room, filter=later)] == ["zażółć"]
        assert [each.key for each in alice.list(room)] == ["old", "zażółć"]
        assert memory.admin.stats().memories == 2
        assert_sound(memory)
        until(heard.is_set)
        engine = memory.memories._engine
        assert engine.locks.try_acquire(b"turn")
        database = engine._db
        connections = {
            "writer": database._writer,  # type: ignore[attr-defined]
            "reader": database._readers.acquire(),  # type: ignore[attr-defined]
            "locks": engine.locks._connection,  # type: ignore[attr-defined]
            "listener": database._connect(),  # type: ignore[attr-defined]
        }
        for used_as, connection in connections.items():
            for name, (_, needed) in NEEDED.items():
                if needed is not None and name in known:
                    ((value,),) = connection.execute(f"SHOW {name}")
                    assert (used_as, name, value) == (used_as, name, needed)
        database._readers.release(connections["reader"])  # type: ignore[attr-defined]
        connections["listener"].close()


@pytest.mark.parametrize("chosen", ["local", "remote_write", "on", "remote_apply"])
def test_how_far_a_commit_goes_beyond_the_disk_is_left_to_the_operator(
    chosen: str, tmp_path: Path, address: str, set_default: Set
) -> None:
    set_default("synchronous_commit", chosen)
    with opened(tmp_path, address) as memory:
        writer = memory.memories._engine._db._writer  # type: ignore[attr-defined]
        assert writer.execute("SHOW synchronous_commit").fetchall() == [(chosen,)]


def test_a_database_that_its_operator_made_read_only_stays_so_and_a_store_says_it(
    tmp_path: Path, address: str, set_default: Set
) -> None:
    opened(tmp_path, address).close()
    set_default("default_transaction_read_only", "on")
    with pytest.raises(Unavailable, match="read-only"):
        opened(tmp_path, address)


def test_a_schema_that_a_role_gets_later_does_not_move_the_store(tmp_path: Path, address: str) -> None:
    patient = Settings(sweep_interval=0)
    with opened(tmp_path, address, settings=patient) as memory:
        memory.put(HOME, "before", {"n": 1})
        with psycopg.connect(address, autocommit=True) as db:
            db.execute('CREATE SCHEMA "postgres"')  # the first place that `"$user", public` looks at
        memory.put(HOME, "after", {"n": 2})
        engine = memory.memories._engine
        database = engine._db
        taken = [database._readers.acquire() for _ in range(3)]  # type: ignore[attr-defined]
        for connection in taken:
            assert connection.execute("SELECT current_schema()").fetchall() == [("public",)]
            database._readers.release(connection)  # type: ignore[attr-defined]
        assert [each.key for each in memory.list(HOME)] == ["after", "before"]


def test_a_database_of_another_encoding_is_refused_by_a_new_store(tmp_path: Path, address: str) -> None:
    at = urlsplit(address)
    name = f"{at.path.strip('/')}_latin"
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(StoreError, match=r"LATIN1.*UTF8"):
        opened(tmp_path, at._replace(path=f"/{name}").geturl())
    assert [*tmp_path.iterdir()] == []  # no key was made for it


def test_an_error_of_the_database_does_not_show_the_row_it_is_about(tmp_path: Path, address: str) -> None:
    with opened(tmp_path, address) as memory:
        with psycopg.connect(address) as db:
            db.execute("ALTER TABLE versions ADD CONSTRAINT none CHECK (seq < 0)")
        with pytest.raises(AlcoveError, match="violates check constraint") as failed:
            memory.put(HOME, "secret-key", {"n": 1}, index={"text": "secret-text"})
        assert "secret" not in str(failed.value)
