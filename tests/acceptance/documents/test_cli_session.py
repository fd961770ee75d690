"""The session in docs/cli.md is what happens; `ALCOVE_RECORD=1` writes it anew."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from contextlib import ExitStack, chdir
from pathlib import Path

import pytest

from tests.support.service import COMMAND, alcove, environment, serving
from tests.support.waiting import PATIENCE

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
SERVER = "127.0.0.1:8080"
ALONE = re.compile(r'alcove (?P<words>[^|<>;]*)(?P<code>; echo "exit code \$\?")?')
BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.DOTALL)
VOLATILE = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ": "2026-01-31 12:00:00Z",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z": "2026-01-31T12:00:00Z",
    r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}": "5d0c8a52-7a3e-4f5b-9c1d-2e6f7a8b9c0d",
    r"(?<=, )\d{4}-\d\d-\d\d(?=\))": "2026-01-31",
    r"[\d,]+ bytes, verified": "90,112 bytes, verified",
    r"alcove_[0-9a-f]{12}_[\w-]{43}": "alcove_0123456789ab_…",
    r"\b(?=[0-9a-f]*\d)[0-9a-f]{12}\b": "0123456789ab",
    r"\b(?=[0-9a-f]*\d)[0-9a-f]{16}\b": "0123456789abcdef",
}
"""What differs from run to run, and what stands for it on the page."""


@pytest.mark.of_the_file("a receipt on PostgreSQL names what remains")
def test_the_session_on_the_page_is_what_happens(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    with ExitStack() as stack:
        server = ""

        def rerun(block: re.Match[str]) -> str:
            nonlocal server
            if SERVER in block[2] and not server:
                server = f"127.0.0.1:{stack.enter_context(serving(tmp_path)).port}"
            return block[1] + session(block[2], tmp_path, server) + block[3]

        recorded = BLOCK.sub(rerun, page)
    if os.environ.get("ALCOVE_RECORD"):
        PAGE.write_text(recorded, encoding="utf-8")
        return
    assert recorded == page


def session(block: str, folder: Path, server: str) -> str:
    """The commands of a block, each followed by what it printed to either stream."""
    told, variables = "", {"COLUMNS": "100"}
    for command in [line[2:] for line in block.splitlines() if line.startswith("$ ")]:
        here = command.replace(SERVER, server)
        if here.startswith("export "):
            variables.update(word.partition("=")[::2] for word in shlex.split(here)[1:])
        told += f"$ {command}\n{printed(here, folder, variables)}"
    for volatile, instead in VOLATILE.items():
        told = re.sub(volatile, instead, told)
    return told.replace(server, SERVER) if server else told


def printed(command: str, folder: Path, variables: dict[str, str]) -> str:
    """What a line of the session prints: in this process if it is our command alone, else in a shell."""
    if alone := ALONE.fullmatch(command):
        with chdir(folder):
            done = alcove(*shlex.split(alone["words"]), env=variables)
        return done.output + (f"exit code {done.returncode}\n" if alone["code"] else "")
    return subprocess.run(
        ["bash", "-c", f'alcove() {{ {shlex.join(COMMAND)} "$@"; }}\n{command}'],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=True,
    ).stdout
