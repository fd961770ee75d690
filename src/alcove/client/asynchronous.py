"""`AsyncAlcove`: a store in a file or at a URL, for programs with an event loop."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from alcove.agents.tools import Answer
from alcove.api.operation import AsyncHandle, Operation, Streaming
from alcove.api.operations import EVENTS, AdminOperations, AgentOperations, MemoryOperations
from alcove.client import SCHEMES
from alcove.client.http import (
    BACKUP,
    BEFORE_RECONNECTING,
    HttpRequest,
    Lines,
    SentEvents,
    Server,
    pieces_sent,
    received,
)
from alcove.client.remote import checked_roles, server_at
from alcove.core.cancellation import Cancellation
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound, Unavailable
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.upkeep.backup import BackedUp, Partial, Progress
from alcove.upkeep.transfer import File, Imports, pieces_of

if TYPE_CHECKING:
    import httpx

    from alcove.client.embedded import Alcove, LocalTransport
    from alcove.core.settings import Settings
    from alcove.search.embedders import Embedder

P = ParamSpec("P")
R = TypeVar("R")
_AT_ONCE = 32
"""Calls at once; others wait for their turn, because a queue in httpx costs the square of its length."""
_END = object()


class ThreadTransport:
    """Operations of a store in this process, each call in one of a few threads."""

    def __init__(self, store: Alcove, transport: LocalTransport, threads: ThreadPoolExecutor) -> None:
        self.store = store
        self._transport = transport
        self._threads = threads

    @property
    def principal(self) -> Principal:
        return self._transport.principal

    def as_principal(self, principal: Principal) -> ThreadTransport:
        return ThreadTransport(
            self.store.as_principal(principal), self._transport.as_principal(principal), self._threads
        )

    def on(self, transport: LocalTransport) -> ThreadTransport:
        """The same threads for another service of the store."""
        return ThreadTransport(self.store, transport, self._threads)

    def bound(self, operation: Operation[P, R]) -> Callable[P, Awaitable[R]]:
        return partial(self._done, operation)

    async def _done(self, operation: Operation[..., R], *args: Any, **named: Any) -> R:
        def call() -> Any:
            result = self._transport.bound(operation)(*args, **named)
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

    def streaming(self, operation: Streaming[P, R]) -> Callable[P, AsyncIterator[R]]:
        return lambda *args, **named: self.pieces(
            partial(self._transport.streaming(operation), *args, **named)
        )

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
        return await self.run(partial(self.store.import_memories, lines, wait_for_index=wait_for_index))

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)  # calls made before are done first
        await asyncio.to_thread(self.store.close)


class AsyncHttpTransport:
    """Operations done by a server; connections are kept."""

    def __init__(
        self, server: Server, client: httpx.AsyncClient, principal: Principal, turns: asyncio.Semaphore
    ) -> None:
        self.server = server
        self._client = client
        self.principal = principal
        self._turns = turns

    def as_principal(self, principal: Principal) -> AsyncHttpTransport:
        return AsyncHttpTransport(self.server, self._client, principal, self._turns)

    def bound(self, operation: Operation[P, R]) -> Callable[P, Awaitable[R]]:
        return partial(self._perform, operation)

    async def _perform(self, operation: Operation[..., R], *args: Any, **named: Any) -> R:
        asked, arguments = self.server.asked(operation, args, named)
        try:
            return self.server.meant(operation, await self.call(asked), arguments)
        except NotFound:
            if operation.absent is None:
                raise
            return None  # type: ignore[return-value]

    async def call(self, asked: HttpRequest) -> bytes:
        """One request and its answer, sent again where that is safe and of use."""
        tries = 0
        while True:
            try:
                async with self._turns, self._sent(asked) as response:
                    return await response.aread()
            except AlcoveError as error:
                await asyncio.sleep(self.server.pause(asked, error, tries))
                tries += 1

    @asynccontextmanager
    async def _sent(self, asked: HttpRequest) -> AsyncIterator[httpx.Response]:
        """One request, whose answer is read by the caller."""
        with self.server.errors_translated():
            request = self._client.build_request(**self.server.sending(self.principal, asked))
            response = await self._client.send(request, stream=True)
            try:
                if response.status_code >= 400:
                    raise self.server.error(response.status_code, await response.aread())
                yield response
            finally:
                await response.aclose()

    def streaming(self, operation: Streaming[P, R]) -> Callable[P, AsyncIterator[R]]:
        return partial(self._stream, operation)

    def _stream(self, operation: Streaming[..., R], *args: Any, **named: Any) -> AsyncIterator[R]:
        asked, arguments = self.server.asked(operation, args, named)
        if operation.streams == EVENTS:
            return self._events(asked, operation.piece, arguments["after_cursor"])
        return self._lines(asked, operation.piece)

    async def _lines(self, asked: HttpRequest, kind: type[R]) -> AsyncIterator[R]:
        lines = Lines()
        async with self._sent(asked) as response:
            async for piece in response.aiter_bytes():
                for line in lines.of(piece):
                    yield self.server.line(line, kind)

    async def _events(self, asked: HttpRequest, kind: type[R], last: str | None) -> AsyncIterator[R]:
        """Server-sent events; once there was a connection, a lost one is made again."""
        connected, events = False, SentEvents(last)
        while True:
            asked.headers, lines = events.headers, Lines()
            try:
                async with self._sent(asked) as response:
                    connected = True
                    async for piece in response.aiter_bytes():
                        for line in lines.of(piece):
                            if found := events.data(line):
                                yield self.server.decode(found, kind)
            except Unavailable:
                if not connected:
                    raise
            await asyncio.sleep(BEFORE_RECONNECTING)

    async def import_memories(self, lines: File | Iterable[bytes], *, wait_for_index: bool) -> Imports:
        async def pieces() -> AsyncIterator[bytes]:
            given = pieces_of(lines)
            while piece := await asyncio.to_thread(next, given, b""):  # it may wait for a disk
                yield piece

        asked = pieces_sent(pieces(), wait_for_index=wait_for_index)
        return self.server.decode(await self.call(asked), Imports)

    async def backup(self, to: Path) -> AsyncIterator[Progress[BackedUp]]:
        with Partial(to) as partial:
            done = 0
            async with self._sent(BACKUP) as response:
                total = int(response.headers.get("content-length", 0))
                async for chunk in response.aiter_raw():
                    partial.write(chunk)
                    done += len(chunk)
                    yield Progress("copying", done, total)
            yield Progress("done", 1, 1, await asyncio.to_thread(received, partial, to, done))

    async def only_here(self, name: str) -> Any:
        raise InvalidRequest("at", f"the store's file: {name} is not done over a URL")

    async def close(self) -> None:
        await self._client.aclose()


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
            server = server_at(at, token, api_key, timeout, retries)
            import httpx  # noqa: PLC0415  an extra, which the server has found there

            who = DEFAULT_PRINCIPAL if user is None else Principal(user)
            client = httpx.AsyncClient(limits=server.limits)
            self.transport = AsyncHttpTransport(server, client, who, asyncio.Semaphore(_AT_ONCE))
        else:
            from alcove.client.embedded import Alcove  # noqa: PLC0415  it brings the whole store along

            store = Alcove(at, settings=settings, embedder=embedder)
            store = store if user is None else store.as_user(user)
            threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="alcove-async")
            self.transport = ThreadTransport(store, store.transport, threads)

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self.transport.principal

    @property
    def admin(self) -> AsyncAdminHandle:
        """Operating this store: what is held of whom, policies, settings, keys, figures, the audit log."""
        transport = self.transport
        return AsyncAdminHandle(
            transport.on(transport.store.admin_transport)
            if isinstance(transport, ThreadTransport)
            else transport
        )

    def agents(self, specs: str | os.PathLike[str] | None = None) -> AsyncAgentsHandle:
        """The agents and teams of a spec file or folder, or of the server, at work for this principal."""
        transport = self.transport
        if isinstance(transport, ThreadTransport):
            return AsyncAgentsHandle(transport.on(transport.store.agents_transport(specs)))
        if specs is not None:
            raise InvalidRequest("specs", "none: the server has its own")
        return AsyncAgentsHandle(transport)

    def as_user(self, user_id: str, *, roles: Iterable[str] = ()) -> Self:
        """The same store, as this user sees it; over a URL, only a trusted API key may name them."""
        if isinstance(self.transport, ThreadTransport):
            return self.as_principal(self.transport.store.as_user(user_id, roles=roles).principal)
        checked_roles(roles)
        return self.as_principal(Principal(user_id))

    def as_principal(self, principal: Principal) -> Self:
        """The same store, as this principal sees it."""
        handle = copy.copy(self)
        handle.transport = self.transport.as_principal(principal)
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
