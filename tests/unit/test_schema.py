"""The schema is versioned: what was released never changes, and every older store is brought forward."""

from __future__ import annotations

import hashlib
from pathlib import Path

import apsw
import pytest

from alcove import Alcove, AlcoveError, StoreError
from alcove.engine import sqlite
from tests.support.aging import aged

RELEASED = [
    "ece4c5193cf671c2a56c6788ba7dd03af8f97f95908ee7be250062a351ea11d5",
    "ce6a20bb86506c2fcc62a6b8341ce1852473ebed23ead71ce183ba4db0e07640",
]


def version(path: Path) -> object:
    return apsw.Connection(str(path)).execute("PRAGMA user_version").get


def test_a_released_schema_file_never_changes() -> None:
    digests = [hashlib.sha256(script.encode()).hexdigest() for script in sqlite.migrations()]
    assert digests[: len(RELEASED)] == RELEASED


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


def test_the_file_is_marked_as_ours(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    Alcove(path).close()
    mark = apsw.Connection(str(path)).execute("PRAGMA application_id").get
    assert mark == sqlite.APPLICATION_ID
