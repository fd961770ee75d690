"""What is no export of the project that was named is refused with the file and what was expected."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from alcove import Alcove
from tests.support.command import Command
from tests.support.concurrent_workers import QUIET
from tests.support.other_projects import FILES, written

PROJECTS = ("mem0", "langgraph", "letta", "zep")


@pytest.fixture
def command(path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("ALCOVE_EMBEDDER", "none")  # nothing here is looked for by meaning
    Alcove(path, settings=QUIET, embedder=None).close()
    return Command(str(path))


@pytest.mark.parametrize("project", PROJECTS)
@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\xfe", b'{"results": [{"id": "1', b'"text"', b"[" * 100_000]
)
def test_a_file_that_is_something_else_is_refused(
    command: Command, project: str, content: bytes, tmp_path: Path
) -> None:
    (file := tmp_path / "given.json").write_bytes(content)
    said = command.refuses("import", "--from", project, file)
    assert said.startswith("alcove: given.json: expected ")
    assert len(said) < 400


@pytest.mark.parametrize("project", PROJECTS)
def test_a_database_of_somebody_else_is_refused(command: Command, project: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE history (year INTEGER)")
    other.close()
    assert "other.db: expected " in command.refuses("import", "--from", project, tmp_path / "other.db")


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """A database with the tables of mem0 and of LangGraph, of many pages each."""
    with sqlite3.connect(tmp_path / "both.db") as both:
        both.execute(
            "CREATE TABLE store (prefix, key, value, created_at, updated_at, PRIMARY KEY (prefix, key))"
        )
        both.execute("CREATE TABLE history (memory_id PRIMARY KEY, new_memory, is_deleted, created_at, "
                     "updated_at, actor_id, role)")  # fmt: skip
        for n in range(1000):
            both.execute("INSERT INTO store VALUES ('a', ?, '{}', NULL, NULL)", (f"{n:05}",))
            both.execute("INSERT INTO history VALUES (?, 'text', 0, NULL, NULL, NULL, NULL)", (f"{n:05}",))
    both.close()
    return tmp_path / "both.db"


@pytest.mark.parametrize("project", ["mem0", "langgraph"])
def test_half_a_database_is_refused(command: Command, project: str, both: Path) -> None:
    both.write_bytes(both.read_bytes()[: both.stat().st_size // 2])
    assert "both.db: expected " in command.refuses("import", "--from", project, both)


@pytest.mark.parametrize("project", ["mem0", "langgraph"])
def test_of_a_damaged_database_what_can_be_read_is_brought(
    command: Command, project: str, both: Path
) -> None:
    size = both.stat().st_size // 2
    both.write_bytes(both.read_bytes()[:size] + b"\xff" * size)
    done = command.json("import", "--from", project, both, "--no-wait", "--user", "noop", code=1)
    assert 0 < done["imported"] < 1000
    assert "cannot be read any further" in done["failed"][0]["error"]


@pytest.mark.parametrize(
    ("project", "other"),
    [("mem0", "zep.json"), ("mem0", "letta.af"), ("letta", "zep.json"), ("zep", "letta.af")],
)
def test_an_export_of_another_project_is_refused(command: Command, project: str, other: str) -> None:
    assert f"{other}: expected " in command.refuses("import", "--from", project, FILES / other)


def test_options_that_mean_nothing_are_refused(command: Command, tmp_path: Path) -> None:
    file = written(tmp_path / "lines", {})
    assert "--by-user is for" in command.refuses("import", "--from", "zep", file, "--by-user")
    assert "--root is for" in command.refuses("import", "--from", "zep", file, "--root", "user:a")
    both = ("--root", "user:a", "--user", "a")
    assert "--root is for" in command.refuses("import", "--from", "langgraph", file, *both)
    assert "--root[1]: expected" in command.refuses(
        "import", "--from", "langgraph", file, "--root", "user::a"
    )
    assert "--user and --agent are for" in command.refuses("import", file, "--user", "a")
    assert "reads a file" in command.refuses("import", "--from", "mem0", "-")
    assert "reads a file" in command.refuses("import", "--from", "mem0", "postgresql://nowhere/db")
    assert "does not exist" in command.refuses("import", "--from", "mem0", tmp_path / "nothing")
    assert "'--from'" in command.refuses("import", "--from", "excel", file)


def test_a_server_that_is_not_there_is_one_line_without_the_password(command: Command) -> None:
    said = command.refuses("import", "--from", "langgraph", "postgresql://u:secret@127.0.0.1:1/db", code=3)
    assert said.startswith("alcove: the database cannot be reached: ")
    assert said.count("\n") == 1
    assert "secret" not in said


def test_an_address_that_is_none_is_not_repeated(command: Command) -> None:
    for address in ("postgresql://u:secret@[::1", "postgres://u:secret@host/db?oops"):
        said = command.refuses("import", "--from", "langgraph", address)
        assert said == "alcove: FILE: expected an address such as postgresql://host/name\n"


def test_a_missing_driver_is_one_line_that_says_what_to_install(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    said = command.refuses("import", "--from", "langgraph", "postgresql://127.0.0.1/db")
    assert (
        said
        == "alcove: reading a PostgresStore needs psycopg: pip install '.[postgres]' in a clone of Alcove\n"
    )


@pytest.mark.parametrize("agent", ["u", "user"])
def test_a_conversation_never_gets_another_owner(command: Command, agent: str) -> None:
    """`turns:u:u:ann` would be a room of a user called u."""
    told = command.json(
        "import", "--from", "letta", FILES / "letta.af", "--user", "ann", "--agent", agent, code=1
    )
    assert "has a meaning in namespaces" in told["failed"][0]["error"]
    with Alcove(command.path, settings=QUIET, embedder=None) as store:
        assert {each[0] for each in store.namespaces()} == {"user"}
