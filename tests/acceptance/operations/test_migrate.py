"""`alcove migrate`: a store from a file into PostgreSQL and back, whole, resumable, never over another one.

This file is also the child program that is killed half-way:
`python -m tests.acceptance.operations.test_migrate <from> <to>`.
"""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from alcove import Alcove, Event, StoreError
from alcove.core.errors import KeyUnavailable
from alcove.engine import table_copy
from alcove.engine.table_copy import TABLES
from alcove.upkeep.backup import Progress
from alcove.upkeep.migration import Migrated, migrate
from tests.support.child_programs import say, started
from tests.support.command import Command
from tests.support.concurrent_workers import QUIET
from tests.support.hashed_embedder import Bag
from tests.support.postgres import new_database
from tests.support.restore_steps import AL, BOB, ROOM, bring_back, in_room
from tests.support.store_inspection import assert_sound, query, raw_bytes, timeline

pytestmark = pytest.mark.of_the_file("it is migrated by its name")

ODD = "tea \0 and \uf8f0 and \\u0000 \uf8f02"
MADE_ANEW = {"terms", "searchable"}
"""Tables of what an indexer makes of the others."""


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALCOVE_STATE", str(tmp_path))


@pytest.fixture
def database(_state: None) -> str:
    return new_database()


def opened(at: str | Path) -> Alcove:
    return Alcove(at, settings=QUIET, embedder=Bag())


def migrated(source: str | Path, target: str | Path) -> Migrated:
    *_, last = migrate(source, target)
    assert last.result is not None
    return last.result


def fill(memory: Alcove, user: str, rows: int) -> None:
    put = {"op": "put", "namespace": ("user", user)}
    for n in range(0, rows, 100):
        numbers = range(n, min(n + 100, rows))
        memory.as_user(user).batch([{**put, "key": f"{user}-{i}", "value": {"n": i}} for i in numbers])


def assert_sound_and_holds(at: str | Path, events: list[Event]) -> None:
    with opened(at) as memory:
        assert timeline(memory) == events
        assert_sound(memory)


def value(al: Alcove, key: str, **options: datetime) -> object:
    found = al.get(AL, key, **options)
    return found and found.value


def live_in(memory: Alcove) -> None:
    """Something in every table."""
    al = memory.as_user("al")
    al.put(AL, "tea", {"text": "first"})
    al.put(AL, "tea", {"text": ODD}, index={"text": ODD}, wait_for_index=True, idempotency_key="once")
    al.put(AL, ODD, {"text": "an odd key"}, index={"text": "rowing boats"}, wait_for_index=True)
    al.put(AL, "soon", {"n": 1}, ttl_seconds=60)
    al.delete(AL, "soon")
    al.put(AL, "soon", {"n": 2}, ttl_seconds=60)
    al.touch(AL, "soon", ttl_seconds=3600)
    fill(memory, "bob", 700)
    fill(memory, "eve", 5)
    memory.wipe("eve")
    in_room(memory, "bob").put(ROOM, "minutes", {"text": "of Monday"})
    memory.admin.create_api_key(client="app", user="bob")
    memory.admin.create_api_key(client="edge", trusted=True)
    memory.admin.put_settings({"max_batch": 300})
    memory.memories.record_private_rooms(['{"segments":[["notes"],["","user_id",""]]}'])


def everything(path: Path) -> dict[str, list[Any]]:
    """All rows of a file, past every layer of Alcove, and how far its tables have counted."""
    names = {str(name) for (name,) in query(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")}
    names -= MADE_ANEW
    found = {name: sorted(map(repr, query(path, f"SELECT * FROM {name}"))) for name in names}
    found["marks"] = [row for row in found["marks"] if "copied_" not in row]
    found["sqlite_sequence"] = [row for row in found["sqlite_sequence"] if "pieces" not in row]
    return found


def test_every_table_and_column_of_both_schemas_is_copied(path: Path, database: str) -> None:
    opened(path).close()
    opened(database).close()
    described = {table.name: {*table.columns.split()} for table in TABLES}
    found = {
        str(name): {str(row[1]) for row in query(path, f"PRAGMA table_info({name})")}
        for (name,) in query(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")
        if not str(name).startswith("sqlite_") and name not in MADE_ANEW
    }
    assert described == found
    columns = "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
    with psycopg.connect(database) as db:
        for name, wanted in described.items():
            assert wanted <= {column for (column,) in db.execute(columns, (name,))}, name


def test_a_store_goes_to_postgresql_and_back_without_losing_a_row_or_a_number(
    path: Path, database: str
) -> None:
    with opened(path) as memory:
        live_in(memory)
        events = timeline(memory)
    db = apsw.Connection(str(path))  # what only a running indexer leaves
    db.execute("INSERT INTO to_index (seq, due, tries, error) VALUES (1, NULL, 3, 'it was too long')")
    db.execute("INSERT INTO pieces (id, seq, body) VALUES (7, 1, x'00ff')")
    db.close()
    before = everything(path)
    assert all(before.values()), [name for name, rows in before.items() if not rows]
    there = migrated(path, database)
    assert (there.missed, there.changed, there.rounds) == (0, False, 1)
    back = path.with_name("back.db")
    migrated(database, back)
    assert everything(path) == before
    assert everything(back) == before
    assert back.stat().st_mode & 0o077 == 0
    for place in (database, back):
        with opened(place) as memory:
            assert timeline(memory) == events


def test_after_it_all_works_as_before(path: Path, database: str) -> None:
    with opened(path) as memory:
        live_in(memory)
        moment = datetime.now(UTC)
        cursor = memory.as_user("al").events(AL).after_cursor
    migrated(path, database)
    with opened(database) as memory:
        assert_sound(memory)
        al = memory.as_user("al")
        assert value(al, "tea") == {"text": ODD}
        assert next(iter(al.search(AL, query="rowing boats"))).key == ODD
        al.put(AL, "tea", {"text": "new"})
        assert value(al, "tea", as_of=moment) == {"text": ODD}
        assert [event.key for event in al.events(AL, after_cursor=cursor).events] == ["tea"]
        assert memory.wipe("bob").key_destroyed
        assert not list(memory.as_user("bob").search(BOB))
        assert_sound(memory)


def test_what_came_meanwhile_is_brought_by_a_further_round(path: Path, database: str) -> None:
    """Ended versions, changed expiries and wiped people too; of those, no byte is left in the copy."""
    for source, target in ((path, database), (database, path.with_name("back.db"))):
        with opened(source) as memory:
            fill(memory, f"marker{len(str(source))}", 600)
            memory.as_user("al").put(AL, "tea", {"n": 1}, ttl_seconds=60)
            steps = migrate(source, target)
            for step in steps:
                if step.step == "verifying":
                    break
            memory.as_user("al").put(AL, "tea", {"n": 2})
            memory.as_user("al").touch(AL, "tea", ttl_seconds=3600)
            memory.wipe(f"marker{len(str(source))}", wait=False)
            *_, last = steps
            assert last.result is not None
            assert (last.result.rounds, last.result.missed, last.result.changed) == (2, 0, False)
            wanted = timeline(memory)
        if isinstance(target, Path):
            assert b"marker" not in raw_bytes(target)
        assert_sound_and_holds(target, wanted)


def test_where_writers_never_rest_it_says_how_much_is_missing(path: Path, database: str) -> None:
    with opened(path) as memory:
        fill(memory, "bob", 10)
        before, last = "", None
        for step in migrate(path, database):
            if step.step != before == "copying":
                memory.as_user("al").put(AL, "tea", {"n": 1})
            before, last = step.step, step.result
        assert last is not None
        assert (last.rounds, last.missed, last.changed) == (3, 1, True)
    assert migrated(path, database).changed is False
    with opened(path) as one, opened(database) as other:
        assert timeline(one) == timeline(other)


@pytest.mark.parametrize("back", [False, True], ids=["into PostgreSQL", "into a file"])
def test_killed_half_way_it_goes_on_where_it_was(path: Path, database: str, back: bool) -> None:
    with opened(path) as memory:
        fill(memory, "bob", 1800)
        events = timeline(memory)
    source, target = path, database
    if back:
        migrated(path, database)
        source, target = database, path.with_name("back.db")  # type: ignore[assignment]
    with started(path.with_name("said"), __name__, source, target) as child:
        child.wait_for("half")
        child.kill()
    with pytest.raises(KeyUnavailable):  # what is not whole cannot be opened
        opened(target)
    pages = list(_replaced(migrate(source, target)))
    assert 0 < len(pages) < 1800 / table_copy.PAGE
    assert_sound_and_holds(target, events)


def _replaced(steps: Iterator[Progress[Migrated]]) -> Iterator[str]:
    """The pages of versions that a copy writes."""
    from alcove.engine.postgres import connection as postgres_connection  # noqa: PLC0415
    from alcove.engine.sqlite import database as sqlite  # noqa: PLC0415

    loaded: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        for each in (postgres_connection.Connection, sqlite.Connection):

            def load(self: Any, table: str, *rest: Any, really: Any = each.insert_rows) -> None:
                loaded.append(table)
                really(self, table, *rest)

            patched.setattr(each, "insert_rows", load)
        list(steps)
    return (table for table in loaded if table == "versions")


def broken_off(steps: Iterator[Progress[Migrated]], rounds: int) -> None:
    """Ends a copy when so many rounds have been written, before the last of them was read back."""
    before, written = "", 0
    for step in steps:
        written += before == "copying" != step.step
        before = step.step
        if written == rounds:
            assert isinstance(steps, Generator)
            steps.close()
            return


def test_half_a_copy_is_not_opened_even_where_its_key_is_in_the_environment(
    path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALCOVE_KEY", base64.b64encode(bytes(range(32))).decode())
    with opened(path) as memory:
        fill(memory, "bob", 3)
        events = timeline(memory)
    broken_off(migrate(path, database), rounds=1)
    with pytest.raises(StoreError, match="incomplete copy"):
        opened(database)
    migrated(path, database)
    assert_sound_and_holds(database, events)


def test_of_whom_a_round_deleted_that_was_broken_off_the_next_leaves_no_byte(path: Path) -> None:
    target = path.with_name("copy.db")
    with opened(path) as memory:
        fill(memory, "marker", 600)
        steps = migrate(path, target)
        for step in steps:
            if step.step == "verifying":
                break
        memory.wipe("marker")
        broken_off(steps, rounds=1)
    migrated(path, target)
    assert b"marker" not in raw_bytes(target)


def test_a_target_that_holds_something_else_is_refused_and_left_as_it_was(path: Path, database: str) -> None:
    other = path.with_name("other.db")
    for place in (path, other):
        with opened(place) as memory:
            fill(memory, "bob", 3)
    before = everything(other)
    with pytest.raises(StoreError, match="key of another store"):
        migrated(path, other)
    other.with_name("other.db.key").write_bytes(path.with_name("memory.db.key").read_bytes())
    with pytest.raises(StoreError, match="holds another store"):
        migrated(path, other)
    with pytest.raises(StoreError, match="holds another store"):
        migrated(path, path)
    assert everything(other) == before
    migrated(path, database)
    with opened(database) as memory:
        fill(memory, "al", 1)
    with pytest.raises(StoreError, match="written to since"):
        migrated(path, database)
    with opened(database) as memory:
        assert value(memory.as_user("al"), "al-0") == {"n": 0}
    again = path.with_name("again.db")
    migrated(database, again)
    with pytest.raises(StoreError, match="copy of a store at another place"):
        migrated(path, again)
    with pytest.raises(StoreError, match="no store at"):
        migrated(path.with_name("nothing.db"), new_database())
    with pytest.raises(StoreError, match="no store at"):
        migrated(new_database(), path.with_name("new.db"))
    assert not path.with_name("nothing.db").exists()


def test_the_ledger_of_wipes_goes_along_and_another_one_is_never_mixed_with_it(
    path: Path, database: str
) -> None:
    with opened(path) as memory:
        fill(memory, "eve", 3)
        memory.wipe("eve")
    done = migrated(path, database)
    assert done.ledger is not None
    assert done.ledger.read_bytes() == path.with_name("memory.db.wipes").read_bytes()
    other = path.with_name("other.db.wipes")
    other.write_bytes(b'{"wiped_at":"2026-01-01T00:00:00Z","user":"somebody"}\n')
    with pytest.raises(StoreError, match="ledger of another store"):
        migrated(database, path.with_name("other.db"))
    assert not path.with_name("other.db").exists()


def test_a_backup_of_a_store_in_postgresql_is_a_file_that_is_restored_as_any_other(
    path: Path, database: str
) -> None:
    with opened(path) as memory:
        live_in(memory)
    done = migrated(path, database)
    again = path.with_name("again.db")
    assert done.key is not None
    again.with_name("again.db.key").write_bytes(done.key.read_bytes())
    with opened(database) as memory:
        *_, last = memory.backup(path.with_name("backup.db"))
        assert last.result is not None
        memory.wipe("bob")
        events = timeline(memory)
    assert last.result.versions == done.versions
    assert query(path.with_name("backup.db"), "PRAGMA journal_mode") == [("delete",)], "one file, as others"
    assert done.ledger is not None
    bring_back(path.with_name("backup.db"), again, ledger=done.ledger)
    assert_sound_and_holds(again, events)


def test_the_command_tells_what_it_did_and_where_the_key_is(path: Path, database: str) -> None:
    with opened(path) as memory:
        fill(memory, "bob", 3)
    command = Command(str(path))
    said = command.says("migrate", "--from", path, "--to", database)
    assert "3 versions" in said
    assert ".key" in said
    assert command.json("migrate", "--from", path, "--to", database)["rows"]["versions"] == 3
    assert "is a server" in command.refuses("migrate", "--from", "http://127.0.0.1:1", "--to", path)
    assert "All is well" in Command(database).says("doctor", ALCOVE_STATE=str(path.parent))


def main(source: str, target: str) -> None:
    for step in migrate(source, target):
        if step.done >= 1000:
            say("half")
            time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
