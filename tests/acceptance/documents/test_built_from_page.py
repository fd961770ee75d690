"""docs/built-from.md: every program prints what the page says. `ALCOVE_RECORD=1` writes the outputs anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.documentation_programs import DOCS, Program, programs
from tests.support.llm_server import llm_server, text
from tests.support.service import alcove, serving

PAGE = DOCS / "built-from.md"
GATEWAY, ADVENTURE, SERVICE, TIERS, LAYERS = range(5)
SECRET = "a secret of at least thirty-two bytes"
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def test_the_page_tells_a_story_for_each_of_the_five_documents() -> None:
    assert len(programs("built-from.md")) == 5
    assert len(re.findall(r"^## \d\. ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)) == 5


@pytest.mark.parametrize("number", [ADVENTURE, TIERS, LAYERS])
def test_a_story_of_the_library_prints_what_the_page_says(number: int, tmp_path: Path) -> None:
    program = programs("built-from.md")[number]
    _check(program, program.run(tmp_path))


def test_the_story_of_the_gateway_prints_what_the_page_says(tmp_path: Path) -> None:
    program = programs("built-from.md")[GATEWAY]
    with llm_server(tmp_path) as llm:
        llm.play(text("Noted.", always=True))
        _check(program, program.run(tmp_path, {"http://127.0.0.1:11434/v1": llm.url}))


def test_the_story_of_the_memory_service_prints_what_the_page_says(tmp_path: Path) -> None:
    program = programs("built-from.md")[SERVICE]
    token = alcove("token", "--user", "alice", "--jwt-secret", SECRET).stdout.strip()
    with serving(tmp_path, "--auth", "jwt", "--jwt-secret", SECRET) as service:
        replaced = {"http://127.0.0.1:8080": service.url, "<your-token>": token}
        _check(program, program.run(tmp_path, replaced))


def _check(program: Program, printed: str) -> None:
    assert program.prints is not None
    if os.environ.get("ALCOVE_RECORD"):
        shown = f"{program.code}```\n\n```\n"
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page.replace(shown + program.prints, shown + printed), encoding="utf-8")
        return
    assert DATE.sub("DATE", printed) == DATE.sub("DATE", program.prints)
