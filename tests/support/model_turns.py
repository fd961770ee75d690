"""A model that is asked: one that a test has written, or one at a server, and pauses that take no time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alcove.core.records import Message
from alcove.core.settings import LLMSettings
from alcove.llm import make_provider
from alcove.llm.model import FailedAttempt, Model, ModelAnswer, ModelRequest, ProviderError
from tests.support.llm_server import LLMServer


class Pauses:
    """Sleeps not at all, and remembers for how long it should have."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


class Scripted:
    """Gives one list of pieces a call; a trouble among them is raised. The last list is given ever after."""

    def __init__(self, *answers: list[str | ModelAnswer | ProviderError]) -> None:
        self._answers = [*answers]
        self.asked = list[ModelRequest]()
        self.given = list[float]()
        """For how long each call was told to wait."""
        self.closed = 0

    def ask(self, asked: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        self.asked.append(asked)
        self.given.append(seconds)
        try:
            for piece in self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]:
                if isinstance(piece, ProviderError):
                    raise piece
                yield piece
        finally:
            self.closed += 1

    def close(self) -> None:
        """Has nothing to close."""


def asked(seconds: float = 1000.0, **more: Any) -> ModelRequest:
    return ModelRequest(
        messages=[Message(role="user", content="Hi")], deadline=time.monotonic() + seconds, **more
    )


def ask(model: Model, seconds: float = 1000.0, **more: Any) -> list[str | ModelAnswer | FailedAttempt]:
    """All that a model gives."""
    return [*model.ask(asked(seconds, **more))]


@contextmanager
def reached(server: LLMServer, **settings: Any) -> Iterator[tuple[Model, Pauses]]:
    """The model at a server that forgets what it was told before."""
    server.reset()
    meant, pauses = LLMSettings(llm_url=server.url, **settings), Pauses()
    provider = make_provider(meant)
    assert provider
    try:
        yield Model(provider, meant, sleep=pauses.sleep), pauses
    finally:
        provider.close()
