"""SQLite files made to harm who imports them: each comes to an end, and is refused by name."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from alcove import Alcove
from tests.support.command import Command
from tests.support.crowd import QUIET

FOREVER = "WITH RECURSIVE forever (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM forever)"
TABLES = {
    "langgraph": ("store", "prefix, key, value, created_at, updated_at"),
    "mem0": ("history", "memory_id, new_memory, is_deleted, created_at, updated_at, actor_id, role"),
}
PROJECTS = pytest.mark.parametrize("project", TABLES)
TOO_MUCH = "it takes more work than a file of its size can need"


@pytest.fixture
def command(path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("ALCOVE_EMBEDDER", "none")
    Alcove(path, settings=QUIET, embedder=None).close()
    return Command(str(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hostile.db"


@contextmanager
def edited(file: Path) -> Iterator[sqlite3.Connection]:
    with sqlite3.connect(file, isolation_level=None) as db:
        yield db
    db.close()


def view(project: str) -> str:
    """A view with the name and the columns of a project's table, whose rows never end."""
    table, columns = TABLES[project]
    values = ", ".join(f"n AS {column}" for column in columns.split(", "))
    return f"CREATE VIEW {table} AS {FOREVER} SELECT {values} FROM forever"


def refusal(command: Command, project: str, file: Path) -> str:
    said = command.refuses("import", "--from", project, file, "--user", "noop")
    assert said.startswith("alcove: hostile.db: expected "), said
    return said


@PROJECTS
def test_a_view_in_the_place_of_a_table_is_refused(command: Command, project: str, file: Path) -> None:
    with edited(file) as db:
        db.execute(view(project))
    assert f"{TABLES[project][0]} is a table, not a view" in refusal(command, project, file)


@PROJECTS
def test_a_view_that_calls_itself_a_table_is_refused(command: Command, project: str, file: Path) -> None:
    with edited(file) as db:
        db.execute(view(project))
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_schema SET type = 'table'")
    refusal(command, project, file)


@pytest.mark.parametrize("name", ["checkpoints", "store_vectors"])
def test_a_view_beside_the_table_is_refused(command: Command, name: str, file: Path) -> None:
    with edited(file) as db:
        db.execute(f"CREATE TABLE store ({TABLES['langgraph'][1]})")
        db.execute("INSERT INTO store VALUES ('a', 'k', '{}', NULL, NULL)")
        db.execute(
            f"CREATE VIEW {name} AS {FOREVER} SELECT 'a' prefix, 'k' \"key\", 'f' field_name FROM forever"
        )
    assert f"{name} is a table, not a view" in refusal(command, "langgraph", file)


@PROJECTS
def test_a_virtual_table_is_refused(command: Command, project: str, file: Path) -> None:
    table, columns = TABLES[project]
    with edited(file) as db:
        db.execute(f"CREATE VIRTUAL TABLE {table} USING fts5({columns})")
    assert f"{table} is a table, not a virtual" in refusal(command, project, file)


@PROJECTS
@pytest.mark.parametrize("kind", ["VIRTUAL", "STORED"])
def test_a_column_that_an_expression_computes_is_refused(
    command: Command, project: str, kind: str, file: Path
) -> None:
    table, columns = TABLES[project]
    first, *rest = columns.split(", ")
    with edited(file) as db:
        db.execute(f"CREATE TABLE {table} ({', '.join(rest)}, {first} AS (hex(zeroblob(400000000))) {kind})")
    assert f"column {first} holds its own values" in refusal(command, project, file)


def test_rows_that_are_each_compared_with_all_others_are_given_up(command: Command, file: Path) -> None:
    """LangGraph's own tables have a key, by which the others are found."""
    with edited(file) as db:
        db.execute("BEGIN")
        db.execute(f"CREATE TABLE store ({TABLES['langgraph'][1]})")
        db.execute("CREATE TABLE store_vectors (prefix, key, field_name)")
        for _ in range(4000):
            db.execute("INSERT INTO store VALUES ('a', 'k', '{}', NULL, NULL)")
            db.execute("INSERT INTO store_vectors VALUES ('a', 'k', '')")
        db.execute("COMMIT")
    done = command.json("import", "--from", "langgraph", file, "--no-wait", code=1)
    assert [each["error"] for each in done["failed"]] == [f"cannot be read any further: {TOO_MUCH}"]


@PROJECTS
def test_pages_that_refer_to_the_same_page_again_and_again_are_given_up(
    command: Command, project: str, file: Path
) -> None:
    table, columns = TABLES[project]
    with edited(file) as db:
        db.execute("PRAGMA page_size = 512")
        db.execute("BEGIN")
        db.execute(f"CREATE TABLE {table} ({columns})")
        places = ", ".join("?" * len(columns.split(", ")))
        for n in range(20_000):
            db.execute(f"INSERT INTO {table} VALUES ({places})", (f"{n:05}", *["x"] * columns.count(",")))
        db.execute("COMMIT")
        root = db.execute("SELECT rootpage FROM sqlite_schema").fetchone()[0]
    file.write_bytes(multiplied(bytearray(file.read_bytes()), root))
    done = command.json("import", "--from", project, file, "--no-wait", "--user", "noop", code=1)
    assert done["failed"][-1]["error"] == f"cannot be read any further: {TOO_MUCH}"


def multiplied(content: bytearray, root: int) -> bytearray:
    """A file in which each inner page of a table refers to the next one only, as often as it can."""
    page, interior, leaf = 512, 5, 13
    starts = range(page, len(content), page)
    inner = [start for start in starts if content[start] == interior and start != (root - 1) * page][:12]
    last = next(start for start in starts if content[start] == leaf)
    for start, below in zip([(root - 1) * page, *inner], [*inner, last], strict=True):
        number = (below // page + 1).to_bytes(4, "big")
        cells = int.from_bytes(content[start + 3 : start + 5], "big")
        content[start + 8 : start + 12] = number
        for cell in range(cells):
            place = start + 12 + 2 * cell
            pointed = start + int.from_bytes(content[place : place + 2], "big")
            content[pointed : pointed + 4] = number
    return content


@pytest.mark.parametrize("project", ["mem0", "letta", "zep"])
def test_a_number_of_thousands_of_digits_is_refused(command: Command, project: str, tmp_path: Path) -> None:
    (file := tmp_path / "hostile.db").write_text('{"results": [{"id": ' + "7" * 5000 + "}]}")
    assert "digits" in refusal(command, project, file)


def test_a_path_with_a_number_that_is_none_is_told_of(command: Command, file: Path) -> None:
    with edited(file) as db:
        db.execute(
            "CREATE TABLE store (prefix, key, value, created_at, updated_at, PRIMARY KEY (prefix, key))"
        )
        db.execute(
            "CREATE TABLE store_vectors (prefix, key, field_name, PRIMARY KEY (prefix, key, field_name))"
        )
        db.execute("""INSERT INTO store VALUES ('user.noop', 'k', '{"tags": ["x"]}', NULL, NULL)""")
        for path in ("tags[*]." + "7" * 5000, "tags[*].²", f"tags[{'7' * 5000}]", "tags[--1]"):
            db.execute("INSERT INTO store_vectors VALUES ('user.noop', 'k', ?)", (path,))
    done = command.json("import", "--from", "langgraph", file, "--no-wait")
    assert (done["imported"], done["failures"], done["not_mapped"][0]["count"]) == (1, 0, 4)
