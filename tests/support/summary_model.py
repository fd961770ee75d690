"""A model in this process that answers at once and writes summaries as a test says, and users who talk."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alcove import Alcove, Settings
from alcove.agents.context import Context
from alcove.client.store import AgentsHandle
from alcove.llm.model import ModelAnswer, ModelRequest, ProviderError
from tests.support.waiting import PATIENCE, until

BY_MODEL = "summary by default"
"""Where what it wrote comes from, as receipts have it."""
NONSENSE = "I am sorry, but as a language model I cannot help with that."
SUMS_UP = "You keep the summary"
"""How a model knows that a summary is wanted."""
SPECS = """
agents:
  - {name: rolling, memory: {session_memory: {idle_seconds: 3600}}}
  - {name: another, memory: {session_memory: {idle_seconds: 3600}}}
  - {name: running, memory: {conversation: {window_size: 4, summarize: true}}}
  - name: both
    memory: {conversation: {window_size: 4, summarize: true}, session_memory: {idle_seconds: 3600}}
"""
_numbers = itertools.count(1)


class Scribe:
    """Sums up by repeating every sentence that it is told, behind `In short,`."""

    def __init__(self) -> None:
        self.asked = list[str]()
        """What it was told for each summary."""
        self.waiting = 0
        """How many summaries it is at, and held up."""
        self.trouble: ProviderError | None = None
        self.nonsense = False
        self.closed = threading.Event()
        self.asked_too_late = 0
        """How often it was asked after it was closed."""
        self._go_on = threading.Event()
        self._go_on.set()

    def ask(self, asked: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        self.asked_too_late += self.closed.is_set()
        assert not self.closed.is_set(), "it was closed"
        task, told = asked.messages[0].content or "", asked.messages[-1].content or ""
        if SUMS_UP not in task:
            yield "Noted."
            yield ModelAnswer(text="Noted.")
            return
        self.asked.append(told)
        if not self._go_on.is_set():
            self.waiting += 1
            self._go_on.wait(PATIENCE)
            self.waiting -= 1
        if self.trouble:
            raise self.trouble
        yield ModelAnswer(text=NONSENSE if self.nonsense else in_short(told))

    def close(self) -> None:
        self.closed.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets it finish no summary for the length of a `with`."""
        self._go_on.clear()
        try:
            yield
        finally:
            self._go_on.set()


@contextmanager
def a_store(folder: Path) -> Iterator[Alcove]:
    """A store in a folder, in which agents are specified, too."""
    (folder / "agents.yaml").write_text(SPECS)
    with Alcove(folder / "memory.db", settings=Settings(sweep_interval=0), embedder=None) as memory:
        yield memory


def in_short(told: str) -> str:
    lines = [line for line in told.splitlines() if not line.startswith("<")]
    bare = [line.removeprefix("In short, ").removeprefix("user: ") for line in lines]
    return "\n".join(
        f"In short, {line}" for line in dict.fromkeys(bare) if not line.startswith("assistant: ")
    )


def say(who: AgentsHandle, agent: str, session: str, *said: str, **more: Any) -> None:
    who.add_turns(agent, session, [{"role": "user", "content": each, **more} for each in said])


def conversation(who: AgentsHandle, agent: str, session: str, *said: str, **more: Any) -> None:
    """One that has ended, and is merged into the summary in its own sentences."""
    say(who, agent, session, *said, **more)
    who.end_session(agent, session)
    until(lambda: session not in who.summary(agent).pending)


def prose(who: AgentsHandle, agent: str) -> str:
    """The summary of all conversations in a model's words."""
    found = who.summary(agent).prose
    return found.text if found else ""


def sent(context: Context) -> str:
    """All that a model would be sent."""
    return "\n".join(message.content or "" for message in context.messages)


def sources(context: Context, tier: str) -> list[str]:
    """Where a summary in a context comes from, each source once."""
    found = context.receipt.tiers.get(tier)
    return [*dict.fromkeys(item.source for item in found.items)] if found else []


def settled(agents: AgentsHandle) -> None:
    """Returns when all is written, or refused, that a model was asked for before: they come in turn."""
    other = agents.as_user(f"other-{next(_numbers)}")
    conversation(other, "rolling", "s", "The harbour of Bergen opens on 1 May 2027.")
    until(lambda: prose(other, "rolling"))
