"""The handles of a store, wherever it is: its memories, its administration and its agents."""

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
from alcove.client.agent import DEFAULT_SESSION, AgentHandle, ToolArguments, parse_arguments
from alcove.client.open_store import FileOperations, Specs, StoreOperations
from alcove.core.principal import Principal
from alcove.llm import LLM
from alcove.upkeep.backup import BackedUp, Progress


class Transport(ABC):
    """Performs operations for one principal, by services in this process or by a server."""

    principal: Principal

    @abstractmethod
    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]:
        """The function that performs an operation; an `AsyncHandle` awaits it or iterates over it."""

    @abstractmethod
    def user(self, user_id: str, roles: Iterable[str]) -> Principal:
        """The principal of a user."""

    @abstractmethod
    def agents(self, specs: Specs | None, llm: LLM | None) -> Self:
        """A transport with the operations of these agents, whose chats use the model `llm`."""

    def agent(self, specs: Specs | None, llm: LLM | None) -> Self:
        """A transport with the operations of agents that need no spec."""
        return self.agents(specs, llm)

    def derive_key(self, purpose: str) -> bytes | None:
        """A secret of the store for one purpose; None at a URL: a server reveals none."""
        return None

    @abstractmethod
    def close(self) -> Any:
        """Closes the store, for every transport to it."""

    def as_principal(self, principal: Principal) -> Self:
        """A copy for another principal."""
        other = copy.copy(self)
        other.principal = principal
        return other


class BaseHandle:
    """The part that blocking and awaited handles share: a transport and its principal."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    @property
    def principal(self) -> Principal:
        """The user who calls, or for whom agents act."""
        return self.transport.principal

    def as_principal(self, principal: Principal) -> Self:
        """A handle of the same kind for another principal."""
        handle = copy.copy(self)
        handle.transport = self.transport.as_principal(principal)
        return handle


class BaseStore(MemoryOperations, StoreOperations, BaseHandle):
    """The part that `Store` and `AsyncAlcove` share."""

    def as_user(self, user_id: str, *, roles: Iterable[str] = ()) -> Self:
        """The same store for this user; over a URL, only a trusted API key may name one."""
        return self.as_principal(self.transport.user(user_id, roles))


class BaseAgents(
    AgentOperations, SessionOperations, KnowledgeOperations, ChatOperations, ChatStreaming, BaseHandle
):
    """The part that `AgentsHandle` and `AsyncAgentsHandle` share."""

    keep_sessions = SessionOperations.prune_sessions  # its name in earlier versions
    agent = AgentOperations.spec  # its name in earlier versions

    def as_user(self, user_id: str, *, groups: Iterable[str] = ()) -> Self:
        """The same agents for this user, who is a member of these groups."""
        return self.as_principal(Principal(user_id, claims={"sub": user_id, "groups": [*groups]}))


class AdminHandle(AdminOperations, FileOperations, BaseHandle, Handle):
    """Administration of a store: personal data, policies, settings, keys, statistics, audit log."""


class ApiKeysHandle(BaseHandle, Handle):
    """The API keys of a store."""

    create = AdminOperations.create_api_key
    list = AdminOperations.list_api_keys
    revoke = AdminOperations.revoke_api_key


class MemoriesHandle(MemoryOperations, BaseHandle, Handle):
    """The memories of a principal, without an agent."""


class AgentsHandle(BaseAgents, Handle):
    """The agents of a spec file or of a server, for one principal."""

    def of(self, name: str, *, session_id: str = DEFAULT_SESSION) -> AgentHandle:
        """One of these agents in one conversation."""
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
        tool_arguments = parse_arguments(arguments, more_arguments)
        return self.call_with(
            agent, tool, tool_arguments, session_id=session_id, team=team, instances=instances
        )

    @property
    def memories(self) -> MemoriesHandle:
        """The store's memories for the same principal, in every room."""
        return MemoriesHandle(self.transport)


class Store(BaseStore, Handle):
    """A store opened for one principal: in a file (`Alcove`) or behind a URL (`Remote`). Thread-safe.

    Close it, or use it with `with`. Most of its methods are the operations of `MemoryOperations`.
    """

    @property
    def admin(self) -> AdminHandle:
        """Administration of this store: personal data, policies, settings, keys, statistics, audit log."""
        return AdminHandle(self.transport)

    def agents(self, specs: Specs | None = None, *, llm: LLM | None = None) -> AgentsHandle:
        """The agents and teams of some specs, or of the server, for this principal.

        `specs`: for a file: the path of the specs, or their content as a mapping. A server has its own.
        `llm`: the model for chats: `URL#MODEL`, settings, or a provider of your own; by default the one that
        `ALCOVE_LLM_URL` and the related variables name. A server has its own.
        """
        return AgentsHandle(self.transport.agents(specs, llm))

    def agent(
        self,
        name: str,
        *,
        session_id: str = DEFAULT_SESSION,
        specs: Specs | None = None,
        llm: LLM | None = None,
    ) -> AgentHandle:
        """One agent for this principal in one conversation.

        `specs`, `llm`: as for `agents`. In a file, and at a server that was started without specs, an agent
        needs none: it then has conversations and long-term memories.
        """
        return AgentHandle(AgentsHandle(self.transport.agent(specs, llm)), name, session_id)

    def close(self) -> None:
        """Closes the store, for every handle over it."""
        self.transport.close()

    # Also in `admin`; many callers look for them here

    @property
    def api_keys(self) -> ApiKeysHandle:
        """The API keys of this store; admins only."""
        return ApiKeysHandle(self.transport)

    wipe = AdminOperations.wipe
    rotate_keys = AdminOperations.rotate_keys
    doctor = AdminOperations.doctor
    reload_policy = FileOperations.reload_policy

    def backup(self, to: str | os.PathLike[str]) -> Iterator[Progress[BackedUp]]:
        """Copies the store into a new file while it is in use, yields the progress, and verifies the copy."""
        return self.admin.backup(Path(to))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
