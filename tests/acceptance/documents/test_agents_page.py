"""What docs/agents.md and docs/context.md show happens; `ALCOVE_RECORD=1` writes their output anew."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from alcove import Alcove
from alcove.agents.specs.loading import load
from tests.support.concurrent_workers import QUIET
from tests.support.service import COMMAND, environment

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "agents.md"
DATE = re.compile(r"\d{4}-\d\d-\d\d")
EXAMPLE = re.compile(r"(```python\n(.*?)```\n\n```\n)(.*?)(```)", re.DOTALL)


@pytest.mark.parametrize("name", ["agents.md", "context.md"])
def test_the_example_prints_what_the_page_says(tmp_path: Path, name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    found = EXAMPLE.search(page)
    assert found
    done = subprocess.run(
        [sys.executable, "-c", found[2]], cwd=tmp_path, env=environment(), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    if os.environ.get("ALCOVE_RECORD"):
        (DOCS / name).write_text(page.replace(found[0], found[1] + done.stdout + found[4]), encoding="utf-8")
        return
    assert DATE.sub("DATE", done.stdout) == DATE.sub("DATE", found[3])


def test_the_recipe_moves_a_shared_room_into_rooms_of_the_agents_own(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8").partition("### From a shared room")[2]
    rename, commands = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "bash"))
    assert rename
    assert commands
    (specs := tmp_path / "agents.yaml").write_text(
        "agents: [{name: fighter, memory: {scratch: [global, agent]}},"
        " {name: wizard, memory: {scratch: [global, agent]}}]"
    )
    at = tmp_path / "memory.db"
    players = [(agent, user) for agent in ("fighter", "wizard") for user in ("alice", "bob")]
    with Alcove(at, settings=QUIET) as memory:
        agents = memory.agents(specs)
        for agent, user in players:
            key, value = f"{agent}:sheet-of-{user}", f"{user} as {agent}"
            agents.as_user(user).call(agent, "shared_memory_write", key=key, value=value)
        written = {each.written_by: each.created_at for each in memory.export_memories("global")}
    (tmp_path / "rename.py").write_text(rename[1])
    script = f'alcove() {{ {shlex.join(COMMAND)} "$@"; }}\nset -e\n{commands[1]}alcove import moved.jsonl'
    subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(ALCOVE_EMBEDDER="none"), check=True, timeout=60
    )
    with Alcove(at, settings=QUIET) as memory:
        agents = memory.agents(specs)
        for agent, user in players:
            own = agents.as_user(user).call(agent, "shared_memory_list", namespace="agent").result["items"]
            assert [(each["key"], each["value"]) for each in own] == [
                (f"sheet-of-{user}", f"{user} as {agent}")
            ]
        moved = [*memory.export_memories("agent-room")]
        assert {each.written_by: each.created_at for each in moved} == written
        agents.reset_room("fighter", "global")
        assert [*memory.export_memories("global")] == []


def test_every_spec_on_the_page_loads(tmp_path: Path) -> None:
    specs = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(specs) == 5
    for number, text in enumerate(specs):
        (file := tmp_path / f"{number}.yaml").write_text(text)
        assert load(file).agents
