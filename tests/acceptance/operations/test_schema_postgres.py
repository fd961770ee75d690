"""The schema of a store in PostgreSQL: stores of earlier edits of it, and ones that somebody changed."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from alcove import Alcove, MemoryKey, StoreError
from alcove.engine.postgres import database as postgres
from alcove.engine.postgres.database import schema_lines
from alcove.engine.schema_check import created, postgres_manifest
from alcove.engine.statements import schema
from tests.support.hashed_embedder import Bag
from tests.support.postgres import new_database, split
from tests.support.postgres_nodes import HOME, opened, two_nodes
from tests.support.service import refused
from tests.support.store_inspection import assert_sound, timeline
from tests.support.waiting import until

EARLIER = Path(__file__).parents[2] / "support" / "earlier_schemas"
"""Version 1 as it was when stores were first made by it, and before its keys began with the namespace."""


def lines(memory: Alcove) -> list[str]:
    return schema_lines(memory.memories._engine._db._writer)  # type: ignore[attr-defined]


def filled(folder: Path, keys: MemoryKey) -> str:
    """The address of a store with something in every table that an earlier one has."""
    address = new_database()
    with opened(folder, address, keys=keys, embedder=Bag()) as memory:
        for name in ("alice", "bob"):
            user = memory.as_user(name)
            for n in range(5):
                user.put(("user", name), f"k{n}", {"n": n}, index={"text": f"tea {n}"}, wait_for_index=True)
            user.put(("user", name), "k0", {"n": 10}, idempotency_key="once")
            user.touch(("user", name), "k1", ttl_seconds=10_000)
            user.delete(("user", name), "k2")
        memory.admin.put_settings({"max_depth": 4})
    with opened(folder, address, keys=keys) as memory:
        memory.as_user("bob").put(("user", "bob"), "waits", {"n": 1}, index={"text": "rum"})
    return address


def copied(source: str, script: str) -> str:
    """The address of a database with the rows of another one, in tables that a script makes."""
    address = new_database()
    with psycopg.connect(source) as old, psycopg.connect(address, autocommit=True) as new:
        new.execute(script.encode())
        new.execute(
            "CREATE TABLE alcove_schema (version BIGINT PRIMARY KEY); INSERT INTO alcove_schema VALUES (1)"
        )
        new.execute("DELETE FROM marks")
        columns = new.execute(
            "SELECT relname, string_agg(quote_ident(attname), ', ') FROM pg_class c"
            " JOIN pg_attribute ON attrelid = c.oid WHERE relkind = 'r'"
            " AND relnamespace = 'public'::regnamespace AND attnum > 0"
            " AND relname <> 'alcove_schema' GROUP BY 1"
        ).fetchall()
        for table, fields in columns:
            new.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            for row in old.execute(f"SELECT {fields} FROM {table}").fetchall():
                new.execute(f"INSERT INTO {table} ({fields}) VALUES ({', '.join(['%s'] * len(row))})", row)
            new.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        for table, key in (("versions", "seq"), ("data_keys", "id"), ("vectors", "id"), ("touches", "id"),
                           ("audit", "seq"), ("documents", "version")):  # fmt: skip
            ((last,),) = old.execute(f"SELECT max({key}) FROM {table}")
            new.execute(f"SELECT setval(pg_get_serial_sequence('{table}', '{key}'), {last})")
    return address


@pytest.fixture
def keys() -> MemoryKey:
    return MemoryKey()


@pytest.mark.parametrize("name", sorted(each.stem for each in EARLIER.iterdir()))
def test_a_store_of_an_earlier_edit_of_the_schema_is_brought_up_to_date_with_its_data(
    tmp_path: Path, keys: MemoryKey, name: str
) -> None:
    source = filled(tmp_path, keys)
    with opened(tmp_path, source, keys=keys) as memory:
        before, wanted = timeline(memory), lines(memory)
    address = copied(source, (EARLIER / f"{name}.sql").read_text())
    with opened(tmp_path, address, keys=keys, embedder=Bag()) as memory:
        assert timeline(memory) == before
        assert {*lines(memory)} >= {*wanted}
        alice = memory.as_user("alice")
        assert alice.put(("user", "alice"), "k0", {"n": 11}).revision == 3
        assert alice.put(("user", "alice"), "k0", {"n": 10}, idempotency_key="once").revision == 2
        alice.batch(
            [
                {
                    "op": "put",
                    "namespace": ("user", "alice"),
                    "key": "new",
                    "value": {},
                    "index": {"text": "gin"},
                }
            ]
        )
        until(lambda: memory.admin.index().waiting == 0)
        assert alice.search(("user", "alice"), query="gin")[0].key == "new"
        assert memory.as_user("bob").search(("user", "bob"), query="rum")[0].key == "waits"
        assert alice.touch(("user", "alice"), "k1", ttl_seconds=5).ttl_seconds == 5
        cursors = [event.cursor for event in timeline(memory)]
        assert len({*cursors}) == len(cursors) == len(before) + 2
        assert memory.admin.settings()["max_depth"] == 4
        assert_sound(memory)
        assert memory.wipe("alice").scrubbed
        assert_sound(memory)


def test_the_published_schema_is_left_as_it_is_by_later_versions(tmp_path: Path, keys: MemoryKey) -> None:
    source = filled(tmp_path, keys)
    first, *_ = schema("schema_postgres")
    address = copied(source, first)
    with opened(tmp_path, address, keys=keys) as memory:
        assert {*lines(memory)} == {*postgres_manifest()}
        assert_sound(memory)


CHANGES = {
    "function": "CREATE OR REPLACE FUNCTION alcove_writing() RETURNS BIGINT LANGUAGE sql AS 'SELECT 7'",
    "column": "ALTER TABLE replays DROP COLUMN position",
    "type": "ALTER TABLE marks ALTER COLUMN value TYPE NUMERIC",
    "index": "DROP INDEX live; CREATE INDEX live ON versions (ns, key)",
    "predicate": "DROP INDEX ended; CREATE INDEX ended ON versions (ended_at)",
    "trigger": "ALTER TABLE versions DISABLE TRIGGER version_gone",
    "condition of a trigger": "DROP TRIGGER version_gone ON versions; CREATE TRIGGER version_gone"
    " AFTER DELETE ON versions FOR EACH ROW WHEN (FALSE) EXECUTE FUNCTION version_over()",
    "table": "DROP TABLE touches",
    "default": "ALTER TABLE versions ALTER seq DROP DEFAULT",
    "identity": "ALTER TABLE audit ALTER seq DROP IDENTITY",
    "strict function": "ALTER FUNCTION alcove_writing() STRICT",
    "function of another user": "ALTER FUNCTION version_over() SECURITY DEFINER",
    "unlogged": "ALTER TABLE replays SET UNLOGGED",
    "added column": "ALTER TABLE replays ADD tenant TEXT NOT NULL",
    "added unique index": "CREATE UNIQUE INDEX one_each ON versions (client, agent)",
    "added check": "ALTER TABLE versions ADD CONSTRAINT small CHECK (length(key) < 3)",
    "added trigger": "CREATE TRIGGER theirs AFTER INSERT ON versions FOR EACH ROW"
    " EXECUTE FUNCTION version_touched()",
    "added rule": "CREATE RULE theirs AS ON DELETE TO versions DO INSTEAD NOTHING",
    "added function": "CREATE FUNCTION alcove_writing(n INT DEFAULT 0) RETURNS BIGINT"
    " LANGUAGE sql AS 'SELECT 7'",
}


@pytest.fixture
def address(tmp_path: Path) -> str:
    address = new_database()
    with opened(tmp_path, address) as memory:
        memory.put(HOME, "k", {"n": 1})
    return address


@pytest.mark.parametrize("what", CHANGES)
def test_a_store_whose_schema_was_changed_under_its_number_is_refused_with_what_to_do(
    tmp_path: Path, address: str, what: str
) -> None:
    with psycopg.connect(address) as db:
        db.execute(CHANGES[what].encode())
    changed = r"tables are not as this version of Alcove creates them\. (Missing|Unexpected): .*backup"
    with pytest.raises(StoreError, match=changed):
        opened(tmp_path, address)


def test_a_node_does_not_start_on_a_changed_schema_and_says_so(tmp_path: Path, address: str) -> None:
    with psycopg.connect(address) as db:
        db.execute(CHANGES["column"].encode())
    said = refused(tmp_path, "--engine", address, env={"ALCOVE_STATE": str(tmp_path)})
    assert "column replays.position bigint not null" in said


def test_what_an_operator_adds_is_left_alone(tmp_path: Path, address: str) -> None:
    with psycopg.connect(address) as db:
        db.execute(
            "CREATE INDEX theirs ON versions (client); CREATE TABLE notes (n INT);"
            "ALTER TABLE audit ADD note TEXT; ALTER TABLE audit ADD region TEXT NOT NULL DEFAULT 'eu';"
            "ALTER TABLE versions ENABLE ROW LEVEL SECURITY;"
            "ALTER TABLE versions ENABLE ALWAYS TRIGGER version_gone"
        )
    with opened(tmp_path, address) as memory:
        memory.put(HOME, "k", {"n": 2})


def test_a_store_that_is_split_by_tenant_has_the_schema_that_is_expected(
    tmp_path: Path, address: str
) -> None:
    split(address, "{user:h,user:q}")
    with opened(tmp_path, address) as memory:
        assert {*lines(memory)} >= {*postgres_manifest()}


def test_two_nodes_that_start_together_bring_an_earlier_store_up_to_date_once(
    tmp_path: Path, address: str
) -> None:
    earlier = "DELETE FROM alcove_schema WHERE version > 1; DROP FUNCTION alcove_writing CASCADE"
    with psycopg.connect(address) as db:
        db.execute(earlier)
    with two_nodes(tmp_path, address) as (one, two):
        assert one.put(HOME, "from-one", {"n": 1}).status_code == 200
        assert two.get(HOME, "from-one").json()["value"] == {"n": 1}
    with psycopg.connect(address) as db:
        assert db.execute("SELECT version FROM alcove_schema ORDER BY 1").fetchall() == [(1,), (2,)]


def test_the_manifest_says_what_the_version_files_make(tmp_path: Path) -> None:
    """If this fails after a new version file, write these lines to `engine/sql/schema_postgres.manifest`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(postgres, "check_schema", lambda *_: None)
        memory = opened(tmp_path, new_database())
    with memory:
        assert sorted(postgres_manifest()) == sorted(lines(memory))
    assert {"versions", "to_remove"} <= {*created("TABLE")}
