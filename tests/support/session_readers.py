"""A conversation that is read in two ways, with a session store and without, from one store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from alcove import Alcove, Settings
from alcove.engine.commit import Observer

SPECS = {
    "agents": [
        {
            "name": name,
            "memory": {
                "conversation": {"window_size": 4, "summarize": True},
                "session_memory": {"idle_seconds": 3600},
            },
        }
        for name in ("guide", "other")
    ]
}


class Outcomes(Observer):
    """Counts what came of asking the session store."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def session_store(self, outcome: str) -> None:
        self.seen[outcome] += 1


class Talk:
    """One who talks with an agent; each context is what the engine alone would give."""

    def __init__(
        self, open_store: Callable[..., Alcove], address: str, user: str = "alice", **options: object
    ) -> None:
        self.outcomes = Outcomes()
        settings = Settings(sweep_interval=0, session_store=address)
        self.store = open_store(settings=settings, embedder=None, observer=self.outcomes, **options)
        self.plain = open_store(settings=Settings(sweep_interval=0), embedder=None, **options)
        self.user = user
        self._said = 0

    def agents(self, store: Alcove | None = None) -> Any:
        return (store or self.store).as_user(self.user).agents(SPECS)

    def say(self, session: str = "s", agent: str = "guide", *, text: str | None = None) -> None:
        """A message and its answer, which are kept."""
        self._said += 1
        said = text or f"The {self._said}. thing that {self.user} tells the {agent} in {session}."
        turns = [{"role": "user", "content": said}, {"role": "assistant", "content": f"I hear: {said}"}]
        self.agents().add_turns(agent, session, turns)

    def context(self, session: str = "s", agent: str = "guide") -> str:
        """What a model would be sent; the same, to the letter, with the session store and without."""
        asked = agent, session, "What did I say?"
        shown = self.agents().context(*asked)
        expected = self.agents(self.plain).context(*asked)
        assert shown.messages == expected.messages
        assert shown.receipt.tiers == expected.receipt.tiers
        return str(shown.messages)

    def talk(self, times: int, session: str = "s", agent: str = "guide") -> None:
        for _ in range(times):
            self.context(session, agent)
            self.say(session, agent)

    @property
    def valkey(self) -> Any:
        """What its store asks the session store by; a test may come in between."""
        return self.store.memories._sessions

    def before(self, script: str, happens: Callable[[], object]) -> None:
        """Has something happen just before the next script of this name is sent."""
        sessions, ask = self.valkey, self.valkey._valkey
        from alcove.store import session_cache  # noqa: PLC0415

        def interrupted(*command: object) -> object:
            if command[1:2] == (getattr(session_cache, script),):
                sessions._valkey = ask
                happens()
            return ask(*command)

        sessions._valkey = interrupted
