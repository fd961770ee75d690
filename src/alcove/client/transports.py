"""How the operations of a handle are done: by a service in this process, or by a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from alcove.api.operation import Operation, Streaming
from alcove.api.operations import EVENTS
from alcove.client.server import BACKUP, HttpRequest, Lines, SentEvents, Server, pieces_sent
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound, Unavailable
from alcove.core.principal import Principal
from alcove.engine.copying import Copy
from alcove.upkeep.backup import BackedUp, Partial, Progress
from alcove.upkeep.transfer import File, Imports, pieces_of

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
R = TypeVar("R")
BEFORE_RECONNECTING = 0.5


class LocalTransport:
    """Operations done by a service in this process, as one principal."""

    def __init__(self, service: Any, principal: Principal) -> None:
        self._service = service
        self.principal = principal

    def as_principal(self, principal: Principal) -> LocalTransport:
        return LocalTransport(self._service, principal)

    def bound(self, operation: Operation[P, R]) -> Callable[P, R]:
        return partial(getattr(self._service, operation.does.__name__), self.principal)

    def streaming(self, operation: Streaming[P, R]) -> Callable[P, Iterator[R]]:
        return partial(getattr(self._service, operation.does.__name__), self.principal)

    def backup(self, to: Path) -> Iterator[Progress[BackedUp]]:
        return self._service.backup(self.principal, to)  # type: ignore[no-any-return]

    def only_here(self, name: str) -> Callable[..., Any]:
        """A method of the service that no server offers."""
        return partial(getattr(self._service, name), self.principal)


class HttpTransport:
    """Operations done by a server; connections are kept, and shared by threads."""

    def __init__(self, server: Server, client: httpx.Client, principal: Principal) -> None:
        self.server = server
        self._client = client
        self.principal = principal

    def as_principal(self, principal: Principal) -> HttpTransport:
        return HttpTransport(self.server, self._client, principal)

    def bound(self, operation: Operation[P, R]) -> Callable[P, R]:
        return partial(self._perform, operation)

    def _perform(self, operation: Operation[..., R], *args: Any, **named: Any) -> R:
        arguments = bound_arguments(operation, args, named)
        asked = self.server.asked(operation, arguments)
        try:
            return self.server.meant(operation, self.call(asked), arguments)
        except NotFound:
            if operation.absent is None:
                raise
            return None  # type: ignore[return-value]

    def call(self, asked: HttpRequest) -> bytes:
        """One request and its answer, sent again where that is safe and of use."""
        tries = 0
        while True:
            try:
                with self._sent(asked) as response:
                    return response.read()
            except AlcoveError as error:
                time.sleep(self.server.pause(asked, error, tries))
                tries += 1

    @contextmanager
    def _sent(self, asked: HttpRequest) -> Iterator[httpx.Response]:
        """One request, whose answer is read by the caller."""
        with self.server.errors_translated():
            request = self._client.build_request(**self.server.sending(self.principal, asked))
            response = self._client.send(request, stream=True)
            try:
                if response.status_code >= 400:
                    raise self.server.error(response.status_code, response.read())
                yield response
            finally:
                response.close()

    def streaming(self, operation: Streaming[P, R]) -> Callable[P, Iterator[R]]:
        return partial(self._stream, operation)

    def _stream(self, operation: Streaming[..., R], *args: Any, **named: Any) -> Iterator[R]:
        arguments = bound_arguments(operation, args, named)
        asked = self.server.asked(operation, arguments)
        asked.patient = True
        if operation.streams == EVENTS:
            return self._events(asked, operation.piece, arguments["after_cursor"])
        return self._lines(asked, operation.piece)

    def _lines(self, asked: HttpRequest, kind: type[R]) -> Iterator[R]:
        lines = Lines()
        with self._sent(asked) as response:
            for piece in response.iter_bytes():
                for line in lines.of(piece):
                    yield self.server.line(line, kind)

    def _events(self, asked: HttpRequest, kind: type[R], last: str | None) -> Iterator[R]:
        """Server-sent events; once there was a connection, a lost one is made again."""
        connected, events = False, SentEvents(last)
        while True:
            asked.headers, lines = events.headers, Lines()
            try:
                with self._sent(asked) as response:
                    connected = True
                    for piece in response.iter_bytes():
                        for line in lines.of(piece):
                            if found := events.data(line):
                                yield self.server.decode(found, kind)
            except Unavailable:
                if not connected:
                    raise
            time.sleep(BEFORE_RECONNECTING)

    def import_memories(self, lines: File | Iterable[bytes], *, wait_for_index: bool) -> Imports:
        asked = pieces_sent(pieces_of(lines), wait_for_index=wait_for_index)
        return self.server.decode(self.call(asked), Imports)

    def backup(self, to: Path) -> Iterator[Progress[BackedUp]]:
        """The server verifies the values, which only it can open; what arrived is checked again here."""
        with Partial(to) as partial:
            done = 0
            with self._sent(BACKUP) as response:
                total = int(response.headers.get("content-length", 0))
                for chunk in response.iter_raw():
                    partial.write(chunk)
                    done += len(chunk)
                    yield Progress("copying", done, total)
            yield Progress("done", 1, 1, received(partial, to, done))

    def only_here(self, name: str) -> Callable[..., Any]:
        raise InvalidRequest("at", f"the store's file: {name} is not done over a URL")

    def close(self) -> None:
        self._client.close()


def bound_arguments(
    operation: Operation[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Every argument of an operation's method by its name."""
    bound = operation.signature.bind(*args, **named)
    bound.apply_defaults()
    return bound.arguments


def received(partial: Partial, to: Path, size: int) -> BackedUp:
    """A backup that has come whole, once it was looked through and is at its place."""
    partial.sync()
    with Copy(partial.path) as copy:
        copy.refuse_damaged()
        held = copy.summary()
    partial.complete()
    return BackedUp(to, size, held.memories, held.versions, held.last_seq, 0)
