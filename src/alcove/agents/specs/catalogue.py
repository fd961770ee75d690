"""All loaded specs, and which of them a caller may use."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from alcove.agents.specs.records import (
    OWNER_SEGMENTS,
    SYSTEM,
    Agent,
    AgentMemory,
    Conversation,
    Knowledge,
    LongTerm,
    SessionMemory,
    Team,
)
from alcove.core.errors import NotFound, quote_name
from alcove.core.principal import Principal

EVERYBODY = "*"
GROUP = "group:"
DEFAULT_MEMORY = AgentMemory(
    conversation=Conversation(summarize=True, recall=10), session_memory=SessionMemory(), long_term=LongTerm()
)
"""The memory of agents where no specs are given."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All specs, checked and immutable."""

    agents: Mapping[str, Agent] = field(default_factory=lambda: MappingProxyType({}))
    teams: Mapping[str, Team] = field(default_factory=lambda: MappingProxyType({}))
    knowledge: Mapping[str, Knowledge] = field(default_factory=lambda: MappingProxyType({}))
    """Sources by name, their paths made absolute."""
    warnings: tuple[str, ...] = ()
    has_every_agent: bool = False
    """Whether every name is an agent's, with `DEFAULT_MEMORY`, because no specs are given."""

    def find(self, name: str) -> Agent | None:
        """The agent of this name, whoever may use it."""
        return default_agent(name) if self.has_every_agent else self.agents.get(name)

    def agent_for(self, principal: Principal, name: str) -> Agent:
        """The agent of this name; NotFound if there is none, or none that the caller may use."""
        agent = self.find(name)
        if agent is None or not may_use(agent, principal):
            raise NotFound(f"there is no agent {quote_name(name)}")
        return agent

    def team_for(self, principal: Principal, name: str, agent: Agent) -> Team:
        """The team of this name; NotFound unless the agent is its worker and the caller may use it."""
        team = self.teams.get(name)
        if team is None or agent.name not in team.workers or not may_use(team, principal):
            raise NotFound(f"there is no team {quote_name(name)} with the worker {agent.name!r}")
        return team

    def teams_of(self, agent: str) -> tuple[Team, ...]:
        """The teams that have this agent as a worker."""
        return tuple(team for team in self.teams.values() if agent in team.workers)


@functools.lru_cache(1024)
def default_agent(name: str) -> Agent | None:
    """An agent without a spec; None where the name is no valid one."""
    valid = 1 <= len(name) <= 128 and name not in OWNER_SEGMENTS
    return Agent(name=name, memory=DEFAULT_MEMORY) if valid else None


def allowed_names(spec: Agent | Team) -> frozenset[str] | None:
    """The users and groups that may use an agent or a team; None for everybody."""
    if spec.shared_with is None or EVERYBODY in spec.shared_with:
        return None
    return frozenset(spec.shared_with) | ({spec.owner} - {SYSTEM})


def may_use(spec: Agent | Team, principal: Principal) -> bool:
    """Whether a caller may use an agent or a team; which memories they read does not depend on it."""
    if allowed_names(spec) is None or principal.user_id == spec.owner != SYSTEM:
        return True
    return includes_caller(spec.shared_with or (), principal)


def includes_caller(names: Sequence[str], principal: Principal) -> bool:
    """Whether a caller is one of these users, or in one of these groups (`group:<name>`)."""
    groups = principal.claims.get("groups")
    if not isinstance(groups, list) or not all(isinstance(each, str) for each in groups):
        groups = []
    return any(
        each.removeprefix(GROUP) in groups if each.startswith(GROUP) else each == principal.user_id
        for each in names
    )
