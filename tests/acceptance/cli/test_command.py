"""The command line, as a person uses it."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from alcove import Alcove
from alcove.cli import main
from tests.support.store_inspection import query


def write(path: Path) -> None:
    with Alcove(path) as memory:
        for n in range(3):
            memory.as_user("alice").put("user:alice", "k", {"n": n})


def test_doctor_says_what_it_checked_and_that_all_is_well(path: Path) -> None:
    write(path)
    done = CliRunner().invoke(main, ["doctor", "--at", str(path)])
    assert done.exit_code == 0
    assert "every value opens under its key" in done.stdout
    assert done.stdout.endswith("All is well.\n")


def test_doctor_finds_what_is_wrong(path: Path) -> None:
    write(path)
    query(path, "UPDATE versions SET sealed = zeroblob(40) WHERE seq = 3")
    query(path, "UPDATE versions SET ended_at = ended_at + 1 WHERE seq = 1")
    done = CliRunner().invoke(main, ["doctor", "--at", str(path)])
    assert done.exit_code == 1
    assert done.stdout.count("WRONG") == 2
    assert "at 3: this value was altered" in done.stdout


def test_doctor_on_something_else_says_so_and_makes_no_store(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to have a header of one" * 10)
    done = CliRunner().invoke(main, ["doctor", "--at", str(tmp_path / "notes.txt")])
    assert done.exit_code == 2
    assert "not a database" in done.stderr
    done = CliRunner().invoke(main, ["doctor", "--at", str(tmp_path / "absent.db")])
    assert done.exit_code == 2
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
