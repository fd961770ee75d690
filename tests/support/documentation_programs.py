"""Programs that a page shows, run as they stand there, and what the page says that they print."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.service import environment

DOCS = Path(__file__).parents[2] / "docs"
_PROGRAM = re.compile(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", re.DOTALL)


class Program(NamedTuple):
    code: str
    prints: str | None
    """What the page says below it; None where it says nothing."""

    def run(self, folder: Path, replacing: Mapping[str, str] | None = None) -> str:
        """What it prints in a folder, with some addresses replaced by those of a test."""
        code = self.code
        for there, ours in (replacing or {}).items():
            code = code.replace(there, ours)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], cwd=folder, env=environment(),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


def programs(page: str) -> list[Program]:
    """Every program of a page of docs/, in its order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [Program(*found) for found in _PROGRAM.findall(text)]
