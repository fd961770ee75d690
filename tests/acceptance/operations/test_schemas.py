"""Stores in two schemas of one database: none waits for the other, wakes it, or touches what it has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from alcove import Alcove, Namespace, StoreError
from alcove.engine.postgres import pgvector
from alcove.engine.postgres.database import channel_of, migration_lock
from alcove.engine.qdrant.index import _STEP_LOCK
from tests.support.hashed_embedder import Bag
from tests.support.postgres import new_database
from tests.support.postgres_nodes import HOME, opened
from tests.support.store_inspection import assert_sound
from tests.support.waiting import PATIENCE, until

NAMES = ("public", "one", "two")


class Schemas:
    """A database with three schemas, and a store in each."""

    def __init__(self, folder: Path) -> None:
        self.address, self._folder = new_database(), folder
        with psycopg.connect(self.address, autocommit=True) as db:
            db.execute("CREATE SCHEMA one; CREATE SCHEMA two")

    def at(self, name: str) -> str:
        more = "&" if "?" in self.address else "?"
        return f"{self.address}{more}options=-csearch_path%3D{quote(name)}%2Cpublic"

    def open(self, name: str, **options: object) -> Alcove:
        return opened(self._folder, self.at(name), **options)

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.address) as db:
            return db.execute(sql.encode()).fetchall()


@pytest.fixture
def schemas(tmp_path: Path) -> Schemas:
    return Schemas(tmp_path)


@pytest.fixture
def stores(schemas: Schemas) -> Iterator[list[Alcove]]:
    found = [schemas.open(name) for name in NAMES]
    yield found
    for store in found:
        store.close()


def test_a_turn_of_a_session_in_one_store_is_not_taken_in_another(stores: list[Alcove]) -> None:
    session = Namespace(("turns", "bot", "u", "alice", "monday"))
    for store in stores:
        assert store.memories.try_lock(session)
        assert not store.memories.try_lock(session)
    for store in stores:
        store.memories.unlock(session)


def test_a_step_of_the_vector_store_in_one_store_holds_up_no_other(stores: list[Alcove]) -> None:
    assert [store.memories._engine.locks.try_acquire(_STEP_LOCK) for store in stores] == [True, True, True]


def test_a_commit_in_one_store_wakes_nobody_who_listens_in_another(
    schemas: Schemas, stores: list[Alcove]
) -> None:
    for n, (name, store) in enumerate(zip(NAMES, stores, strict=True)):
        heard = threading.Event()
        with psycopg.connect(schemas.address, autocommit=True) as others, ExitStack() as closing:
            for other in {*NAMES} - {name}:
                others.execute(f"LISTEN {channel_of(other)}")
            again = closing.enter_context(schemas.open(name))
            assert again.memories.timeline.on_commit(heard.set)
            until(heard.is_set)  # once, when it begins to listen
            heard.clear()
            store.put(HOME, "k", {"n": n})
            until(heard.is_set)
            others.execute(
                f"NOTIFY {channel_of(NAMES[n - 1])}, 'last'"
            )  # arrives after whatever came before it
            told = [each.payload for each in others.notifies(timeout=PATIENCE, stop_after=1)]
            assert told == ["last"]


def test_a_store_is_opened_while_the_schema_of_another_is_being_changed(schemas: Schemas) -> None:
    with ThreadPoolExecutor(3) as beside, psycopg.connect(schemas.address) as busy:
        busy.execute("SELECT pg_advisory_xact_lock(%s::bigint)", (migration_lock("one"),))
        waiting = beside.submit(schemas.open, "one")
        for name in ("public", "two"):
            beside.submit(schemas.open, name).result(PATIENCE).close()
        assert not waiting.done()
        busy.rollback()
        waiting.result(PATIENCE).close()


def test_a_store_makes_and_drops_only_its_own_index_by_meaning(
    schemas: Schemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "MIN_INDEXED", 3)

    def fill(store: Alcove) -> None:
        for n in range(8):
            store.put(HOME, f"k{n}", {}, index={"text": f"tea {n}"}, wait_for_index=True)
        if not (candidates := store.memories._engine.index.candidates):
            pytest.skip("the server has no pgvector")
        until(lambda: not candidates.has_backlog())
        candidates.optimize()

    def tables() -> dict[object, object]:
        found = schemas.rows(
            "SELECT nspname, c.relfilenode FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE relname = 'windows_by_meaning'"
        )
        return {row[0]: row[1] for row in found}

    with schemas.open("public", embedder=Bag()) as public:
        fill(public)
        before = tables()
        assert [*before] == ["public"]
        with schemas.open("one", embedder=Bag()) as one:
            fill(one)
            after = tables()
            assert after.keys() == {"public", "one"}
            assert after["public"] == before["public"]
        with schemas.open("two", embedder=Bag(dimensions=32)) as two:
            fill(two)
        assert tables()["public"] == before["public"]
        assert_sound(public)


ODD = ("One", "a b", "a.b", "é", "select")
"""Names of schemas that SQL has to quote."""


def test_schemas_of_any_name_hold_stores_that_are_checked_and_scrubbed_apart(schemas: Schemas) -> None:
    stores = [schemas.open("one")]
    with psycopg.connect(schemas.address, autocommit=True) as db:
        for name in ODD:
            db.execute(f'CREATE SCHEMA "{name}"'.encode())
            stores.append(schemas.open(f'"{name}"'.replace(" ", "\\ ")))
    for store in stores:
        for user in ("alice", "bob"):
            store.as_user(user).put(("user", user), "k", {"n": 1}, index={"text": "tea"})
    files = "SELECT CAST(relnamespace AS regnamespace), relfilenode FROM pg_class WHERE relname = 'versions'"
    for name, store in zip(("one", *ODD), stores, strict=True):
        before = {*schemas.rows(files)}
        assert store.wipe("alice").scrubbed, name
        after = {*schemas.rows(files)}
        assert [str(schema).strip('"') for schema, _ in after - before] == [name]
        assert_sound(store)
    for store in stores:
        store.close()
    with psycopg.connect(schemas.address, autocommit=True) as db:
        db.execute('ALTER TABLE "One".replays DROP COLUMN position')
    schemas.open("one").close()
    with pytest.raises(StoreError, match=r"Missing: column replays\.position"):
        schemas.open('"One"')


def test_a_store_whose_schema_does_not_exist_is_not_made_in_the_next_one(
    schemas: Schemas, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match=r"schema 'three'.* CREATE SCHEMA"):
        schemas.open("three")
    assert schemas.rows("SELECT relname FROM pg_class WHERE relname = 'versions'") == []
    assert [*tmp_path.iterdir()] == []
