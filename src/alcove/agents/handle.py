"""Agents as one principal has them: the front of the library and of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from alcove.agents.service import Where
from alcove.agents.tools import Answer
from alcove.core.principal import Principal


class Crew:
    """`service.Agents`, or those of a server, with the principal given once."""

    def __init__(self, agents: Any, principal: Principal) -> None:
        self._agents = agents
        self.principal = principal

    def as_user(self, user_id: str, *, groups: Iterable[str] = ()) -> Crew:
        """The same agents, acting for this user."""
        return Crew(self._agents, Principal(user_id, claims={"sub": user_id, "groups": [*groups]}))

    def call(
        self,
        agent: str,
        tool: str,
        /,
        *,
        session_id: str | None = None,
        team: str | None = None,
        instances: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Answer:
        """Runs one of an agent's tools: a structured result, and the words for the model."""
        return self.call_with(
            agent, tool, arguments, session_id=session_id, team=team, instances=instances or {}
        )

    def call_with(
        self,
        agent: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        session_id: str | None = None,
        team: str | None = None,
        instances: Mapping[str, str],
    ) -> Answer:
        """The same, with the arguments as a model gives them."""
        where = Where(session_id=session_id, team=team, instances={**instances})
        return self._agents.call(self.principal, agent, tool, arguments, where)  # type: ignore[no-any-return]

    def tools(self, agent: str, format: str = "openai", team: str | None = None) -> list[dict[str, Any]]:
        """An agent's tools, as a provider wants to be told of them."""
        return self._agents.tools(self.principal, agent, format, team)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._agents, name), self.principal)
