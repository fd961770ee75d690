"""What docs/langgraph.md and its example show is what happens."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.support.documentation_programs import DOCS, programs
from tests.support.service import serving
from tests.support.tokens import FLAGS, token

EXAMPLE = Path(__file__).parents[3] / "examples" / "langgraph_memory.py"


def test_every_program_of_the_page_prints_what_the_page_says(tmp_path: Path) -> None:
    found = programs("langgraph.md")
    assert len(found) == 4
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with serving(there, *FLAGS) as service:
        replaced = {"http://localhost:8080": service.url, "<your-token>": token("alice")}
        for program in found:
            assert program.run(here, replaced) == program.prints
        for key, text in (("python_tip", "Use list comprehensions."), ("drink", "Alice drinks green tea")):
            shown = service.get(["user", "alice", "notes"], key, token("alice")).json()
            assert (shown["namespace"], shown["value"]) == (["user", "alice", "notes"], {"text": text})


def test_the_line_that_the_page_says_to_change_is_the_one_that_its_programs_have() -> None:
    page = (DOCS / "langgraph.md").read_text(encoding="utf-8")
    *_, called, awaited = (program.code for program in programs("langgraph.md"))
    for lines, program in zip(
        re.findall(r"```diff\n(.*?)```", page, re.DOTALL), (called, awaited), strict=True
    ):
        added = [line[1:] for line in lines.splitlines() if line.startswith("+")]
        assert len(added) == 2
        assert added[0] in program
        assert added[1].removeprefix("store = ") in program


def test_the_example_remembers_for_each_user_and_forgets_one(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out.splitlines()
    assert "    You once said: I am allergic to peanuts" in said
    assert said.count("    Nice to meet you.") == 2
    assert said[-1].endswith("{'alice': 0, 'bob': 1}")
