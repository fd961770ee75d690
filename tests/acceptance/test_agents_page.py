"""What docs/agents.md shows is what happens; `ALCOVE_RECORD=1` writes its output anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from alcove.agents.loading import load
from tests.acceptance.service import environment

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
EXAMPLE = re.compile(r"(```python\n(.*?)```\n\n```\n)(.*?)(```)", re.DOTALL)


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = EXAMPLE.search(page)
    assert found
    done = subprocess.run(
        [sys.executable, "-c", found[2]], cwd=tmp_path, env=environment(), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    if os.environ.get("ALCOVE_RECORD"):
        PAGE.write_text(page.replace(found[0], found[1] + done.stdout + found[4]), encoding="utf-8")
        return
    assert done.stdout == found[3]


def test_every_spec_on_the_page_loads(tmp_path: Path) -> None:
    specs = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(specs) == 5
    for number, text in enumerate(specs):
        (file := tmp_path / f"{number}.yaml").write_text(text)
        assert load(file).agents
