"""`Remote`: a store behind a server. The few lines of I/O exist twice, for threads and for event loops."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec import structs

from alcove.api.operation import Operation, Streaming
from alcove.api.operations import EVENTS, NDJSON
from alcove.client.http import AnswerStream, EventStream, HttpRequest, ResponseStream, Server
from alcove.client.open_store import LOCAL_ROUTE, Specs
from alcove.client.store import Store, Transport
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound, Unavailable
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.engine.sqlite.backup_file import BackupFile
from alcove.llm import LLM
from alcove.upkeep.backup import BackedUp, Partial, Progress
from alcove.upkeep.transfer import File, Imports, pieces_of

if TYPE_CHECKING:
    import httpx

R = TypeVar("R")
_RECONNECT_SECONDS = 0.5
MAX_CALLS = 32
"""Concurrent calls of an event loop: in httpx, the time to queue calls grows with their number squared."""


class HttpTransport(Transport):
    """Operations that a server performs."""

    def __init__(self, server: Server, principal: Principal) -> None:
        self.server = server
        self.principal = principal

    def user(self, user_id: str, roles: Iterable[str]) -> Principal:
        if [*roles]:
            raise InvalidRequest("roles", "none: the server knows them from the API key")
        return Principal(user_id)

    def agents(self, specs: Specs | None, llm: LLM | None) -> Self:
        for name, argument in (("specs", specs), ("llm", llm)):
            if argument is not None:
                raise InvalidRequest(name, "none: the server has its own")
        return self

    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]:
        if operation.route == LOCAL_ROUTE:
            raise InvalidRequest(
                "at", f"the path of the store's file: {operation.name} cannot be done over a URL"
            )
        if operation.name in ("backup", "import_memories"):  # they carry a file instead of a record
            request = HttpRequest(method=operation.method, path=operation.path, unlimited_time=True)
            return partial(getattr(self, operation.name), request)
        if isinstance(operation, Streaming):
            return partial(self._call_stream, operation)
        return partial(self.perform, operation)

    def _call_stream(self, operation: Streaming[..., R], /, *args: Any, **kwargs: Any) -> Any:
        request, arguments = self.server.request(operation, args, kwargs)
        if operation.method == "POST":
            return self.stream(AnswerStream(self.server, request, operation.item, EVENTS))
        if operation.stream_type == EVENTS:
            return self.stream(EventStream(self.server, request, operation.item, arguments["after_cursor"]))
        return self.stream(ResponseStream(self.server, request, operation.item))

    @abstractmethod
    def perform(self, operation: Operation[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Performs an operation and returns its result."""

    @abstractmethod
    def stream(self, stream: ResponseStream[Any]) -> Any:
        """Yields the records of an answer as they arrive."""


class BlockingTransport(HttpTransport):
    """Does the I/O in the thread that calls."""

    def __init__(self, server: Server, client: httpx.Client, principal: Principal) -> None:
        super().__init__(server, principal)
        self._client = client

    def perform(self, operation: Operation[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        request, arguments = self.server.request(operation, args, kwargs)
        try:
            return self.server.result(operation, self.call(request), arguments)
        except NotFound:
            if operation.not_found is None:
                raise
            return None

    def call(self, request: HttpRequest) -> bytes:
        """Sends a request and returns the body of its answer; retries where that is safe and may help."""
        attempts = 0
        while True:
            try:
                with self._response(request) as response:
                    return response.read()
            except AlcoveError as error:
                time.sleep(self.server.pause(request, error, attempts))
                attempts += 1

    @contextmanager
    def _response(self, request: HttpRequest) -> Iterator[httpx.Response]:
        with self.server.translating_errors():
            arguments = self.server.httpx_arguments(self.principal, request)
            with self._client.stream(**arguments) as response:
                if response.status_code >= 400:
                    raise self.server.error(response.status_code, response.read())
                yield response

    def stream(self, stream: ResponseStream[R]) -> Iterator[R]:
        while True:
            try:
                with self._response(stream.request) as response:
                    stream.start()
                    for chunk in response.iter_bytes():
                        yield from stream.feed(chunk)
            except Unavailable:
                if not stream.can_reconnect:
                    raise
            if not stream.can_reconnect:
                return
            time.sleep(_RECONNECT_SECONDS)

    def import_memories(
        self, request: HttpRequest, lines: File | Iterable[bytes], *, wait_for_index: bool = False
    ) -> Imports:
        request = _import_request(request, wait_for_index=wait_for_index)
        return self.server.decode(self.call(structs.replace(request, content=pieces_of(lines))), Imports)

    def backup(self, request: HttpRequest, to: Path) -> Iterator[Progress[BackedUp]]:
        """Downloads a backup. The server has verified its values; the file is checked once more here."""
        with Partial(to) as partial:
            size = 0
            with self._response(request) as response:
                total = int(response.headers.get("content-length", 0))
                for chunk in response.iter_bytes():
                    partial.write(chunk)
                    size += len(chunk)
                    yield Progress("copying", size, total)
            yield Progress("done", 1, 1, _check_backup(partial, to, size))

    def close(self) -> None:
        self._client.close()


class AwaitingTransport(HttpTransport):
    """Does the I/O on an event loop."""

    def __init__(self, server: Server, client: httpx.AsyncClient, principal: Principal) -> None:
        super().__init__(server, principal)
        self._client = client
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self._blocking_client: httpx.Client | None = None

    def blocking(self) -> BlockingTransport:
        """The same operations, in the thread that calls."""
        if self._blocking_client is None:
            self._blocking_client = self.server.httpx.Client(**self.server.options)
        return BlockingTransport(self.server, self._blocking_client, self.principal)

    async def perform(self, operation: Operation[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        request, arguments = self.server.request(operation, args, kwargs)
        try:
            return self.server.result(operation, await self.call(request), arguments)
        except NotFound:
            if operation.not_found is None:
                raise
            return None

    async def call(self, request: HttpRequest) -> bytes:
        """Sends a request and returns the body of its answer; retries where that is safe and may help."""
        attempts = 0
        while True:
            try:
                async with self._calls, self._response(request) as response:
                    return await response.aread()
            except AlcoveError as error:
                await asyncio.sleep(self.server.pause(request, error, attempts))
                attempts += 1

    @asynccontextmanager
    async def _response(self, request: HttpRequest) -> AsyncIterator[httpx.Response]:
        with self.server.translating_errors():
            arguments = self.server.httpx_arguments(self.principal, request)
            async with self._client.stream(**arguments) as response:
                if response.status_code >= 400:
                    raise self.server.error(response.status_code, await response.aread())
                yield response

    async def stream(self, stream: ResponseStream[R]) -> AsyncIterator[R]:
        while True:
            try:
                async with self._response(stream.request) as response:
                    stream.start()
                    async for chunk in response.aiter_bytes():
                        for piece in stream.feed(chunk):
                            yield piece
            except Unavailable:
                if not stream.can_reconnect:
                    raise
            if not stream.can_reconnect:
                return
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def import_memories(
        self, request: HttpRequest, lines: File | Iterable[bytes], *, wait_for_index: bool = False
    ) -> Imports:
        async def content() -> AsyncIterator[bytes]:
            pieces = pieces_of(lines)  # may read from a disk, which blocks
            while piece := await asyncio.to_thread(next, pieces, b""):
                yield piece

        request = _import_request(request, wait_for_index=wait_for_index)
        return self.server.decode(await self.call(structs.replace(request, content=content())), Imports)

    async def backup(self, request: HttpRequest, to: Path) -> AsyncGenerator[Progress[BackedUp], None]:
        """Downloads a backup. The server has verified its values; the file is checked once more here."""
        with Partial(to) as partial:
            size = 0
            async with self._response(request) as response:
                total = int(response.headers.get("content-length", 0))
                async for chunk in response.aiter_bytes():
                    partial.write(chunk)
                    size += len(chunk)
                    yield Progress("copying", size, total)
            yield Progress("done", 1, 1, await asyncio.to_thread(_check_backup, partial, to, size))

    async def close(self) -> None:
        await self._client.aclose()
        if self._blocking_client:
            self._blocking_client.close()


def _import_request(request: HttpRequest, *, wait_for_index: bool) -> HttpRequest:
    params = {"wait_for_index": "true"} if wait_for_index else {}
    return structs.replace(request, params=params, headers={"Content-Type": NDJSON})


def _check_backup(partial: Partial, to: Path, size: int) -> BackedUp:
    """Checks a downloaded backup, and moves it to its final path."""
    partial.sync()
    with BackupFile(partial.path) as copy:
        copy.check_integrity()
        summary = copy.figures()
    partial.complete()
    return BackedUp(to, size, summary.memories, summary.versions, summary.last_seq, 0)


class Remote(Store):
    """A store at a URL, with the methods, records and errors of a store in this process.

    The server learns who you are from the token or API key; with a trusted API key, `user` and `as_user` name
    the user. A lost request is sent again if that is safe.
    """

    transport: BlockingTransport

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        api_key: str | None = None,
        user: str | None = None,
        timeout: float = 60.0,
        retries: int = 2,
    ) -> None:
        """Connects with the first request.

        `token`, `api_key`: your credentials; `user`: the user that a trusted key acts for.
        `timeout`: the seconds that an answer may take. `retries`: how often a lost request is sent again.
        """
        server = Server(url, token, api_key, timeout, retries)
        principal = DEFAULT_PRINCIPAL if user is None else Principal(user)
        self.transport = BlockingTransport(server, server.httpx.Client(**server.options), principal)

    def __repr__(self) -> str:
        return f"<Remote at {self.transport.server.url}>"
