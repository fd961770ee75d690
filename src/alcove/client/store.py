"""A store as one principal has it, wherever it is, and its two parts: operating it, and its agents."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from alcove.agents.tools import Answer
from alcove.api.agent_operations import (
    AgentOperations,
    ChatOperations,
    ChatStreaming,
    KnowledgeOperations,
    SessionOperations,
)
from alcove.api.operation import Handle, Operation
from alcove.api.operations import AdminOperations, MemoryOperations
from alcove.client.agent import SESSION, AgentHandle, ToolArguments, parse_arguments
from alcove.client.open_store import FileOperations, Specs, StoreOperations
from alcove.core.principal import Principal
from alcove.llm import LLM
from alcove.upkeep.backup import BackedUp, Progress


class Transport(ABC):
    """How operations are done for one principal: by services in this process, or by a server."""

    principal: Principal

    @abstractmethod
    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]:
        """The function that does an operation; what an `AsyncHandle` gets is awaited or iterated over."""

    @abstractmethod
    def user(self, user_id: str, roles: Iterable[str]) -> Principal:
        """The principal that a user is here."""

    @abstractmethod
    def agents(self, specs: Specs | None, llm: LLM | None) -> Self:
        """How the operations of these agents are done; `llm` is the model that they talk with."""

    def agent(self, specs: Specs | None, llm: LLM | None) -> Self:
        """The same, of agents that may have no spec."""
        return self.agents(specs, llm)

    def derive_key(self, purpose: str) -> bytes | None:
        """A secret of the store for one purpose; None at a URL, where callers do not get one."""
        return None

    @abstractmethod
    def close(self) -> Any:
        """Closes what all transports to the same store share."""

    def as_principal(self, principal: Principal) -> Self:
        """The same for another principal."""
        other = copy.copy(self)
        other.principal = principal
        return other


class OverTransport:
    """What a handle has, whether its answers are awaited or not."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    @property
    def principal(self) -> Principal:
        """Who asks, or for whom agents act."""
        return self.transport.principal

    def as_principal(self, principal: Principal) -> Self:
        """The same, as this principal sees it."""
        handle = copy.copy(self)
        handle.transport = self.transport.as_principal(principal)
        return handle


class OverStore(MemoryOperations, StoreOperations, OverTransport):
    """What `Store` and `AsyncAlcove` have in common."""

    def as_user(self, user_id: str, *, roles: Iterable[str] = ()) -> Self:
        """The same store, as this user sees it; over a URL, only a trusted API key may name them."""
        return self.as_principal(self.transport.user(user_id, roles))


class OverAgents(
    AgentOperations, SessionOperations, KnowledgeOperations, ChatOperations, ChatStreaming, OverTransport
):
    """What `AgentsHandle` and `AsyncAgentsHandle` have in common."""

    keep_sessions = SessionOperations.prune_sessions  # its name in earlier versions
    agent = AgentOperations.spec  # its name in earlier versions

    def as_user(self, user_id: str, *, groups: Iterable[str] = ()) -> Self:
        """The same agents, acting for this user, who is in these groups."""
        return self.as_principal(Principal(user_id, claims={"sub": user_id, "groups": [*groups]}))


class AdminHandle(AdminOperations, FileOperations, OverTransport, Handle):
    """Operating a store: what is held of whom, policies, settings, keys, figures, the audit log."""


class ApiKeysHandle(OverTransport, Handle):
    """The API keys of a store."""

    create = AdminOperations.create_api_key
    list = AdminOperations.list_api_keys
    revoke = AdminOperations.revoke_api_key


class MemoriesHandle(MemoryOperations, OverTransport, Handle):
    """The memories of a store, as a principal has them without an agent."""


class AgentsHandle(OverAgents, Handle):
    """The agents of a spec file or of a server, with the principal given once."""

    def of(self, name: str, *, session_id: str = SESSION) -> AgentHandle:
        """One of these agents, in one conversation."""
        return AgentHandle(self, name, session_id)

    def call(
        self,
        agent: str,
        tool: str,
        arguments: ToolArguments = None,
        /,
        *,
        session_id: str | None = None,
        team: str | None = None,
        instances: Mapping[str, str] | None = None,
        **more_arguments: Any,
    ) -> Answer:
        """Runs one of an agent's tools; returns a structured result, and text for the model.

        `arguments`: those of the tool, as an object or as JSON; you can also pass them by keyword.
        `session_id`, `team`, `instances` (ids of runs, by kind): where the call is made.
        """
        parsed = parse_arguments(arguments, more_arguments)
        return self.call_with(agent, tool, parsed, session_id=session_id, team=team, instances=instances)

    @property
    def memories(self) -> MemoriesHandle:
        """The store's memories, for the same principal: what is theirs, in whichever room."""
        return MemoriesHandle(self.transport)


class Store(OverStore, Handle):
    """Memory, opened for one principal: in a file (`Alcove`) or behind a URL (`Remote`). Thread-safe.

    Close it, or use it with `with`. Most of its methods are the operations of `MemoryOperations`.
    """

    @property
    def admin(self) -> AdminHandle:
        """Operating this store: what is held of whom, policies, settings, keys, figures, the audit log."""
        return AdminHandle(self.transport)

    def agents(self, specs: Specs | None = None, *, llm: LLM | None = None) -> AgentsHandle:
        """The agents and teams of some specs, or of the server, at work for this principal.

        `specs`: for a file: where specs are, or what they say as a mapping. A server has its own.
        `llm`: the model that they talk with: `URL#MODEL`, settings, or a provider of your own; without, the
        one that `ALCOVE_LLM_URL` and its like name. A server has its own.
        """
        return AgentsHandle(self.transport.agents(specs, llm))

    def agent(
        self, name: str, *, session_id: str = SESSION, specs: Specs | None = None, llm: LLM | None = None
    ) -> AgentHandle:
        """One agent at work for this principal in one conversation.

        `specs`, `llm`: as for `agents`. In a file, and at a server that was started without any, an agent
        needs no spec: it then remembers conversations and what it is told to remember for good.
        """
        return AgentHandle(AgentsHandle(self.transport.agent(specs, llm)), name, session_id)

    def close(self) -> None:
        """Closes the store, for every handle over it."""
        self.transport.close()

    # What `admin` has, too, because many look for it here

    @property
    def api_keys(self) -> ApiKeysHandle:
        """The API keys of this store; admins only."""
        return ApiKeysHandle(self.transport)

    wipe = AdminOperations.wipe
    rotate_keys = AdminOperations.rotate_keys
    doctor = AdminOperations.doctor
    reload_policy = FileOperations.reload_policy

    def backup(self, to: str | os.PathLike[str]) -> Iterator[Progress[BackedUp]]:
        """Copies the store into one new file while others use it, step by step, and verifies the copy."""
        return self.admin.backup(Path(to))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
