"""Paths that hold no store of ours: each is refused in clear words, and none is changed."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from alcove import Alcove, AlcoveError, KeyUnavailable, Settings, StoreError
from tests.support.store_inspection import assert_sound, query

pytestmark = pytest.mark.of_the_file("what lies beside it, and who may read it")

QUIET = Settings(sweep_interval=0)
AL = ("user", "al")


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def assert_refused(path: Path, error: type[AlcoveError], words: str) -> None:
    """Refused by name, twice alike; every file beside it is what it was, and none was added."""
    folder = path.parent
    before = contents(folder) if folder.exists() else None
    for _ in range(2):
        with pytest.raises(error, match=words) as refusal:
            Alcove(path, settings=QUIET)
        assert str(path) in refusal.value.message
        assert (contents(folder) if folder.exists() else None) == before


def make_store(path: Path) -> None:
    with Alcove(path, settings=QUIET) as memory:
        memory.as_user("al").put(AL, "key", {"n": 1})


def test_only_the_owner_can_read_a_new_store_and_all_that_is_written_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    (tmp_path / "link.db").symlink_to(tmp_path / "linked.db")
    before = os.umask(0)
    try:
        with Alcove(path, settings=QUIET) as memory, Alcove(tmp_path / "link.db", settings=QUIET):
            memory.as_user("al").put(AL, "key", {"n": 1})
            memory.wipe("al")
            for _ in memory.backup(tmp_path / "backup.db"):
                pass
            modes = {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert {"memory.db", "memory.db-wal", "memory.db-shm", "memory.db.wipes", "linked.db"} <= modes.keys()
    assert set(modes.values()) == {"0o600"}, modes


def test_a_store_that_others_can_read_is_left_so_and_noticed_by_the_doctor(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    make_store(path)
    path.chmod(0o644)
    with Alcove(path, settings=QUIET) as memory:
        noticed = {each.name: each.noticed for each in memory.doctor()}["only the owner can read the files"]
    assert noticed == [f"{path}{suffix} has the mode 644" for suffix in ("", "-wal", "-shm")]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert_refused(tmp_path / "nowhere" / "memory.db", StoreError, "folder")
    assert not (tmp_path / "nowhere").exists()


def test_a_path_that_is_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    path.mkdir()
    assert_refused(path, StoreError, "is a folder")
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("content", [b"hello", b"not a database\n" * 1000, b"\0" * 100, b"\0" * 8192])
def test_a_file_that_is_not_a_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "memory.db"
    path.write_bytes(content)
    assert_refused(path, StoreError, "not a database")


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("version", [0, 1, 7])
def test_another_programs_database(tmp_path: Path, journal: str, version: int) -> None:
    path = tmp_path / "memory.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode = {journal}")
        db.execute("CREATE TABLE theirs (x)")
        db.execute("INSERT INTO theirs VALUES ('precious')")
        db.execute(f"PRAGMA user_version = {version}")
        db.commit()
    assert_refused(path, StoreError, "another program's|newer")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT x FROM theirs").fetchall() == [("precious",)]
        assert db.execute("PRAGMA journal_mode").fetchone() == (journal,)


def test_another_programs_database_without_tables(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA application_id = 42")
        db.commit()
    assert_refused(path, StoreError, "another program's")


def test_a_database_made_by_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    make_store(path)
    ((version,),) = query(path, "PRAGMA user_version")
    query(path, "PRAGMA user_version = 999")
    assert_refused(path, StoreError, "newer")
    query(path, f"PRAGMA user_version = {version}")
    with Alcove(path, settings=QUIET) as memory:
        assert memory.as_user("al").get(AL, "key") is not None


def test_a_file_of_zero_bytes_counts_as_new(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    path.touch()
    make_store(path)
    with Alcove(path, settings=QUIET) as memory:
        assert memory.as_user("al").get(AL, "key") is not None
        assert_sound(memory)


def test_a_store_whose_first_bytes_were_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    make_store(path)
    path.write_bytes(path.read_bytes()[100:])
    assert_refused(path, StoreError, "not a database")


def test_a_store_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    make_store(path)
    path.write_bytes(path.read_bytes()[:8192])
    assert_refused(path, StoreError, "damaged")


def test_a_store_without_its_key_gets_no_new_one(tmp_path: Path) -> None:
    path, key = tmp_path / "memory.db", tmp_path / "memory.db.key"
    make_store(path)
    text = key.read_text()
    key.unlink()
    with pytest.raises(KeyUnavailable, match=r"memory\.db\.key is missing"):
        Alcove(path, settings=QUIET)
    assert not key.exists()
    make_store(tmp_path / "other.db")
    (tmp_path / "other.db.key").rename(key)
    with pytest.raises(KeyUnavailable, match="sealed with the key"):
        Alcove(path, settings=QUIET)
    key.write_text(text)
    with Alcove(path, settings=QUIET) as memory:
        assert memory.as_user("al").get(AL, "key") is not None


@pytest.mark.parametrize("text", ["", "not base64!\n", "c2hvcnQ=\n"])
def test_a_key_file_that_holds_no_key(tmp_path: Path, text: str) -> None:
    path, key = tmp_path / "memory.db", tmp_path / "memory.db.key"
    make_store(path)
    key.write_text(text)
    with pytest.raises(KeyUnavailable, match=r"memory\.db\.key"):
        Alcove(path, settings=QUIET)
    assert key.read_text() == text
