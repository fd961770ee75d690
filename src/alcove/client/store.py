"""A store as one principal has it, wherever it is, and its two parts: operating it, and its agents."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from alcove.agents.tools import Answer
from alcove.api.operation import Handle
from alcove.api.operations import AdminOperations, AgentOperations, MemoryOperations
from alcove.core.principal import Principal
from alcove.core.records import Swept
from alcove.upkeep.backup import BackedUp, Progress
from alcove.upkeep.transfer import File, Imports

if TYPE_CHECKING:
    from alcove.client.embedded import LocalTransport
    from alcove.client.remote import HttpTransport


class AdminHandle(AdminOperations, Handle):
    """Operating a store: what is held of whom, policies, settings, keys, figures, the audit log."""

    def __init__(self, transport: LocalTransport | HttpTransport) -> None:
        self.transport: LocalTransport | HttpTransport = transport

    def backup(self, to: Path) -> Iterator[Progress[BackedUp]]:
        """Copies the store into one new file while others use it, step by step, and verifies the copy."""
        return self.transport.backup(to)

    def reindex(self) -> Iterator[int]:
        """Embeds every text with the embedder that is configured now; how many are done so far."""
        return self.transport.only_here("reindex")()  # type: ignore[no-any-return]

    def reload_policy(self) -> None:
        """Reads the policy folder again; a broken bundle raises and leaves the old one active."""
        self.transport.only_here("reload_policy")()


class ApiKeysHandle(Handle):
    """The API keys of a store."""

    def __init__(self, transport: LocalTransport | HttpTransport) -> None:
        self.transport = transport

    create = AdminOperations.create_api_key
    list = AdminOperations.list_api_keys
    revoke = AdminOperations.revoke_api_key


class AgentsHandle(AgentOperations, Handle):
    """The agents of a spec file or of a server, with the principal given once."""

    def __init__(self, transport: LocalTransport | HttpTransport) -> None:
        self.transport: LocalTransport | HttpTransport = transport

    @property
    def principal(self) -> Principal:
        """For whom the agents act."""
        return self.transport.principal

    def as_user(self, user_id: str, *, groups: Iterable[str] = ()) -> AgentsHandle:
        """The same agents, acting for this user, who is in these groups."""
        who = Principal(user_id, claims={"sub": user_id, "groups": [*groups]})
        return AgentsHandle(self.transport.as_principal(who))

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
        made; everything else is an argument of the tool. `call_with` takes the arguments as a mapping.
        """
        return self.call_with(
            agent, tool, arguments, session_id=session_id, team=team, instances=instances or {}
        )


class Store(MemoryOperations, Handle, ABC):
    """Memory, opened for one principal: in a file (`Alcove`) or behind a URL (`Remote`). Thread-safe.

    Close it, or use it with `with`. Most of its methods are the operations of `MemoryOperations`.
    """

    transport: LocalTransport | HttpTransport

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self.transport.principal

    @property
    def admin(self) -> AdminHandle:
        """Operating this store: what is held of whom, policies, settings, keys, figures, the audit log."""
        return AdminHandle(self.transport)

    @abstractmethod
    def agents(self, specs: str | os.PathLike[str] | None = None) -> AgentsHandle:
        """The agents and teams of a spec file or folder, or of the server, at work for this principal."""

    @abstractmethod
    def as_user(self, user_id: str, *, roles: Iterable[str] = ()) -> Self:
        """The same store, as this user sees it; over a URL, only a trusted API key may name them."""

    def as_principal(self, principal: Principal) -> Self:
        """The same store, as this principal sees it."""
        return self._over(self.transport.as_principal(principal))

    def _over(self, transport: LocalTransport | HttpTransport) -> Self:
        handle = copy.copy(self)
        handle.transport = transport
        return handle

    @abstractmethod
    def import_memories(self, lines: File | Iterable[bytes], *, wait_for_index: bool = False) -> Imports:
        """Writes those of the lines of an export, or of an open file, that differ from what is there.

        With `wait_for_index` it returns when they can be found by meaning, too.
        """

    @abstractmethod
    def sweep(self) -> Swept:
        """Does now what the background sweep does at its interval; not over a URL."""

    @abstractmethod
    def close(self) -> None:
        """Closes the store, for every handle over it."""

    # What `admin` has, too, because many look for it here

    @property
    def api_keys(self) -> ApiKeysHandle:
        """The API keys of this store; admins only."""
        return ApiKeysHandle(self.transport)

    wipe = AdminOperations.wipe
    rotate_keys = AdminOperations.rotate_keys
    doctor = AdminOperations.doctor

    def backup(self, to: str | os.PathLike[str]) -> Iterator[Progress[BackedUp]]:
        """Copies the store into one new file while others use it, step by step, and verifies the copy."""
        return self.admin.backup(Path(to))

    def reload_policy(self) -> None:
        """Reads the policy folder again; a broken bundle raises and leaves the old one active."""
        self.admin.reload_policy()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
