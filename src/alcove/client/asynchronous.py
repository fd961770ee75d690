"""`AsyncAlcove`: a store in a file or at a URL, for programs with an event loop."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from alcove.agents.tools import Answer
from alcove.api.operation import AsyncHandle, Operation
from alcove.api.operations import AdminOperations, AgentOperations, MemoryOperations
from alcove.client import SCHEMES
from alcove.client.http import Server
from alcove.client.remote import AT_ONCE, AsyncHttpTransport, AwaitedConnections, named
from alcove.core.cancellation import Cancellation
from alcove.core.errors import Unavailable
from alcove.core.principal import Principal
from alcove.upkeep.backup import BackedUp, Progress
from alcove.upkeep.transfer import File, Imports

if TYPE_CHECKING:
    from alcove.client.embedded import Alcove, LocalTransport
    from alcove.client.remote import HttpTransport
    from alcove.core.settings import Settings
    from alcove.search.embedders import Embedder

R = TypeVar("R")
_END = object()


class ThreadTransport:
    """Operations of a store in this process, each call in one of a few threads."""

    def __init__(
        self, store: Alcove, threads: ThreadPoolExecutor, transport: LocalTransport | HttpTransport
    ) -> None:
        """`transport`: the store's own, or that of agents at work on it."""
        self._store = store
        self._threads = threads
        self._transport = transport

    @property
    def principal(self) -> Principal:
        return self._transport.principal

    def as_principal(self, principal: Principal) -> ThreadTransport:
        store, transport = self._store.as_principal(principal), self._transport.as_principal(principal)
        return ThreadTransport(store, self._threads, transport)

    def as_user(self, user_id: str, roles: Iterable[str]) -> ThreadTransport:
        return self.as_principal(self._store.as_user(user_id, roles=roles).principal)

    def agents(self, specs: str | os.PathLike[str] | None) -> ThreadTransport:
        """How the operations of these agents are done."""
        return ThreadTransport(self._store, self._threads, self._store.agents(specs).transport)

    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]:
        """A function that gives what is to be awaited, or iterated over, for the answer of an operation."""
        do = self._transport.bound(operation)
        if operation.streams:
            return lambda *args, **named: self.pieces(partial(do, *args, **named))
        return partial(self._done, do)

    async def _done(self, do: Callable[..., Any], *args: Any, **named: Any) -> Any:
        def call() -> Any:
            result = do(*args, **named)
            return iter([*result]) if isinstance(result, Iterator) else result

        return await self.run(call)

    async def run(self, call: Callable[[], R], threads: ThreadPoolExecutor | None = None) -> R:
        """Does something in a thread; it is told to stop when nobody waits for it any more."""
        work = Cancellation()
        try:
            done = asyncio.get_running_loop().run_in_executor(threads or self._threads, work.run, call)
        except RuntimeError:  # there are no threads any more
            raise Unavailable("the store has been closed") from None
        try:
            return await done
        except asyncio.CancelledError:
            work.cancelled = True
            raise

    async def pieces(self, begin: Callable[[], Iterator[R]]) -> AsyncIterator[R]:
        """What an iterator gives, each piece of it waited for in a thread of its own.

        It may wait for what somebody else has to write, who needs one of the others.
        """
        pieces = await self.run(begin)
        thread = ThreadPoolExecutor(1, thread_name_prefix="alcove-stream")
        try:
            while (piece := await self.run(lambda: next(pieces, _END), thread)) is not _END:
                yield piece  # type: ignore[misc]
        finally:
            thread.shutdown(wait=False)

    def backup(self, to: Path) -> AsyncIterator[Progress[BackedUp]]:
        return self.pieces(lambda: self._transport.backup(to))

    async def only_here(self, name: str) -> Any:
        return await self.run(self._transport.only_here(name))

    async def import_memories(self, lines: File | Iterable[bytes], *, wait_for_index: bool) -> Imports:
        return await self.run(partial(self._store.import_memories, lines, wait_for_index=wait_for_index))

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)  # calls made before are done first
        await asyncio.to_thread(self._store.close)


class AsyncAdminHandle(AdminOperations, AsyncHandle):
    """Operating a store: what is held of whom, policies, settings, keys, figures, the audit log."""

    def __init__(self, transport: ThreadTransport | AsyncHttpTransport) -> None:
        self.transport: ThreadTransport | AsyncHttpTransport = transport

    def backup(self, to: Path) -> AsyncIterator[Progress[BackedUp]]:
        """Copies the store into one new file while others use it, step by step, and verifies the copy."""
        return self.transport.backup(to)

    async def reload_policy(self) -> None:
        """Reads the policy folder again; a broken bundle raises and leaves the old one active."""
        await self.transport.only_here("reload_policy")


class AsyncAgentsHandle(AgentOperations, AsyncHandle):
    """The agents of a spec file or of a server, with the principal given once."""

    def __init__(self, transport: ThreadTransport | AsyncHttpTransport) -> None:
        self.transport: ThreadTransport | AsyncHttpTransport = transport

    def as_user(self, user_id: str, *, groups: Iterable[str] = ()) -> AsyncAgentsHandle:
        """The same agents, acting for this user, who is in these groups."""
        who = Principal(user_id, claims={"sub": user_id, "groups": [*groups]})
        return AsyncAgentsHandle(self.transport.as_principal(who))

    async def call(
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
        """Runs one of an agent's tools; see `AgentsHandle.call`."""
        return await self.call_with(
            agent, tool, arguments, session_id=session_id, team=team, instances=instances or {}
        )


class AsyncAlcove(MemoryOperations, AsyncHandle):
    """Memory in a file or behind a URL, opened for one principal; its methods are awaited.

    Close it, or use it with `async with`, on one event loop. Its methods are the operations that `Store` has,
    too; what operates the store is `admin`.
    """

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
    ) -> None:
        """Opens the store; the arguments are those of `alcove.connect`."""
        self.transport: ThreadTransport | AsyncHttpTransport
        if isinstance(at, str) and at.lower().startswith(SCHEMES):
            server = Server(at, token, api_key, timeout, retries)
            import httpx  # noqa: PLC0415  an extra, which the server has found there

            connections = AwaitedConnections(httpx.AsyncClient(limits=server.limits))
            self.transport = AsyncHttpTransport(server, connections, named(user))
        else:
            from alcove.client.embedded import Alcove  # noqa: PLC0415  it brings the whole store along

            store = Alcove(at, settings=settings, embedder=embedder)
            store = store if user is None else store.as_user(user)
            threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="alcove-async")
            self.transport = ThreadTransport(store, threads, store.transport)

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self.transport.principal

    @property
    def admin(self) -> AsyncAdminHandle:
        """Operating this store: what is held of whom, policies, settings, keys, figures, the audit log."""
        return AsyncAdminHandle(self.transport)

    def agents(self, specs: str | os.PathLike[str] | None = None) -> AsyncAgentsHandle:
        """The agents and teams of a spec file or folder, or of the server, at work for this principal."""
        return AsyncAgentsHandle(self.transport.agents(specs))

    def as_user(self, user_id: str, *, roles: Iterable[str] = ()) -> Self:
        """The same store, as this user sees it; over a URL, only a trusted API key may name them."""
        return self._over(self.transport.as_user(user_id, roles))

    def as_principal(self, principal: Principal) -> Self:
        """The same store, as this principal sees it."""
        return self._over(self.transport.as_principal(principal))

    def _over(self, transport: ThreadTransport | AsyncHttpTransport) -> Self:
        handle = copy.copy(self)
        handle.transport = transport
        return handle

    async def import_memories(
        self, lines: File | Iterable[bytes], *, wait_for_index: bool = False
    ) -> Imports:
        """Writes those of the lines of an export, or of an open file, that differ from what is there."""
        return await self.transport.import_memories(lines, wait_for_index=wait_for_index)

    async def close(self) -> None:
        """Closes the store, for every handle over it."""
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
