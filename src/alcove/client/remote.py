"""`Remote`: a store behind a server.

What is said to a server and how its answers are taken stands here once, as coroutines that an event loop
awaits, or a thread is blocked by (`core/waiting.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from msgspec import structs

from alcove.api.operation import Operation, Streaming
from alcove.api.operations import EVENTS, NDJSON
from alcove.client.http import HttpRequest, Server
from alcove.client.open_store import ONLY_HERE, Specs
from alcove.client.store import Store, Transport
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound, Unavailable
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.core.waiting import Awaiting, Blocking, Waiting, at_once, in_turn
from alcove.engine.sqlite.backup_file import Copy
from alcove.llm import LLM
from alcove.upkeep.backup import BackedUp, Partial, Progress
from alcove.upkeep.transfer import File, Imports, pieces_of

if TYPE_CHECKING:
    import httpx

R = TypeVar("R")
_BEFORE_RECONNECTING = 0.5
AT_ONCE = 32
"""Calls at once; others wait for their turn, because a queue in httpx costs the square of its length."""


class AsyncHttpTransport(Transport):
    """Operations done by a server, as coroutines that wait in either way."""

    def __init__(self, server: Server, client: Any, waiting: Waiting, principal: Principal) -> None:
        """`client`: httpx's, of the kind that waits in this way."""
        self.server = server
        self._client, self._waiting = client, waiting
        self._turns = waiting.places(AT_ONCE) if isinstance(waiting, Awaiting) else nullcontext()
        self.principal = principal

    def user(self, user_id: str, roles: Iterable[str]) -> Principal:
        if [*roles]:
            raise InvalidRequest("roles", "none: the server knows them from the API key")
        return Principal(user_id)

    def agents(self, specs: Specs | None, llm: LLM | None) -> Self:
        for name, given in (("specs", specs), ("llm", llm)):
            if given is not None:
                raise InvalidRequest(name, "none: the server has its own")
        return self

    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]:
        if operation.route == ONLY_HERE:
            return partial(_refused, operation.name)
        if operation.name in ("backup", "import_memories"):  # they carry a file, and no record
            asked = HttpRequest(method=operation.method, path=operation.path, patient=True)
            return partial(getattr(self, operation.name), asked)
        if isinstance(operation, Streaming):
            return partial(self._stream, operation)
        return partial(self._perform, operation)

    async def _perform(self, operation: Operation[..., R], /, *args: Any, **named: Any) -> R | None:
        asked, arguments = self.server.asked(operation, args, named)
        try:
            answer = self.server.decode(await self.call(asked), operation.answer or type(None))
            return operation.to_result(answer, arguments)
        except NotFound:
            if operation.not_found is None:
                raise
            return None

    async def call(self, asked: HttpRequest) -> bytes:
        """One request and its answer, sent again where that is safe and of use."""
        tries = 0
        while True:
            try:
                async with self._turns, self._sent(asked) as response:
                    return await self._read(response)
            except AlcoveError as error:
                await self._waiting.sleep(self.server.pause(asked, error, tries))
                tries += 1

    @asynccontextmanager
    async def _sent(self, asked: HttpRequest) -> AsyncIterator[httpx.Response]:
        """One request, whose answer is read by the caller."""
        with self.server.errors_translated():
            request = self.server.sending(self.principal, asked)
            async with self._waiting.sent(self._client.stream(**request)) as response:
                if response.status_code >= 400:
                    raise self.server.error(response.status_code, await self._read(response))
                yield response

    async def _read(self, response: httpx.Response) -> bytes:
        return b"".join([piece async for piece in self._waiting.bytes_of(response)])

    def _stream(self, operation: Streaming[..., R], /, *args: Any, **named: Any) -> AsyncIterator[R]:
        asked, arguments = self.server.asked(operation, args, named)
        if operation.method == "POST":
            return self._answer(asked, operation.item)
        if operation.stream_type == EVENTS:
            return self._events(asked, operation.item, arguments["after_cursor"])
        return self._records(asked, operation.item)

    async def _lines(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The lines of an answer, ended by a line feed and by nothing else that a text may hold."""
        begun = bytearray()
        async for piece in self._waiting.bytes_of(response):
            *ended, last = piece.split(b"\n")
            for end in ended:
                yield bytes(begun + end)
                begun.clear()
            begun += last

    async def _records(self, asked: HttpRequest, kind: type[R]) -> AsyncIterator[R]:
        async with self._sent(asked) as response:
            async for line in self._lines(response):
                if line.startswith(b'{"code":'):  # the answer ended before its end, and says why
                    raise self.server.error(200, line)
                yield self.server.decode(line, kind)

    async def _events(self, asked: HttpRequest, kind: type[R], last: str | None) -> AsyncIterator[R]:
        """Server-sent events after the `last`; once there was a connection, a lost one is made again."""
        connected = special = False
        while True:
            asked.headers = {} if last is None else {"Last-Event-ID": last}
            try:
                async with self._sent(asked) as response:
                    connected = True
                    async for line in self._lines(response):
                        name, _, text = line.partition(b": ")
                        if name == b"id":
                            last = text.decode()
                        elif name == b"data" and not special:
                            yield self.server.decode(text, kind)
                        special = name == b"event"  # about the stream, and not one of its events
            except Unavailable:
                if not connected:
                    raise
            await self._waiting.sleep(_BEFORE_RECONNECTING)

    async def _answer(self, asked: HttpRequest, kind: type[R]) -> AsyncIterator[R]:
        """Server-sent events that are the answer to one request, and end with it."""
        asked.headers |= {"Accept": EVENTS}
        async with self._sent(asked) as response:
            failed = False
            async for line in self._lines(response):
                name, _, text = line.partition(b": ")
                if name == b"data" and failed:
                    raise self.server.error(200, text)
                if name == b"data":
                    yield self.server.decode(text, kind)
                failed = name == b"event" and text == b"error"

    async def import_memories(
        self, asked: HttpRequest, lines: File | Iterable[bytes], *, wait_for_index: bool = False
    ) -> Imports:
        params = {"wait_for_index": "true"} if wait_for_index else {}
        content, headers = self._waiting.body(pieces_of(lines)), {"Content-Type": NDJSON}
        asked = structs.replace(asked, params=params, content=content, headers=headers)
        return self.server.decode(await self.call(asked), Imports)

    async def backup(self, asked: HttpRequest, to: Path) -> AsyncGenerator[Progress[BackedUp], None]:
        """The server verifies the values, which only it can open; what arrived is checked again here."""
        with Partial(to) as partial:
            done = 0
            async with self._sent(asked) as response:
                total = int(response.headers.get("content-length", 0))
                async for chunk in self._waiting.bytes_of(response):
                    partial.write(chunk)
                    done += len(chunk)
                    yield Progress("copying", done, total)
            whole = await self._waiting.run(lambda: _received(partial, to, done))
            yield Progress("done", 1, 1, whole)

    def close(self) -> Any:
        return self._waiting.close(self._client)


def _received(partial: Partial, to: Path, size: int) -> BackedUp:
    """A backup that has come whole, once it was looked through and is at its place."""
    partial.sync()
    with Copy(partial.path) as copy:
        copy.refuse_damaged()
        held = copy.summary()
    partial.complete()
    return BackedUp(to, size, held.memories, held.versions, held.last_seq, 0)


def _refused(name: str, *_: object, **__: object) -> NoReturn:
    """Stands for what only a store in this process does."""
    raise InvalidRequest("at", f"the store's file: {name} is not done over a URL")


class HttpTransport(AsyncHttpTransport):
    """The same for threads, which are given answers and need not await them."""

    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]:
        begin, finish = super().bound(operation), in_turn if isinstance(operation, Streaming) else at_once
        return lambda *args, **named: finish(begin(*args, **named))

    def close(self) -> None:
        at_once(super().close())


class Remote(Store):
    """A store at a URL, with the methods, records and errors of one in this process.

    Who calls is what the server makes of the token or API key; a trusted API key names the user, which
    `as_user` does, too. What was lost on its way is sent again where that is safe.
    """

    transport: HttpTransport

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
        """Opens it.

        `token`, `api_key`: the credentials; `user`: whom a trusted key acts for.
        `timeout`: seconds that an answer may take. `retries`: how often a request is sent again.
        """
        server = Server(url, token, api_key, timeout, retries)
        client = server.httpx.Client(**server.options)
        self.transport = HttpTransport(server, client, Blocking(), named(user))

    def __repr__(self) -> str:
        return f"<Remote at {self.transport.server.url}>"


def named(user: str | None) -> Principal:
    """Whom a new handle acts for at a server: somebody only where they are named."""
    return DEFAULT_PRINCIPAL if user is None else Principal(user)
