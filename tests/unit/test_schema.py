"""The schema is versioned: what was released never changes, and every older store is brought forward."""

from __future__ import annotations

import hashlib
from pathlib import Path

import apsw
import pytest

from alcove import Alcove, AlcoveError, StoreError
from alcove.engine.sqlite import database as sqlite
from alcove.engine.statements import schema
from tests.support.older_schema import aged

PUBLISHED = {
    "schema": [
        "ece4c5193cf671c2a56c6788ba7dd03af8f97f95908ee7be250062a351ea11d5",
        "ce6a20bb86506c2fcc62a6b8341ce1852473ebed23ead71ce183ba4db0e07640",
        "ad7231889009cbebfab103dabace5c130c77f6de6edc5960bef977db3aad773a",
        "1143d9341429b49ff1b0b920daa0add170ad11371475fd9484805ac21a2b28ad",
        "137d5d2180dcfa06ac1a010458811894d1ea0527317a46470587c2cb61bcac94",
        "ef18f894a4b32f43d3b4bb388bbd51b01a1f562ce887824e1fad75111c3316ce",
        "7db7dbd503d9ce1eb20c2278520ed7a9776a4adc96fcc53cc4d2a903379226b9",
        "250e1a37bae9c78a6192df52b921e1f190011923fb31a934d51b357cf384beeb",
        "8b38de7e386843979b7d0444c508291d289803749798cff19f889ebd2498ba3e",
        "05f2d83f06cde6f6f2812c9f7a706ef6ae5ef4eeca381f790114796ff1a46ee8",
    ],
    "schema_postgres": [
        "f735bfa8fcee45713931f06a710b7dd32f16470c5dbd39b740e862cdf00e4ce5",
        "faee2b80071f5e68a2a5e1194561c1bf930aaef4cf2e9e32839b0d9570e2ea89",
    ],
}
"""The digests of version files that stores were made by; a change to a schema is a new file."""


def version(path: Path) -> object:
    return apsw.Connection(str(path)).execute("PRAGMA user_version").get


@pytest.mark.parametrize("folder", PUBLISHED)
def test_a_published_schema_file_never_changes_and_a_new_one_is_put_down_here(folder: str) -> None:
    assert [hashlib.sha256(script.encode()).hexdigest() for script in schema(folder)] == PUBLISHED[folder]


def test_a_new_store_has_the_newest_schema(tmp_path: Path) -> None:
    Alcove(tmp_path / "memory.db").close()
    assert version(tmp_path / "memory.db") == len(sqlite.migrations())


@pytest.mark.parametrize("old", range(1, len(sqlite.migrations()) + 1))
def test_a_store_of_an_older_schema_is_brought_forward_with_its_data(tmp_path: Path, old: int) -> None:
    with Alcove(tmp_path / "new.db") as memory:
        memory.as_user("alice").put("user:alice", "k", {"n": old})
    path = tmp_path / "memory.db"
    aged(tmp_path / "new.db", path, old)
    assert version(path) == old
    with Alcove(path) as memory:
        found = memory.as_user("alice").get("user:alice", "k")
        assert found is not None
        assert found.value == {"n": old}
        assert [e for e in memory.doctor() if e.wrong] == []
    assert version(path) == len(sqlite.migrations())


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.db"
    with Alcove(path) as memory:
        memory.as_user("alice").put("user:alice", "k", {"n": 1})
    scripts = sqlite.migrations()
    with monkeypatch.context() as patched:
        broken = "DROP TABLE replays; ALTER TABLE versions RENAME TO gone; SELECT no_such_column"
        patched.setattr(sqlite, "migrations", lambda: [*scripts, broken])
        with pytest.raises(AlcoveError):
            Alcove(path)
    with Alcove(path) as memory:
        assert memory.as_user("alice").get("user:alice", "k") is not None


def test_a_store_of_a_newer_alcove_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    Alcove(path).close()
    apsw.Connection(str(path)).execute("PRAGMA user_version = 999")
    with pytest.raises(StoreError, match="newer"):
        Alcove(path)


CHANGES = {
    "column": "ALTER TABLE replays DROP COLUMN position",
    "table": "DROP TABLE touches",
    "trigger": "DROP TRIGGER version_gone",
    "index": "DROP INDEX ended; CREATE INDEX ended ON versions (ended_at)",
    "added unique index": "CREATE UNIQUE INDEX one_each ON versions (client, agent)",
    "added trigger": "CREATE TRIGGER theirs AFTER INSERT ON versions BEGIN SELECT RAISE(ABORT, 'no'); END",
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_store_whose_schema_was_changed_under_its_number_is_refused_with_what_to_do(
    tmp_path: Path, what: str
) -> None:
    path = tmp_path / "memory.db"
    with Alcove(path) as memory:
        memory.put("user:noop", "k", {"n": 1})
    apsw.Connection(str(path)).execute(CHANGES[what])
    with pytest.raises(
        StoreError,
        match=r"tables are not as this version of Alcove creates them\. (Missing|Unexpected): .*backup",
    ):
        Alcove(path)


def test_what_an_operator_adds_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    Alcove(path).close()
    apsw.Connection(str(path)).execute(
        "CREATE INDEX theirs ON versions (client);"
        "CREATE TABLE notes (n); CREATE UNIQUE INDEX once ON notes (n);"
        "CREATE TRIGGER told AFTER INSERT ON notes BEGIN DELETE FROM notes; END"
    )
    with Alcove(path) as memory:
        memory.put("user:noop", "k", {"n": 1})


def test_the_file_is_marked_as_ours(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    Alcove(path).close()
    mark = apsw.Connection(str(path)).execute("PRAGMA application_id").get
    assert mark == sqlite.APPLICATION_ID
