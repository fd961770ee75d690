"""A store on PostgreSQL with tables split by tenant (`deploy/partitions.sql`): nothing in it spans two."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from alcove import Alcove
from tests.support.hashed_embedder import Bag
from tests.support.postgres import new_database, split
from tests.support.postgres_nodes import opened
from tests.support.store_inspection import assert_sound, timeline

OF_THE_STORE = {"alcove_schema", "api_keys", "audit", "documents", "marks",
                "private_rooms", "searchable", "serving", "vector_store"}  # fmt: skip
"""Small tables of no tenant, and the audit log of those who look after the store."""
WHOSE = {"ns", "user", "subject"}
"""Columns that begin with, or are, whose a row is."""
KEYS = """
    SELECT c.relname, a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
    WHERE i.indisunique AND c.relnamespace = current_schema()::regnamespace"""
PLACES = "SELECT DISTINCT tableoid::regclass::text, ns FROM versions"


@pytest.fixture
def address() -> str:
    return new_database()


def fill(memory: Alcove) -> None:
    for name in ("alice", "bob", "carol"):
        user = memory.as_user(name)
        for text in ("green tea", "black coffee"):
            user.put(f"user:{name}:notes", "drink", {"text": text}, index=["text"], wait_for_index=True)
        user.put(f"user:{name}:notes", "brief", {"n": 1}, ttl_seconds=1000)
        user.touch(f"user:{name}:notes", "brief", ttl_seconds=2000)


def test_every_key_of_what_is_of_somebody_begins_with_whose_it_is(tmp_path: Path, address: str) -> None:
    with opened(tmp_path, address), psycopg.connect(address) as db:
        keys = db.execute(KEYS).fetchall()
        tables = {name for (name,) in db.execute("SELECT relname FROM pg_class WHERE relkind = 'r'"
                  " AND relnamespace = current_schema()::regnamespace")}  # fmt: skip
    assert {table for table, _ in keys} == tables  # none goes without
    assert {table for table, first in keys if first not in WHOSE} == OF_THE_STORE


def test_a_store_that_is_split_holds_what_it_held_and_each_part_its_own_tenants(
    tmp_path: Path, address: str
) -> None:
    with opened(tmp_path, address, embedder=Bag()) as memory:
        fill(memory)
        before = timeline(memory)
    split(address, "{user:b,user:c}")
    with opened(tmp_path, address, embedder=Bag()) as memory, psycopg.connect(address, autocommit=True) as db:
        assert timeline(memory) == before
        assert dict(db.execute(PLACES).fetchall()) == {
            f"versions_{part}": f"user\0{name}\0notes\0".encode()
            for part, name in enumerate(("alice", "bob", "carol"), 1)
        }
        fill(memory)  # the same trigger, queue and counters go on
        assert [event.revision for event in timeline(memory)][-3:] == [3, 4, 2]
        assert_sound(memory)
        vectors = db.execute("SELECT DISTINCT tableoid::regclass::text FROM vectors").fetchall()
        assert sorted(vectors) == [("vectors_1",), ("vectors_2",), ("vectors_3",)]

        memory.wipe("bob")
        places = db.execute(PLACES).fetchall()
        assert sorted(part for part, _ in places) == ["versions_1", "versions_3"]
        assert_sound(memory)


def test_whoever_splits_a_store_its_owner_and_its_readers_stay_the_same(tmp_path: Path, address: str) -> None:
    name = urlsplit(address).path.strip("/")
    owner, reader = f"{name}_owner", f"{name}_reader"
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(
            f"CREATE ROLE {owner} LOGIN; CREATE ROLE {reader} LOGIN; GRANT CREATE ON SCHEMA public TO {owner}"
        )
    theirs = urlsplit(address)._replace(netloc=f"{owner}@").geturl()
    with opened(tmp_path, theirs) as memory:
        fill(memory)
    with psycopg.connect(theirs) as db:
        db.execute(f"GRANT SELECT ON versions TO {reader}")
    split(address, "{user:b}")  # by who may do everything
    with opened(tmp_path, theirs) as memory:
        fill(memory)
        assert_sound(memory)
    with psycopg.connect(urlsplit(address)._replace(netloc=f"{reader}@").geturl()) as db:
        assert db.execute("SELECT count(*) FROM versions").fetchone() == (18,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.execute("SELECT count(*) FROM vectors")


def test_bounds_that_cannot_be_leave_the_store_as_it_was(tmp_path: Path, address: str) -> None:
    with opened(tmp_path, address) as memory:
        fill(memory)
        before = timeline(memory)
    with pytest.raises(psycopg.Error, match="empty range bound"):
        split(address, "{user:c,user:b}")
    with opened(tmp_path, address) as memory:
        assert timeline(memory) == before
        fill(memory)
        assert_sound(memory)
