"""Turns of one session wait for each other; those that wait are few, since each has a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from alcove import Alcove, Unavailable
from alcove.agents.chats import MAX_WAITING_TURNS
from alcove.llm.model import ModelAnswer, ModelRequest, TokenUse
from tests.support.waiting import PATIENCE, until


class Slow:
    """A model that answers once it may."""

    def __init__(self) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def ask(self, request: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        self.asked.set()
        assert self.may_answer.wait(PATIENCE)
        yield "Hello."
        yield ModelAnswer(text="Hello.", use=TokenUse.of(10, 2))

    def close(self) -> None:
        """Has nothing to close."""


def test_a_session_in_which_too_many_turns_wait_refuses_more(tmp_path: Path) -> None:
    model = Slow()
    specs = {"agents": [{"name": "bot", "memory": {"conversation": {}}}]}
    with Alcove(tmp_path / "memory.db", embedder=None) as memory:
        alice = memory.agents(specs, llm=model).as_user("alice")
        chats = alice.transport.services["Chats"]  # type: ignore[attr-defined]
        with ThreadPoolExecutor(MAX_WAITING_TURNS + 2) as threads:
            first = threads.submit(alice.chat, "bot", "s", "Hi")
            assert model.asked.wait(PATIENCE)
            waiting = [threads.submit(alice.chat, "bot", "s", f"Hi {n}") for n in range(MAX_WAITING_TURNS)]
            until(lambda: [*chats._waiting.values()] == [MAX_WAITING_TURNS])
            with pytest.raises(Unavailable, match="this session"):
                alice.chat("bot", "s", "One more")
            model.may_answer.set()
            assert {each.result(PATIENCE).text for each in (first, *waiting)} == {"Hello."}
        assert not chats._waiting
        assert alice.session("bot", "s").messages == 2 * (1 + MAX_WAITING_TURNS)
