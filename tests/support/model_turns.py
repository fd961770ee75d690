"""A model that is asked: one that a test has written, or one at a server, and pauses that take no time."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

from alcove.core.messages import Message
from alcove.core.settings import LLMSettings
from alcove.core.waiting import Blocking, at_once, in_turn
from alcove.llm import provider_of
from alcove.llm.model import Answered, Asked, FailedAttempt, Model, Trouble
from tests.support.llm_server import LLMServer


class Patient(Blocking):
    """Waits for nothing, and says how long it would have."""

    def __init__(self) -> None:
        self.paused: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.paused.append(seconds)


class Scripted:
    """Gives one list of pieces a call; a trouble among them is raised. The last list is given ever after."""

    def __init__(self, *answers: list[str | Answered | Trouble]) -> None:
        self._answers = [*answers]
        self.asked = list[Asked]()
        self.given = list[float]()
        """For how long each call was told to wait."""
        self.closed = 0

    async def ask(self, asked: Asked, seconds: float) -> AsyncGenerator[str | Answered, None]:
        self.asked.append(asked)
        self.given.append(seconds)
        try:
            for piece in self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]:
                if isinstance(piece, Trouble):
                    raise piece
                yield piece
        finally:
            self.closed += 1

    async def close(self) -> None:
        """Has nothing to close."""


def asked(seconds: float = 1000.0, **more: Any) -> Asked:
    return Asked(messages=[Message(role="user", content="Hi")], end=time.monotonic() + seconds, **more)


def ask(model: Model, seconds: float = 1000.0, **more: Any) -> list[str | Answered | FailedAttempt]:
    """All that a model gives."""
    return [*in_turn(model.ask(asked(seconds, **more)))]


@contextmanager
def reached(server: LLMServer, **settings: Any) -> Iterator[tuple[Model, Patient]]:
    """The model at a server that forgets what it was told before."""
    server.reset()
    meant, waiting = LLMSettings(llm_url=server.url, **settings), Patient()
    provider = provider_of(meant, waiting)
    assert provider
    try:
        yield Model(provider, meant, waiting), waiting
    finally:
        at_once(provider.close())
