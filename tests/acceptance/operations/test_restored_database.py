"""A database that its own tools restored: what was forgotten since is forgotten again, by the ledger."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from alcove import Alcove
from alcove.core.addresses import state_path
from tests.support.concurrent_workers import QUIET
from tests.support.postgres import new_database, server
from tests.support.service import alcove


def as_it_is_now(address: str) -> str:
    """A copy of a database, as PostgreSQL makes it."""
    name = urlsplit(address).path[1:]
    with psycopg.connect(server(), autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}_copy TEMPLATE {name}")
    return urlsplit(address)._replace(path=f"/{name}_copy").geturl()


def test_a_restored_database_forgets_again_whoever_was_wiped_since_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALCOVE_STATE", str(tmp_path))
    monkeypatch.setenv("ALCOVE_KEY_FILE", str(tmp_path / "key"))
    env = {"ALCOVE_STATE": str(tmp_path), "ALCOVE_KEY_FILE": str(tmp_path / "key")}
    address = new_database()
    with Alcove(address, settings=QUIET, embedder=None) as store:
        for user in ("alice", "bob"):
            store.as_user(user).put(("user", user), "tea", {"likes": "green"})
        store.admin.create_api_key(client="app", user="alice")
    restored = as_it_is_now(address)
    with Alcove(address, settings=QUIET, embedder=None) as store:
        store.admin.wipe("bob")
        (key,) = store.admin.list_api_keys()
        store.admin.revoke_api_key(key.id)

    refused = alcove("restore", "--at", restored, env=env)
    assert refused.returncode == 2
    assert "there is no ledger" in refused.stderr
    ledger = f"{state_path(address, tmp_path)}.wipes"
    done = alcove("restore", "--at", restored, "--ledger", ledger, env=env)
    assert (done.returncode, done.stdout) == (0, "forgotten again: 1 user, 0 single memories\n"), done.output

    with Alcove(restored, settings=QUIET, embedder=None) as store:
        assert store.admin.held("bob").versions == 0
        assert store.as_user("alice").get(("user", "alice"), "tea") is not None  # and it opens
        assert store.admin.list_api_keys() == []
        assert store.admin.audit(limit=1).entries[0].action == "store.restore"
    assert Path(f"{state_path(restored, tmp_path)}.wipes").read_bytes() == Path(ledger).read_bytes()


def test_a_backup_is_for_a_file_and_a_database_is_given_none(tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    backup.touch()
    for words in (
        ["restore", backup, "--at", "postgresql://db/restored"],
        ["restore", "--at", tmp_path / "a.db"],
    ):
        refused = alcove(*words)
        assert refused.returncode == 2
        assert "pg_restore" in refused.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["backup.db"]
