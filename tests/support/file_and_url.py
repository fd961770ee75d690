"""A store in a file and one at a URL, opened for users in the same words: for what works with both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import alcove
from alcove import AsyncAlcove
from alcove.client.agent import AgentHandle, AsyncAgentHandle
from alcove.client.store import Store
from tests.support.concurrent_workers import QUIET
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS, token

SPECS = """
agents:
  - name: helper
    instructions: You help.
    memory:
      private: {}
      conversation: {window_size: 50}
      session_memory: true
      long_term: {}
      scratch: [session]
"""
_NUMBERS = itertools.count(1)


class Place:
    """Where a store is. Users have a number, so that tests can share a service."""

    def __init__(self, at: Path | Service, specs: Path) -> None:
        self._at, self._specs, self._number = at, specs, next(_NUMBERS)

    def name(self, user: str) -> str:
        """What a user is called here."""
        return f"{user}-{self._number}"

    def open(self, user: str = "alice") -> Store:
        """The store as a user."""
        if isinstance(self._at, Path):
            return alcove.connect(self._at, user=self.name(user), settings=QUIET, embedder=None)
        return alcove.connect(self._at.url, token=token(self.name(user)))

    def awaited(self, user: str = "alice") -> AsyncAlcove:
        """The store as a user, for an event loop."""
        if isinstance(self._at, Path):
            return AsyncAlcove(self._at, user=self.name(user), settings=QUIET, embedder=None)
        return AsyncAlcove(self._at.url, token=token(self.name(user)))

    def helper(self, store: Store, session_id: str = "default") -> AgentHandle:
        """The agent of the specs, which at a URL the server has."""
        specs = self._specs if isinstance(self._at, Path) else None
        return store.agent("helper", session_id=session_id, specs=specs)

    def async_helper(self, store: AsyncAlcove, session_id: str = "default") -> AsyncAgentHandle:
        specs = self._specs if isinstance(self._at, Path) else None
        return store.agent("helper", session_id=session_id, specs=specs)


@contextmanager
def served(folder: Path) -> Iterator[Service]:
    """A service that has the agent of the specs."""
    (specs := folder / "agents.yaml").write_text(SPECS)
    with serving(folder, *FLAGS, "--agents", specs) as running:
        yield running
