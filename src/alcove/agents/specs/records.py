"""The records of a spec: agents with their memory, teams, and knowledge sources.

A block that is left out is off; a block that is written is on unless it says `enabled: false`. So an agent
has only the rooms that its spec asks for. `api/fields.toml` describes each field.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

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
