"""Coming from LangGraph: items of its two stores, which its own packages wrote."""

from __future__ import annotations

import json
import sqlite3
import time
import tracemalloc
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.store.base import BaseStore, Item, get_text_at_path
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore

from alcove import Alcove
from alcove.importers import langgraph
from alcove.importers.job import ImportJob, Target
from alcove.integrations.langgraph import AlcoveStore
from tests.support.command import Command
from tests.support.concurrent_workers import QUIET
from tests.support.langgraph_stores import OWN
from tests.support.postgres import new_database

DEEP = tuple(f"level-{n}" for n in range(10))
NOTE = {"text": "Grüße ☕", "n": 1.5, "deep": {"list": ["one", {"two": "zwei"}]}, "nothing": None}
ROWS, SIZE = 6000, 4000


@pytest.fixture(autouse=True)
def without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is brought does not depend on it, and words find it, too."""
    monkeypatch.setenv("ALCOVE_EMBEDDER", "none")


def fill(store: BaseStore) -> None:
    store.put(("users", "änne", "notes"), "greeting", NOTE)
    store.put(DEEP, "bottom", {"text": "far down"})
    store.put(("users", "bo"), "soon", {"text": "soon gone"}, ttl=60)
    store.put(("users", "bo"), "gone", {"text": "gone"}, ttl=1e-5)


@pytest.fixture(scope="module")
def server() -> str:
    return new_database()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where LangGraph's items are: the path of a file, or the address of a server."""
    if request.param == "postgres":
        where: str = request.getfixturevalue("server")
        with PostgresStore.from_conn_string(where) as store:
            store.setup()
            fill(store)
        return where
    where = str(tmp_path_factory.mktemp("langgraph") / "store.db")
    with SqliteStore.from_conn_string(where) as lite:
        lite.setup()
        fill(lite)
    return where


def brought(command: Command, user: str) -> dict[str, Any]:
    with Alcove(command.path, settings=QUIET, embedder=None) as store:
        found = store.as_user(user).search(("user", user, "langgraph"))
        return {each.key: each for each in found}


def test_items_come_with_their_namespaces_times_and_what_is_left_of_their_life(
    command: Command, source: str
) -> None:
    user = uuid.uuid4().hex
    told = command.says("import", "--from", "langgraph", source, "--user", user)
    assert told == "3 memories imported, 0 unchanged\nnot imported: 1 item (already expired there)\n"
    found = brought(command, user)
    greeting, bottom, soon = (found[key] for key in ("greeting", "bottom", "soon"))
    assert greeting.namespace == ("user", user, "langgraph", "users", "änne", "notes")
    assert bottom.namespace == ("user", user, "langgraph", *DEEP)
    assert greeting.value == NOTE
    assert greeting.index == {}  # it was not found by meaning there
    assert (greeting.expires_at, greeting.ttl_seconds, soon.ttl_seconds) == (None, None, 3600)
    left = soon.expires_at - datetime.now(UTC)
    assert timedelta(minutes=50) < left < timedelta(minutes=60)
    assert timedelta(0) <= soon.expires_at - soon.created_at - timedelta(hours=1) < timedelta(seconds=2)
    assert greeting.added_at == greeting.created_at
    again = command.json("import", "--from", "langgraph", source, "--user", user)
    assert (again["imported"], again["unchanged"]) == (0, 3)


def told(item: Item | None) -> tuple[object, ...]:
    """An item as a graph sees it; SqliteStore leaves the zone of its times out, which is UTC."""
    assert item is not None
    times = item.created_at, item.updated_at
    zoned = (each.astimezone(UTC) if each.tzinfo else each.replace(tzinfo=UTC) for each in times)
    return (*item.namespace, item.key, item.value, *zoned)


def test_a_graph_finds_its_items_in_our_store(source: str, tmp_path: Path) -> None:
    command = Command(str(tmp_path / "memory.db"))
    command.run("import", "--from", "langgraph", source, "--root", "user:noop:langgraph", "--no-wait")
    theirs = PostgresStore if source.startswith("postgresql") else SqliteStore
    places = [(("users", "änne", "notes"), "greeting"), (DEEP, "bottom"), (("users", "bo"), "soon")]
    with theirs.from_conn_string(source) as there, AlcoveStore(command.at, embedder=None, root=OWN) as here:
        for place in places:
            assert told(here.get(*place)) == told(there.get(*place, refresh_ttl=False))
        assert sorted(here.list_namespaces()) == sorted(there.list_namespaces())


def test_with_by_user_each_has_a_room_of_their_own(source: str, tmp_path: Path) -> None:
    command = Command(str(tmp_path / "memory.db"))
    command.run("import", "--from", "langgraph", source, "--by-user", "--no-wait")
    with AlcoveStore(command.at, by_user=True, embedder=None) as here:
        assert (found := here.get(("users", "änne", "notes"), "greeting"))
        assert found.value == NOTE
    assert {*brought(command, "users")} == {"greeting", "soon"}


INDEXED = {
    "$": '{"deep": {"list": ["one", {"two": "zwei"}]}, "n": 1.5, "nothing": null, "text": "Grüße ☕"}',
    "text": "Grüße ☕", "n": "1.5", "deep.list[0]": "one", "deep.list[1].two": "zwei",
    "deep.list[*].0": "one", "deep.list[*].1": '{"two": "zwei"}', "deep.list[-1].two": "zwei",
}  # fmt: skip


def test_an_item_is_found_by_the_fields_that_it_was_found_by_there(command: Command, tmp_path: Path) -> None:
    """LangGraph writes these rows where SQLite can load its extension for vectors, which some cannot."""
    user, file = uuid.uuid4().hex, tmp_path / "store.db"
    with SqliteStore.from_conn_string(str(file)) as store:
        store.setup()
        store.put(("a",), "k", NOTE)
        store.conn.execute("CREATE TABLE store_vectors (prefix, key, field_name, embedding)")
        store.conn.executemany(
            "INSERT INTO store_vectors VALUES ('a', 'k', ?, NULL)", [(each,) for each in (*INDEXED, "{a,b}")]
        )
    told = command.json("import", "--from", "langgraph", file, "--user", user)
    assert [(each["kind"], each["count"]) for each in told["not_mapped"]] == [("index field", 1)]
    assert brought(command, user)["k"].index == INDEXED
    for path, text in INDEXED.items():
        number = int(path[-1]) if "*" in path else 0
        assert get_text_at_path(NOTE, path[:-2] if "*" in path else path)[number] == text


def test_an_item_goes_to_its_namespace_if_somebody_owns_it(tmp_path: Path) -> None:
    command, file = Command(str(tmp_path / "memory.db")), tmp_path / "store.db"
    owned = [("user", "cy", "notes"), ("agent", "x", "u", "cy")]
    with SqliteStore.from_conn_string(str(file)) as store:
        store.setup()
        for namespace in (*owned, ("memories",), ("users", "cy")):
            store.put(namespace, "k", {"text": "tea"})
    told = command.json("import", "--from", "langgraph", file, "--no-wait")
    assert told["imported"] == 2
    (left,) = told["not_mapped"]
    assert (left["kind"], left["count"]) == ("item", 2)
    assert "--root user:NAME:langgraph" in left["reason"]
    with AlcoveStore(command.at, user="cy", embedder=None) as here:
        for namespace in owned:
            assert here.get(namespace, "k")
    told = command.json("import", "--from", "langgraph", file, "--root", "user:cy:langgraph", "--no-wait")
    assert (told["imported"], told["not_mapped"]) == (4, [])
    with AlcoveStore(command.at, user="cy", embedder=None, root="user:cy:langgraph") as here:
        assert here.list_namespaces(prefix=("memories",)) == [("memories",)]


def test_with_an_empty_root_every_item_goes_to_its_namespace(tmp_path: Path) -> None:
    """For a policy of your own that opens them."""
    command, file = Command(str(tmp_path / "memory.db")), tmp_path / "store.db"
    with SqliteStore.from_conn_string(str(file)) as store:
        store.setup()
        store.put(("shared", "faqs"), "k", {"text": "tea"})
    assert command.json("import", "--from", "langgraph", file, "--root", "", "--no-wait")["imported"] == 1
    with Alcove(command.path, settings=QUIET, embedder=None) as memory:
        assert memory.namespaces() == [("shared", "faqs")]


def test_what_was_changed_there_is_brought_again_and_nothing_else(command: Command, tmp_path: Path) -> None:
    user, file = uuid.uuid4().hex, tmp_path / "store.db"
    for value in ("first", "second"):
        with SqliteStore.from_conn_string(str(file)) as store:
            store.setup()
            store.put(("a",), "k", {"text": value})
            store.put(("a",), "same", {"text": "as it was"})
        done = command.json("import", "--from", "langgraph", file, "--user", user)
    assert (done["imported"], done["unchanged"]) == (1, 1)
    assert brought(command, user)["k"].value == {"text": "second"}


def test_a_table_that_is_not_to_be_read_is_told_of(path: Path) -> None:
    command, closed = Command(str(path)), new_database()
    with PostgresStore.from_conn_string(closed) as store:
        store.conn.execute("CREATE ROLE guest LOGIN")  # type: ignore[union-attr]
    nothing = command.refuses("import", "--from", "langgraph", closed)
    assert nothing.endswith("alcove: the database: expected a database with the table store of LangGraph\n")
    with PostgresStore.from_conn_string(closed) as store:
        store.setup()
    told = command.json("import", "--from", "langgraph", closed.replace("//postgres:", "//guest:"), code=1)
    assert "permission denied for table store" in told["failed"][0]["error"]


def test_a_row_that_is_no_item_is_named_and_threads_are_told_of(command: Command, tmp_path: Path) -> None:
    user, file = uuid.uuid4().hex, tmp_path / "store.db"
    with SqliteStore.from_conn_string(str(file)) as store:
        store.setup()
        store.put(("a",), "good", {"n": 1})
    with sqlite3.connect(file) as damage:
        damage.execute("INSERT INTO store (prefix, key, value) VALUES ('a', 'cut', '{\"text\": ')")
        damage.execute("INSERT INTO store (prefix, key, value) VALUES ('a', 'list', '[1]')")
        damage.execute("INSERT INTO store (prefix, key, value) VALUES ('a..b', 'odd', '{}')")
        damage.execute("CREATE TABLE checkpoints (thread_id TEXT)")
        damage.execute("INSERT INTO checkpoints VALUES ('t'), ('t')")
    damage.close()
    done = command.run("import", "--from", "langgraph", file, "--user", user, code=1)
    assert done.stdout.splitlines() == [
        "1 memory imported, 0 unchanged",
        "item cut of a: value: expected JSON",
        "item list of a: record: expected an object, not a list",
        f"user:{user}:langgraph:a::b odd: namespace[4]: expected a non-empty plain string",
        "not imported: 2 checkpoints (an import takes stores only; threads of graphs start again)",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("DateStyle", "German, DMY"), ("client_encoding", "LATIN1"), ("TimeZone", "Asia/Kathmandu"),
     ("idle_in_transaction_session_timeout", "300ms"), ("transaction_timeout", "300ms"),
     ("default_transaction_isolation", "serializable")],
)  # fmt: skip
def test_what_an_operator_set_as_defaults_of_the_database_changes_nothing(name: str, value: str) -> None:
    with PostgresStore.from_conn_string(where := new_database()) as store:
        store.setup()
        store.put(("a",), "first", NOTE)
    with psycopg.connect(where, autocommit=True) as db:
        db.execute(
            "INSERT INTO store (prefix, key, value) SELECT 'b', CAST(n AS TEXT), '{}' "
            "FROM generate_series(1, 999) n"
        )
        if not db.execute("SELECT 1 FROM pg_settings WHERE name = %s", (name,)).fetchall():
            pytest.skip(f"this server has no {name}")
    target = Target(caller="noop", now=datetime.now(UTC), user="noop")
    expected = [*langgraph.read(where, ImportJob(target))]
    with psycopg.connect(where, autocommit=True) as db:
        ((database,),) = db.execute("SELECT quote_ident(current_database())")
        db.execute(f"ALTER DATABASE {database} SET {name} = '{value}'")
    lines = langgraph.read(where, job := ImportJob(target))
    first = next(lines)
    time.sleep(0.6)  # longer than the server would wait
    assert [first, *lines] == expected
    assert (len(expected), job.broken) == (1000, [])


def many_in_a_file(where: str) -> None:
    with SqliteStore.from_conn_string(where) as store:
        store.setup()
        value = json.dumps({"text": "x" * SIZE})
        row = "INSERT INTO store (prefix, key, value) VALUES ('many', ?, ?)"
        store.conn.execute("BEGIN")
        store.conn.executemany(row, ((f"{n:06}", value) for n in range(ROWS)))
        store.conn.execute("COMMIT")


def many_on_a_server(where: str) -> None:
    with PostgresStore.from_conn_string(where) as store:
        store.setup()
        store.conn.execute(  # type: ignore[union-attr]
            "INSERT INTO store (prefix, key, value) SELECT 'many', to_char(n, 'FM000000'), "
            "jsonb_build_object('text', repeat('x', %s)) FROM generate_series(1, %s) n",
            (SIZE, ROWS),
        )


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_many_rows_take_no_more_memory_than_few(kind: str, tmp_path: Path) -> None:
    if kind == "postgres":
        many_on_a_server(where := new_database())
    else:
        many_in_a_file(where := str(tmp_path / "store.db"))
    target = Target(caller="noop", now=datetime.now(UTC), user="noop")
    lines = langgraph.read(where, job := ImportJob(target))
    next(lines)
    tracemalloc.start()
    read = 1 + sum(1 for _ in lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (read, job.failures) == (ROWS, 0)
    assert peak < ROWS * SIZE // 3  # what all of them would take is three times as much, at least
