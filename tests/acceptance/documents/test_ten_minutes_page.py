"""What docs/ten-minutes.md shows is what happens, from the first line to the last command."""

from __future__ import annotations

import re
import runpy
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.documentation_programs import DOCS, programs
from tests.support.service import COMMAND, environment


def test_the_page_can_be_followed_from_top_to_bottom(tmp_path: Path) -> None:
    today = str(datetime.now(UTC).date())
    found = programs("ten-minutes.md")
    assert len(found) == 2
    for program in found:
        assert program.run(tmp_path) == (program.prints or "").replace("TODAY", today)
    text = (DOCS / "ten-minutes.md").read_text(encoding="utf-8")
    commands = re.findall(r"^alcove (.*?)\s+#", text, re.MULTILINE)
    said = [
        subprocess.run(
            [*COMMAND, *line.split()],
            cwd=tmp_path,
            env=environment(COLUMNS="200"),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for line in commands
    ]
    held, reviewed, wiped = said
    assert "turns:helper:u:alice:monday" in held
    assert "allergic to peanuts" in reviewed
    assert "alice" in wiped
    assert not any(b"peanuts" in file.read_bytes() for file in tmp_path.glob("memory.db*"))


def test_the_example_remembers_for_who_said_it_and_for_nobody_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(DOCS.parent / "examples" / "any_app.py"), run_name="__main__")
    answers = [line.split("  (")[0].strip() for line in capsys.readouterr().out.splitlines()[1::2]]
    assert answers == ["Noted.", "Rice with vegetables, no nuts.", "Noted."]
