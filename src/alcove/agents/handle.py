"""Agents as one principal has them, in the library and on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from alcove.agents.calls import ToolCall
from alcove.agents.runs import MOST_RUNS, Run
from alcove.agents.service import Agents, RoomStats, RoomSummary, Where
from alcove.agents.specs import Agent, Team
from alcove.agents.tools import Answer
from alcove.core.principal import Principal


class AgentsHandle:
    """The agents of a spec file or of a server, with the principal given once.

    `agents` is a `service.Agents`, or the client that asks a server for the same.
    """

    def __init__(self, agents: Any, principal: Principal) -> None:
        self._agents: Agents = agents
        self.principal = principal

    def as_user(self, user_id: str, *, groups: Iterable[str] = ()) -> AgentsHandle:
        """The same agents, acting for this user, who is in these groups."""
        return AgentsHandle(self._agents, Principal(user_id, claims={"sub": user_id, "groups": [*groups]}))

    def agents(self) -> list[Agent]:
        """The agents that the principal may use."""
        return self._agents.agents(self.principal)

    def agent(self, name: str) -> Agent:
        """One agent's spec; `NotFound` if there is none that the principal may use."""
        return self._agents.agent(self.principal, name)

    def teams(self) -> list[Team]:
        """The teams that the principal may use."""
        return self._agents.teams(self.principal)

    def rooms(self, name: str) -> list[RoomSummary]:
        """The rooms of an agent that the principal may see, and how much is in each."""
        return self._agents.rooms(self.principal, name)

    def tools(self, agent: str, format: str = "openai", team: str | None = None) -> list[dict[str, Any]]:
        """An agent's tools as a provider (`openai`, `anthropic` or `mcp`) wants to be told of them.

        `team` is the team in which the agent works, whose room then has tools, too.
        """
        return self._agents.tools(self.principal, agent, format, team)

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
        """Runs one of an agent's tools: a structured result, and the words for the model.

        `session_id`, `team` and `instances` (the id of the workflow, swarm or debate) say where the call is
        made; everything else is an argument of the tool.
        """
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
        return self._agents.call(self.principal, agent, tool, arguments, where)

    def calls_of(self, name: str) -> Iterable[ToolCall]:
        """The principal's tool calls of an agent, newest first; everybody's for an admin or auditor."""
        return self._agents.calls_of(self.principal, name)

    def open_run(self, kind: str, id: str | None = None, members: Iterable[str] = ()) -> Run:
        """Opens a workflow, swarm or debate for these users; without an id it gets one."""
        return self._agents.open_run(self.principal, kind, id, members)

    def change_run(self, kind: str, id: str, members: Iterable[str]) -> Run:
        """Makes these the members of a run; only its owner may."""
        return self._agents.change_run(self.principal, kind, id, members)

    def list_runs(self, limit: int = MOST_RUNS, offset: int = 0) -> list[Run]:
        """The runs that the principal owns or is in: at most `limit`, after the first `offset`."""
        return self._agents.list_runs(self.principal, limit, offset)

    def close_run(self, kind: str, id: str) -> None:
        """Ends a run and empties its room; only its owner may, or any member once the owner was wiped."""
        self._agents.close_run(self.principal, kind, id)

    def room_stats(self, name: str, kind: str, where: Where) -> RoomStats:
        """How much an agent's scratch room of this kind holds, and how it was used."""
        return self._agents.room_stats(self.principal, name, kind, where)

    def reset_room(self, name: str, kind: str, where: Where) -> None:
        """Empties an agent's scratch room of this kind; a run's only for its owner."""
        self._agents.reset_room(self.principal, name, kind, where)
