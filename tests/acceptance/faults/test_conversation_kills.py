"""kill -9 while conversations are merged into summaries, or documents synced: nothing is lost or repeated.

This file is also the child program that gets killed (`python -m`, then the name of its module).
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from alcove import Alcove, Settings
from alcove.client.store import AgentsHandle
from alcove.core.records import Message
from tests.support.child_programs import say, started
from tests.support.waiting import LONG

KILLS = 60 if LONG else 20
QUIET = Settings(sweep_interval=0, indexing_interval=0)
SPECS = """
knowledge: [{name: manuals, path: manuals}]
agents:
  - name: rolling
    memory: {conversation: {window_size: 4, summarize: true}, session_memory: {idle_seconds: 3600}}
  - {name: reader, memory: {knowledge: {sources: [manuals]}}}
"""
PARTS = 400


def agents(memory: Alcove, folder: Path) -> AgentsHandle:
    return memory.agents(folder / "agents.yaml").as_user("alice")


def town(n: int) -> str:
    return f"We visited Town{n} with Anna{n} on day {n} of the journey."


def converse(folder: Path, first: int) -> None:
    """Has conversations and ends them, for ever; each is merged in the background."""
    with Alcove(folder / "memory.db", settings=QUIET) as memory:
        alice, n = agents(memory, folder), first
        while True:
            said = [Message(role="user", content=town(n)), Message(role="assistant", content="I see.")]
            alice.add_turns("rolling", f"s{n}", said)
            say("said", n)
            alice.end_session("rolling", f"s{n}")
            say("ended", n)
            n += 1


def sync(folder: Path) -> None:
    with Alcove(folder / "memory.db", settings=QUIET) as memory:
        memory.agents(folder / "agents.yaml").sync_source("manuals")
        say("synced")
        time.sleep(60)


def test_a_merge_that_is_killed_loses_and_repeats_nothing(tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text(SPECS)
    chance, acknowledged = random.Random(7), 0
    for kill in range(KILLS):
        with started(tmp_path / f"said-{kill}", __name__, "converse", tmp_path, 1000 * kill) as child:
            child.wait_for(f"ended {1000 * kill + 1}")
            time.sleep(chance.random() * 0.05)
            child.kill()
        acknowledged += sum(line.startswith("said") for line in child.lines)
    with Alcove(tmp_path / "memory.db", settings=QUIET) as memory:
        alice = agents(memory, tmp_path)
        sessions = {each.id: each for each in alice.sessions("rolling", 1000)}
        assert len(sessions) >= acknowledged
        assert all(each.messages == 2 for each in sessions.values())
        ended = sum(each.ended for each in sessions.values())
        alice.context("rolling", "next", "Where have we been?")  # merges what the killed did not
        summary = alice.summary("rolling")
        assert summary.conversations == ended
        assert {*summary.pending} == {each.id for each in sessions.values() if not each.ended}
        texts = [point.text for point in summary.points]
        assert len(texts) == len({*texts})
        for session in summary.pending:
            alice.end_session("rolling", session)
        alice.context("rolling", "last", "Where have we been?")
        assert alice.summary("rolling").conversations == len(sessions)


def test_a_sync_that_is_killed_is_taken_up_again(tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text(SPECS)
    (tmp_path / "manuals").mkdir()
    chance = random.Random(11)
    for kill in range(KILLS // 2):
        parts = (
            f"## Part {n}\n\nThis is part {n} of edition {kill if n % 3 else 0}.\n" for n in range(PARTS)
        )
        (tmp_path / "manuals" / "long.md").write_text(f"# Long\n\n{''.join(parts)}")
        with started(tmp_path / f"said-{kill}", __name__, "sync", tmp_path) as child:
            time.sleep(0.25 + chance.random() * 0.3)
            child.kill()
    with Alcove(tmp_path / "memory.db", settings=QUIET) as memory:
        handle = memory.agents(tmp_path / "agents.yaml")
        status = handle.sync_source("manuals")
        assert (status.documents, status.chunks, status.errors) == (1, PARTS, {})
        pieces = handle.document("manuals", "long.md").pieces
        edition = KILLS // 2 - 1
        expected = [f"This is part {n} of edition {edition if n % 3 else 0}." for n in range(PARTS)]
        assert [piece.text for piece in pieces] == expected
        assert len(memory.list("knowledge:manuals:long.md", limit=1000)) == PARTS + 1


if __name__ == "__main__":
    if sys.argv[1] == "sync":
        sync(Path(sys.argv[2]))
    else:
        converse(Path(sys.argv[2]), int(sys.argv[3]))
