"""What docs/langgraph.md and its example show is what happens."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.support.pages import programs
from tests.support.service import serving

EXAMPLE = Path(__file__).parents[3] / "examples" / "langgraph_memory.py"


def test_every_program_of_the_page_prints_what_the_page_says(tmp_path: Path) -> None:
    found = programs("langgraph.md")
    assert len(found) == 3
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with serving(there) as service:
        for program in found:
            assert program.run(here, {"http://127.0.0.1:8080": service.url}) == program.prints


def test_the_example_remembers_for_each_user_and_forgets_one(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out.splitlines()
    assert "    You once said: I am allergic to peanuts" in said
    assert said.count("    Nice to meet you.") == 2
    assert said[-1].endswith("{'alice': 0, 'bob': 1}")
