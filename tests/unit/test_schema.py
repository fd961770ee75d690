"""The schema is versioned: what was released never changes, and every older store is brought forward."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import apsw
import pytest

from alcove import Alcove, AlcoveError, StoreError
from alcove.engine.sqlite import database as sqlite
from alcove.engine.statements import schema
from tests.support.older_schema import aged

PUBLISHED = {
    "schema": [
        "dc3964764ec5687e1879a329d46a6f3a781c2e246715858c607e49d9b640e13d",
        "284d09b95d4a7f4bb7740b41f537fe97bb60fd20f04184f52f48c0165d53539e",
        "e56439a3e8dcff2c493b639d5399a5f0662b93592fc2b0c54a8157e6da61bb3a",
        "7b0069d23d17e78ed3127580c732e829fe2efdadfa70e18dd849405997f61a46",
        "69af42986277f44bb146ee6fe776c9ad5921a22e9be9113d13c0bfaea500c800",
        "67e3f7a8804d4b53494a459728cb2276068a66813398a0a451fc31653adbed77",
        "6cbc91422b0b597354d1cc1c325c363b6661de7154886b3cdfb0cc30596a14af",
        "b05a734ea3082af43348391b40b0aea72e3ae74e8c7d5beac4b328dc01c5f1f2",
        "d070a47d4e36c8853b5ca9d9ff9e6232b9770e94384c53cb84b3049aaa8566b2",
        "1f8dcb895268f8d227f6b4c083b0e2bb4869b10598052beb5e2af616c14517c1",
    ],
    "schema_postgres": [
        "8bee705c1ad1ce43c289669c155951c51e2f6f0b82e2e1101c49f617994c6fff",
        "6ff8c9728c1d7354f81404768c56f1fe0f979891ad2640c7051f8a6d7465c665",
    ],
}
"""The digests of released version files, without their comments; a changed schema is a new file."""


def version(path: Path) -> object:
    return apsw.Connection(str(path)).execute("PRAGMA user_version").get


@pytest.mark.parametrize("folder", PUBLISHED)
def test_a_published_schema_file_never_changes_and_a_new_one_is_put_down_here(folder: str) -> None:
    statements = [re.sub(r"^--.*\n", "", script, flags=re.MULTILINE) for script in schema(folder)]
    assert [hashlib.sha256(each.encode()).hexdigest() for each in statements] == PUBLISHED[folder]


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
