"""kill -9 in the middle of turns: each is kept whole or not at all, and no session stays taken.

This file is also the child program that gets killed: `python -m tests.acceptance.faults.test_chat_kills …`.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from alcove import Alcove, Settings
from alcove.llm.model import AnswerBuilder, ModelAnswer, ModelRequest, TokenUse
from tests.support.child_programs import say, started
from tests.support.waiting import LONG

KILLS = 200 if LONG else 20
SESSIONS = 4
QUIET = Settings(sweep_interval=0, indexing_interval=0)
SPECS = "agents: [{name: bot, memory: {private: {}, conversation: {window_size: 4, summarize: true}}}]"


class Echo:
    """A model that takes a note of what it hears, and says it again."""

    def ask(self, asked: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        answer = AnswerBuilder(asked.meter)
        heard = next(m.content for m in reversed(asked.messages) if m.role == "user")
        if asked.messages[-1].role == "user" and asked.tools:
            answer.add_call(0, name="remember", arguments=json.dumps({"key": "heard", "content": heard}))
        else:
            yield answer.add_text(f"You said: {heard}")
        answer.finish, asked.meter.use = "stop", TokenUse.of(10, 1)
        yield answer.build()

    def close(self) -> None:
        """There is nothing to close."""


def chat(folder: Path, first: int) -> None:
    """Talks in several sessions at once, for ever."""
    with Alcove(folder / "memory.db", settings=QUIET, embedder=None) as memory:
        alice = memory.agents(folder / "agents.yaml", llm=Echo()).as_user("alice")

        def talk(session: int) -> None:
            n = first
            while True:
                alice.chat("bot", f"s{session}", f"message {session}-{n}")
                say("kept", session, n)
                n += 1

        for session in range(SESSIONS):
            threading.Thread(target=talk, args=(session,), daemon=True).start()
        time.sleep(60)


def test_a_turn_that_is_killed_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text(SPECS)
    chance, acknowledged = random.Random(3), set[str]()
    for kill in range(KILLS):
        with started(tmp_path / f"said-{kill}", __name__, tmp_path, 1000 * kill) as child:
            child.wait_for(f"kept 0 {1000 * kill + 1}")  # so the killed one before it left no session taken
            time.sleep(chance.random() * 0.05)
            child.kill()
        kept = (line.split() for line in child.lines if line.startswith("kept"))
        acknowledged |= {f"message {session}-{n}" for _, session, n in kept}
    with Alcove(tmp_path / "memory.db", settings=QUIET, embedder=None) as memory:
        alice, found = memory.agents(tmp_path / "agents.yaml", llm=Echo()).as_user("alice"), set[str]()
        for session in range(SESSIONS):
            said, before = list[tuple[str, str | None]](), None
            while True:
                page = alice.session("bot", f"s{session}", 1000, before)
                said[:0], before = [(each.role, each.content) for each in page.said], page.before
                if before is None:
                    break
            asked = [content for _, content in said[::2]]
            assert said[1::2] == [("assistant", f"You said: {content}") for content in asked]
            assert len(asked) == len({*asked})
            found |= {content or "" for content in asked}
            assert alice.chat("bot", f"s{session}", "and now").stored
        assert acknowledged <= found


if __name__ == "__main__":
    chat(Path(sys.argv[1]), int(sys.argv[2]))
