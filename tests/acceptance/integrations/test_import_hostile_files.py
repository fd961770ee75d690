"""Files made to harm who imports them: each comes to an end, and costs no more than its size warrants."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from alcove import Alcove
from alcove.importers import Target, langgraph, letta
from alcove.importers.job import ImportJob
from tests.support.command import Command
from tests.support.concurrent_workers import QUIET

FOREVER = "WITH RECURSIVE forever (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM forever)"
TABLES = {
    "langgraph": ("store", "prefix, key, value, created_at, updated_at"),
    "mem0": ("history", "memory_id, new_memory, is_deleted, created_at, updated_at, actor_id, role"),
}
PROJECTS = pytest.mark.parametrize("project", TABLES)
TARGET = Target(caller="noop", now=datetime(2026, 1, 1, tzinfo=UTC), user="noop")
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
    assert f"column {first} is not a generated one" in refusal(command, project, file)


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


def indexed_item(file: Path, value: object, paths: Sequence[object]) -> Path:
    """A store of LangGraph with one item, which was found there by these paths."""
    with edited(file) as db:
        db.execute("CREATE TABLE store (prefix, key, value, created_at, updated_at)")
        db.execute("CREATE TABLE store_vectors (prefix, key, field_name)")
        db.execute("INSERT INTO store VALUES ('user.noop', 'k', ?, NULL, NULL)", (json.dumps(value),))
        db.execute("BEGIN")
        db.executemany("INSERT INTO store_vectors VALUES ('user.noop', 'k', ?)", [(each,) for each in paths])
        db.execute("COMMIT")
    return file


def test_paths_that_lead_to_the_same_node_spell_it_once_and_only_so_many_are_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ["a" + "." * (n % 20) + "]" * (n // 20) for n in range(2000)]
    indexed_item(file, {"a": ["tea"] * 1000, "b": "milk"}, paths)
    spelled, dumps = list[object](), json.dumps

    def counting(node: object, **options: Any) -> str:
        spelled.append(node)
        return dumps(node, **options)

    monkeypatch.setattr(json, "dumps", counting)
    (line,) = langgraph.read(str(file), job := ImportJob(TARGET))
    assert len(spelled) == 1
    assert len(json.loads(line)["index"]) == 64
    (left,) = job.skipped()
    assert (left.kind, left.count, job.failures) == ("index field", 2000 - 64, 0)
    assert "64" in left.reason


def test_paths_that_lead_nowhere_are_no_more_than_64(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed_item(file, {"a": ["tea"] * 1000}, [f"a[*].{n}" for n in range(1000, 3000)])
    read, nodes_at = list[str](), langgraph.nodes_at

    def counting(value: object, path: str) -> list[Any]:
        read.append(path)
        return nodes_at(value, path)

    monkeypatch.setattr(langgraph, "nodes_at", counting)
    (line,) = langgraph.read(str(file), job := ImportJob(TARGET))
    assert len(read) == 64
    assert json.loads(line)["index"] is None
    assert sum(each.count for each in job.skipped()) == 2000


def test_the_fields_of_a_value_that_no_memory_can_have_are_not_spelled(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed_item(file, {"a": ["x" * 1000] * 1100}, ["$", "a"])
    monkeypatch.setattr(langgraph, "_to_text", lambda node: pytest.fail("it became text"))
    (line,) = langgraph.read(str(file), job := ImportJob(TARGET))
    assert json.loads(line)["index"] is None
    assert [(each.kind, each.count) for each in job.skipped()] == [("index field", 2)]


def test_a_path_that_is_no_text_is_told_of(file: Path) -> None:
    indexed_item(file, {"a": "tea"}, ["a", None, 7])
    (line,) = langgraph.read(str(file), job := ImportJob(TARGET))
    assert json.loads(line)["index"] == {"a": "tea"}
    assert [each.count for each in job.skipped()] == [2]


FASTER, NOTICED = 2.2, 0.03
"""As for requests (tests/acceptance/limits/test_cost.py)."""


def blocks_of_one_agent(count: int) -> dict[str, Any]:
    return {"core_memory": [{"value": "a", "label": str(n)} for n in range(count)]}


def agents_and_blocks(count: int) -> dict[str, Any]:
    """As many block ids as `count`, in agents that have none of the blocks."""
    each = math.isqrt(count)
    agents = [{"name": "a", "block_ids": [f"other-{n}" for n in range(each)]}] * each
    return {"agents": agents, "blocks": [{"id": "b", "value": "v", "label": str(n)} for n in range(each)]}


@pytest.mark.parametrize(("document", "step"), [(blocks_of_one_agent, 4), (agents_and_blocks, 16)])
def test_an_agent_file_of_letta_costs_no_more_than_its_size(
    document: Callable[[int], dict[str, Any]], step: int, tmp_path: Path
) -> None:
    def cost(count: int) -> float:
        (file := tmp_path / "letta.af").write_text(json.dumps(document(count)))
        started = time.process_time()
        assert [*letta.read(str(file), ImportJob(TARGET))]
        return time.process_time() - started

    def grows_too_fast() -> bool:
        less, more = cost(16_384), cost(step * 16_384)
        return more > NOTICED and more > step * FASTER * max(less, NOTICED / step)

    assert not all(grows_too_fast() for _ in range(3))


def test_an_agent_with_a_block_id_that_is_no_text_is_named(tmp_path: Path) -> None:
    document = agents_and_blocks(4)
    document["agents"][0] = {"name": "a", "block_ids": [["b"]]}
    (file := tmp_path / "letta.af").write_text(json.dumps(document))
    assert len([*letta.read(str(file), job := ImportJob(TARGET))]) == 2
    assert [each.record for each in job.broken] == ["agents[0]"]
    assert "block_ids: expected a list of texts" in job.broken[0].error
