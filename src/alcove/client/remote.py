"""`Remote`: a store behind a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self, TypeVar

from alcove.api.operation import Operation, Streaming
from alcove.api.operations import EVENTS
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
from alcove.client.store import AdminHandle, AgentsHandle, Store
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound, Unavailable
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.upkeep.backup import BackedUp, Partial, Progress
from alcove.upkeep.transfer import File, Imports, pieces_of

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
R = TypeVar("R")


def server_at(url: str, token: str | None, api_key: str | None, timeout: float, retries: int) -> Server:
    """A server, and the credentials for it."""
    credentials = {"X-API-Key": api_key, "Authorization": token and f"Bearer {token}"}
    return Server(url, credentials, timeout, retries)


def checked_roles(roles: Iterable[str]) -> None:
    """Refuses roles that a client names."""
    if [*roles]:
        raise InvalidRequest("roles", "none: the server knows them from the API key")


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
        asked, arguments = self.server.asked(operation, args, named)
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
        asked, arguments = self.server.asked(operation, args, named)
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

    def only_here(self, name: str) -> NoReturn:
        """Refuses what only a store in this process does."""
        raise InvalidRequest("at", f"the store's file: {name} is not done over a URL")

    def close(self) -> None:
        self._client.close()


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
        server = server_at(url, token, api_key, timeout, retries)
        import httpx  # noqa: PLC0415  an extra, which the server has found there

        self.transport = HttpTransport(
            server, httpx.Client(limits=server.limits), DEFAULT_PRINCIPAL if user is None else Principal(user)
        )

    def as_user(self, user_id: str, *, roles: Iterable[str] = ()) -> Self:
        """The same server for this user, whom only a trusted API key may name; it says which roles."""
        checked_roles(roles)
        return self.as_principal(Principal(user_id))

    @property
    def admin(self) -> AdminHandle:
        """Operating the store behind the server, which decides by the caller's role."""
        return AdminHandle(self.transport)

    def agents(self, specs: str | os.PathLike[str] | None = None) -> AgentsHandle:
        """The agents of the server, which has their specs."""
        if specs is not None:
            raise InvalidRequest("specs", "none: the server has its own")
        return AgentsHandle(self.transport)

    def import_memories(self, lines: File | Iterable[bytes], *, wait_for_index: bool = False) -> Imports:
        return self.transport.import_memories(lines, wait_for_index=wait_for_index)

    def sweep(self) -> NoReturn:
        """The server does it at its interval."""
        self.transport.only_here("sweep")

    def close(self) -> None:
        self.transport.close()

    def __repr__(self) -> str:
        return f"<Remote at {self.transport.server.url}>"
