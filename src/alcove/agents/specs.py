"""What can be said of agents, teams and knowledge: frozen records of one schema, and the catalogue of all.

A block that is left out is off; a block that is written is on unless it says `enabled: false`, so that an
agent has just the rooms its spec asks for. Every field may also be written in camelCase; what each says is
told in `api/fields.toml`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from alcove.core.errors import AlcoveError, NotFound
from alcove.core.principal import Principal

Path: TypeAlias = tuple[str | int, ...]
"""Where something stands in a file: names of fields and places in lists."""

Kind: TypeAlias = Literal["global", "workflow", "swarm", "debate", "session", "agent"]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
Template: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
MemoryScope: TypeAlias = Literal["agent", "all", "user"]
"""Who recalls a long-term memory: the agent that stored it, or all agents of its user; `user` means `all`."""

PRIVATE_TEMPLATE = "agent:{agent_name}"
TEAM_TEMPLATE = "team:{team_name}"
EVERYBODY = "*"
GROUP = "group:"
SYSTEM = "system"
"""The owner of specs that belong to the operator: no user has this name for `shared_with`."""
NO_NAMES = ("u", "user")
"""What says in a namespace whose it is, and so can name no agent, team or pool."""


class Private(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this agent remembers of one user, and nobody else sees."""

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
    """How many earlier messages that fit the new one are brought in; to be found, their text is plain."""


class SessionMemory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A summary of past sessions; `true` alone turns it on."""

    enabled: bool = True
    idle_seconds: Count = 1800


class KnowledgeUse(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The documents an agent looks things up in."""

    enabled: bool = True
    sources: tuple[Name, ...] = ()
    retrieval_limit: Annotated[int, Meta(ge=1, le=100)] = 5
    similarity_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.7


class Facts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent decides to keep about a user, recalled by meaning."""

    enabled: bool = True
    max_facts: Count = 100
    namespace: str | None = None
    """None for the agent's name; agents that name the same one share it."""


class LongTerm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a user for good: facts, preferences, relationships, instructions."""

    enabled: bool = True
    recall_budget: Count = 50
    scope: MemoryScope = "agent"
    """Where `memory_remember` stores what the model names no scope for."""


class AgentMemory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rooms of an agent."""

    private: Private = Private(enabled=False)
    pools: tuple[Template, ...] = ()
    scratch: tuple[Kind, ...] = ()
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
    """None for every user; where it is empty, the owner alone."""
    auto_memory: bool = False
    memory: AgentMemory = AgentMemory()


UNSPECIFIED = AgentMemory(
    conversation=Conversation(summarize=True, recall=10), session_memory=SessionMemory(), long_term=LongTerm()
)
"""What an agent remembers that has no spec."""


@functools.lru_cache(1024)
def unspecified(name: str) -> Agent | None:
    """The agent of a name that has no spec; None for what can be no name."""
    return Agent(name=name, memory=UNSPECIFIED) if 1 <= len(name) <= 128 and name not in NO_NAMES else None


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


def dotted(path: Path) -> str:
    """A path as text: `agents[0].memory.pools[1]`, or `document 2: name` where a step ends with a colon."""
    text = ""
    for step in path:
        dot = "." if text and not text.endswith(": ") else ""
        text += f"[{step}]" if isinstance(step, int) else f"{dot}{step}"
    return text.removesuffix(": ")


@dataclass(frozen=True, slots=True, order=True)
class Trouble:
    """One thing in one file that is not as it should be."""

    file: str
    path: str
    expected: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.path, f"expected {self.expected}") if part)


class InvalidSpecs(AlcoveError):
    """Specs that do not load; the message has every reason, a line each."""

    code = "invalid_request"

    def __init__(self, troubles: Sequence[Trouble]) -> None:
        lines = [str(trouble) for trouble in troubles]
        super().__init__("\n".join(lines), details={"errors": lines})
        self.troubles = tuple(troubles)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything the specs say, checked; nothing in it changes."""

    agents: Mapping[str, Agent] = field(default_factory=lambda: MappingProxyType({}))
    teams: Mapping[str, Team] = field(default_factory=lambda: MappingProxyType({}))
    knowledge: Mapping[str, Knowledge] = field(default_factory=lambda: MappingProxyType({}))
    """Sources by name, their paths made absolute."""
    warnings: tuple[str, ...] = ()
    unspecified: bool = False
    """Whether there is an agent of any name, because nothing was specified."""

    def find(self, name: str) -> Agent | None:
        """The agent, whoever may use it; None where there is none."""
        return unspecified(name) if self.unspecified else self.agents.get(name)

    def agent_for(self, principal: Principal, name: str) -> Agent:
        """The agent; one that this caller may not use is as one that does not exist."""
        agent = self.find(name)
        if agent is None or not may_use(agent, principal):
            raise NotFound(f"there is no agent {short(name)}")
        return agent

    def team_for(self, principal: Principal, name: str, agent: Agent) -> Team:
        """The team, if the agent is its worker and it admits this caller; otherwise as if there were none."""
        team = self.teams.get(name)
        if team is None or agent.name not in team.workers or not may_use(team, principal):
            raise NotFound(f"there is no team {short(name)} with the worker {agent.name!r}")
        return team

    def teams_of(self, agent: str) -> tuple[Team, ...]:
        """The teams in which this agent works."""
        return tuple(team for team in self.teams.values() if agent in team.workers)


def admitted(spec: Agent | Team) -> frozenset[str] | None:
    """The users and groups that `shared_with` admits, and the owner; None for everybody."""
    if spec.shared_with is None or EVERYBODY in spec.shared_with:
        return None
    return frozenset(spec.shared_with) | ({spec.owner} - {SYSTEM})


def may_use(spec: Agent | Team, principal: Principal) -> bool:
    """Whether `shared_with` admits this caller, which changes nothing about whose memory is whose."""
    if admitted(spec) is None or principal.user_id == spec.owner != SYSTEM:
        return True
    return names_caller(spec.shared_with or (), principal)


def names_caller(names: Sequence[str], principal: Principal) -> bool:
    """Whether a caller is one of these users, or in one of these groups (`group:<name>`)."""
    groups = principal.claims.get("groups")
    if not isinstance(groups, list) or not all(isinstance(each, str) for each in groups):
        groups = []
    return any(
        each.removeprefix(GROUP) in groups if each.startswith(GROUP) else each == principal.user_id
        for each in names
    )


def short(name: str) -> str:
    """A name that somebody made up, as a sentence repeats it."""
    return repr(name if len(name) <= 60 else f"{name[:60]}…")
