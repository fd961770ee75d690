"""The records of a spec: agents with their memory, teams, and knowledge sources; and the catalogue of all.

A block that is left out is off; a block that is written is on unless it says `enabled: false`. So an agent
has only the rooms that its spec asks for. `api/fields.toml` describes each field.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from alcove.core.errors import NotFound, quote_name
from alcove.core.principal import Principal

ScratchKind: TypeAlias = Literal["global", "workflow", "swarm", "debate", "session", "agent"]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
Template: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
MemoryScope: TypeAlias = Literal["agent", "all", "user"]
"""Who recalls a long-term memory: the agent that stored it, or all agents of its user; `user` means `all`."""

PRIVATE_TEMPLATE = "agent:{agent_name}"
TEAM_TEMPLATE = "team:{team_name}"
SYSTEM = "system"
"""The owner of specs that belong to the operator; `shared_with` knows no user of this name."""
OWNER_SEGMENTS = ("u", "user")
"""Namespace segments before a user's name; no agent, team or pool may have one of them as its name."""


class Private(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Notes of this agent about one user, which nobody else reads."""

    enabled: bool = True
    namespace: Template = PRIVATE_TEMPLATE
    session_isolated: bool = False


class Conversation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The turns before the new message."""

    enabled: bool = True
    window_size: Count = 10
    max_tokens: Count | None = 4000
    summarize: bool = False
    recall: Annotated[int, Meta(ge=0, le=100)] = 0
    """How many earlier messages that fit the new one are added; to be found, their text is not encrypted."""


class SessionMemory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A summary of past sessions."""

    enabled: bool = True
    idle_seconds: Count = 1800


class KnowledgeUse(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The knowledge sources that an agent searches."""

    enabled: bool = True
    sources: tuple[Name, ...] = ()
    retrieval_limit: Annotated[int, Meta(ge=1, le=100)] = 5
    similarity_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.7


class Facts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about a user that an agent learns and recalls by meaning."""

    enabled: bool = True
    max_facts: Count = 100
    namespace: str | None = None
    """None for the agent's name; agents that name the same one share it."""


class LongTerm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts, preferences, relationships and instructions of a user, stored until they are forgotten."""

    enabled: bool = True
    recall_budget: Count = 50
    scope: MemoryScope = "agent"
    """Where `memory_remember` stores when the model names no scope."""


class AgentMemory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rooms of an agent."""

    private: Private = Private(enabled=False)
    pools: tuple[Template, ...] = ()
    scratch: tuple[ScratchKind, ...] = ()
    conversation: Conversation = Conversation(enabled=False)
    session_memory: SessionMemory = SessionMemory(enabled=False)
    knowledge: KnowledgeUse = KnowledgeUse(enabled=False)
    facts: Facts = Facts(enabled=False)
    long_term: LongTerm = LongTerm(enabled=False)


class Agent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent."""

    name: Name
    owner: Name = SYSTEM
    role: str | None = None
    version: str | None = None
    instructions: str = ""
    shared_with: tuple[Name, ...] | None = None
    """None for every user; empty for the owner alone."""
    auto_memory: bool = False
    memory: AgentMemory = AgentMemory()


class Team(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Agents that work together, and the room they share."""

    name: Name
    owner: Name = SYSTEM
    workers: Annotated[tuple[Name, ...], Meta(min_length=1)]
    shared_memory_namespace: Template | None = TEAM_TEMPLATE
    """None for a team that shares nothing."""
    shared_with: tuple[Name, ...] | None = None
    mode: Literal["order", "parallel"] = "order"


class Knowledge(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source of documents."""

    name: Name
    path: Annotated[str, Meta(min_length=1)]
    writers: tuple[Name, ...] = ()


KINDS: dict[str, type[Agent | Team | Knowledge]] = {"agents": Agent, "teams": Team, "knowledge": Knowledge}
"""The lists of a spec file, and the record of their items."""


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
        """The agent of this name, without a check of the caller."""
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
    names = spec.shared_with
    if names is None or EVERYBODY in names or principal.user_id == spec.owner != SYSTEM:
        return True
    return includes_caller(names, principal)


def includes_caller(names: Sequence[str], principal: Principal) -> bool:
    """Whether a caller is one of these users, or in one of these groups (`group:<name>`)."""
    groups = principal.claims.get("groups")
    if not isinstance(groups, list) or not all(isinstance(each, str) for each in groups):
        groups = []
    return any(
        each.removeprefix(GROUP) in groups if each.startswith(GROUP) else each == principal.user_id
        for each in names
    )
