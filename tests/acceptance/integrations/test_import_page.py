"""docs/coming-from-elsewhere.md is what happens; `ALCOVE_RECORD=1` writes its sessions anew."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import chdir
from pathlib import Path

import pytest
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore

from tests.acceptance.documents.test_cli_session import BLOCK, session
from tests.support.other_projects import FILES, mem0_memory
from tests.support.postgres import new_database

PAGE = Path(__file__).parents[3] / "docs" / "coming-from-elsewhere.md"
ADDRESS = "postgresql://127.0.0.1/app"
PROGRAM = re.compile(r"## mem0.*?```python\n(.*?)```", re.DOTALL)
ID = re.compile(r"(?<=mem0-)[0-9a-f-]{8,36}")
INSTEAD = "5d0c8a52-7a3e-4f5b-9c1d-0123456789ab"
"""What stands on the page for an id, or for the beginning of one."""


def test_the_sessions_on_the_page_are_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALCOVE_EMBEDDER", "none")  # what is shown does not depend on it
    page = PAGE.read_text(encoding="utf-8")
    program = PROGRAM.search(page)
    assert program
    with mem0_memory(tmp_path) as memory, chdir(tmp_path):
        memory.add("Ann drinks green tea", user_id="ann", metadata={"city": "Oslo"}, infer=False)
        memory.add("Ann has a deadline", user_id="ann", infer=False, expiration_date="2099-12-31")
        memory.add("Bo keeps bees", user_id="bo", agent_id="scout", infer=False)
        exec(program[1], {"memory": memory, "users": ["ann", "bo"]})
    (tmp_path / "history.db").unlink()
    with mem0_memory(tmp_path / "another") as memory:
        memory.add("Ann drinks green tea", user_id="ann", infer=False)
    (tmp_path / "another" / "history.db").rename(tmp_path / "history.db")
    for name, there in (("letta.af", "agent.af"), *((each, each) for each in ("graphiti.json", "zep.json"))):
        shutil.copy(FILES / name, tmp_path / there)
    shutil.copy(FILES / "letta-passages.json", tmp_path)
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
        store.put(("memories", "ann"), "tea", {"text": "green"})
        store.put(("memories", "bo"), "pin", {"text": "for an hour"}, ttl=60)
    address = new_database()
    with PostgresStore.from_conn_string(address) as shared:
        shared.setup()
        shared.put(("team", "notes"), "sprint", {"text": "ends on Friday"})
        shared.put(("team", "notes"), "pin", {"text": "for an hour"}, ttl=60)

    def rerun(block: re.Match[str]) -> str:
        told = session(block[2].replace(ADDRESS, f"'{address}'"), tmp_path, "")
        told = ID.sub(lambda id: INSTEAD[: len(id[0])], told)
        return block[1] + told.replace(f"'{address}'", ADDRESS) + block[3]

    first, rest = page.split("## mem0", 1)
    recorded = f"{first}## mem0{BLOCK.sub(rerun, rest)}"
    if os.environ.get("ALCOVE_RECORD"):
        PAGE.write_text(recorded, encoding="utf-8")
        return
    assert recorded == page


def test_the_command_that_the_page_begins_with_is_one_that_is_run() -> None:
    first, *others = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert any(first[1].splitlines()[0] in block[1] for block in others)
