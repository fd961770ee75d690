"""`AsyncAlcove`: a store in a file or at a URL, for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from alcove.agents.tools import Answer
from alcove.api.operation import AsyncHandle, Operation, Streaming
from alcove.api.operations import AdminOperations
from alcove.client import is_url
from alcove.client.agent import DEFAULT_SESSION, AsyncAgentHandle, ToolArguments, parse_arguments
from alcove.client.embedded import Alcove, LocalTransport
from alcove.client.http import Server
from alcove.client.open_store import FileOperations, Specs
from alcove.client.remote import MAX_CALLS, AwaitingTransport, HttpTransport
from alcove.client.store import BaseAgents, BaseHandle, BaseStore, Store
from alcove.core.event_loop import CallThreads
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.core.settings import Settings
from alcove.llm import LLM

if TYPE_CHECKING:
    from alcove.search.embedders import Embedder
    from alcove.search.rerankers import Reranker

R = TypeVar("R")


class ThreadTransport(LocalTransport):
    """Operations of a store in this process, each in one of a pool of threads."""

    def __init__(self, services: Mapping[str, Any], principal: Principal) -> None:
        super().__init__(services, principal)
        self._threads = CallThreads(MAX_CALLS, "alcove-async")

    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]:
        perform = super().bound(operation)
        if isinstance(operation, Streaming):
            return lambda *args, **kwargs: self._threads.iterate(partial(perform, *args, **kwargs))

        def call(*args: Any, **kwargs: Any) -> Any:
            result = perform(*args, **kwargs)
            return iter([*result]) if isinstance(result, Iterator) else result

        return lambda *args, **kwargs: self._threads.run(partial(call, *args, **kwargs))

    def blocking(self) -> LocalTransport:
        """The same operations, in the thread that calls."""
        return LocalTransport(self.services, self.principal)

    async def close(self) -> None:
        await self._threads.close()  # waits for calls in progress
        await asyncio.to_thread(super().close)


def _over_http(server: Server, principal: Principal) -> AwaitingTransport:
    return AwaitingTransport(server, server.httpx.AsyncClient(**server.options), principal)


class AsyncAdminHandle(AdminOperations, FileOperations, BaseHandle, AsyncHandle):
    """Administration of a store: personal data, policies, settings, keys, statistics, audit log."""


class AsyncAgentsHandle(BaseAgents, AsyncHandle):
    """The agents of a spec file or of a server, for one principal."""

    def of(self, name: str, *, session_id: str = DEFAULT_SESSION) -> AsyncAgentHandle:
        """One of these agents in one conversation."""
        return AsyncAgentHandle(self, name, session_id)

    async def call(
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
        """Runs one of an agent's tools, as `AgentsHandle.call` does."""
        tool_arguments = parse_arguments(arguments, more_arguments)
        return await self.call_with(
            agent, tool, tool_arguments, session_id=session_id, team=team, instances=instances
        )


class AsyncAlcove(BaseStore, AsyncHandle):
    """A store in a file or behind a URL, opened for one principal; its methods are awaited.

    Close it, or use it with `async with`, on one event loop. It has the operations that `Store` has; those of
    administrators are in `admin`.
    """

    transport: ThreadTransport | AwaitingTransport

    def __init__(
        self,
        at: str | os.PathLike[str],
        *,
        user: str | None = None,
        token: str | None = None,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int = 2,
        settings: Settings | None = None,
        embedder: str | Embedder | None = "minilm",
        reranker: str | Reranker | None = None,
        vectors: str | None = None,
    ) -> None:
        """Opens the store; the arguments are those of `alcove.connect`."""
        if is_url(at):
            server = Server(str(at), token, api_key, timeout, retries)
            self.transport = _over_http(server, DEFAULT_PRINCIPAL if user is None else Principal(user))
        else:
            store = Alcove(at, settings=settings, embedder=embedder, reranker=reranker, vectors=vectors)
            store = store if user is None else store.as_user(user)
            self.transport = ThreadTransport(store.transport.services, store.principal)

    @classmethod
    def over(cls, store: Store) -> AsyncAlcove:
        """An open store for one event loop; closing either handle closes a store in a file for both."""
        handle, transport = cls.__new__(cls), store.transport
        if isinstance(transport, HttpTransport):
            handle.transport = _over_http(transport.server, store.principal)
        elif isinstance(transport, LocalTransport):
            handle.transport = ThreadTransport(transport.services, store.principal)
        return handle

    def blocking(self) -> Store:
        """The same store for threads and the same principal; closing this handle closes it, too."""
        return Store(self.transport.blocking())

    @property
    def admin(self) -> AsyncAdminHandle:
        """Administration of this store: personal data, policies, settings, keys, statistics, audit log."""
        return AsyncAdminHandle(self.transport)

    def agents(self, specs: Specs | None = None, *, llm: LLM | None = None) -> AsyncAgentsHandle:
        """The agents and teams of some specs, or of the server, as for `Store.agents`."""
        return AsyncAgentsHandle(self.transport.agents(specs, llm))

    def agent(
        self,
        name: str,
        *,
        session_id: str = DEFAULT_SESSION,
        specs: Specs | None = None,
        llm: LLM | None = None,
    ) -> AsyncAgentHandle:
        """One agent in one conversation, as for `Store.agent`."""
        return AsyncAgentHandle(AsyncAgentsHandle(self.transport.agent(specs, llm)), name, session_id)

    async def close(self) -> None:
        """Closes the store, for every handle over it."""
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
