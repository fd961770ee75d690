"""The ASGI application: one request in, one answer out, whatever happens in between.

Requests are routed and answered here, which costs less than Starlette's Request and Response would, keeps a
slash inside a path's parameter and answers every error in one shape. Starlette has the start and the end of
the server's life.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from starlette.routing import Router

from alcove.api.messages import ErrorAnswer
from alcove.core.errors import STATUS, AlcoveError, MethodNotAllowed, NotFound, Unauthenticated, Unavailable
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.server.auth import Authenticator, Headers, on_this_machine
from alcove.server.config import ServeConfig
from alcove.server.limits import RateLimiter, Reservations, Shares, ThreadPool, TimeLimit, current_user
from alcove.server.logs import AccessLog
from alcove.server.routes import (
    JSON,
    NOTHING,
    Call,
    Page,
    Resource,
    expect,
    path_parameter,
    path_pattern,
)
from alcove.server.streaming import PART_BYTES, Stream, in_pieces, pour, while_allowed, whole
from alcove.store.reading import SMALL_BYTES

trouble = logging.getLogger("alcove.http")

_encode = msgspec.json.Encoder().encode
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
UNKNOWN = "unknown"
"""The declared path of what is not there."""
CONNECTION = "alcove.connection"
"""Where a scope has what tells that a client is gone, if the server has it."""
CLIENT_GONE = 499
"""The status in the log of a request whose client went away before it was answered."""
METHODS = frozenset(("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"))
"""Methods that are told apart where requests are counted: a caller must not be able to make up series."""
_LEAST_BODIES_BYTES = 256 * 1024 * 1024
_BODIES = 64


class Exchange:
    """One request and its answer, as the log, the metrics and the traces tell it."""

    def __init__(self, scope: dict[str, Any], path: str) -> None:
        self.scope = scope
        self.started = time.perf_counter()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.method: str = scope["method"]
        self.connection = scope.get(CONNECTION)
        given = self.headers.get(b"x-request-id", b"")
        self.id = given.decode() if _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        self.path = path
        """As it is declared."""
        self.principal: Principal | None = None
        self.held = Reservations()
        self.status = CLIENT_GONE


Watcher = Callable[[Exchange], None]
"""Told of every request when its answer is ready, or will never be."""


class Application:
    """Authenticates, limits, parses, calls and answers; no error leaves with a stack."""

    def __init__(
        self,
        resources: Sequence[Resource],
        authenticate: Authenticator,
        config: ServeConfig,
        log: AccessLog,
        threads: ThreadPool,
        *,
        lifespan: Any = None,
        watchers: Sequence[Watcher] = (),
        denied: Watcher | None = None,
    ) -> None:
        """An application that serves these resources.

        `authenticate` says who calls, and `log` is told of each request. `threads` parse large bodies.
        `lifespan` is what goes on around the serving, as Starlette takes it. `watchers` are told of each
        request when its answer is ready, `denied` of those only that were refused for want of permission.
        """
        methods: dict[str, dict[str, Resource]] = {}
        for each in resources:
            methods.setdefault(each.path, {})[each.method] = each
        self._exact = {path: at for path, at in methods.items() if "{" not in path}
        self._patterns = [(path_pattern(path), path, at) for path, at in methods.items() if "{" in path]
        self._life = Router(lifespan=lifespan)
        self._authenticate = authenticate
        self._threads = threads
        self._watchers = watchers
        self._denied = denied
        self._log = log
        self._seconds = config.request_seconds
        self._in_time = TimeLimit(config.request_seconds)
        self._most_body_bytes = config.max_body_bytes
        self._rate = RateLimiter(config.rate_limit) if config.rate_limit else None
        self._requests = Shares(config.most_in_flight)
        self._lasting = Shares(config.most_in_flight)
        self._bodies = Shares(max(_BODIES * config.max_body_bytes, _LEAST_BODIES_BYTES))
        self.under_way = 0
        """Requests whose answer is not ready yet."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request, from its headers to its line in the log; it ends when its client is gone."""
        if scope["type"] != "http":
            await self._life(scope, receive, send)
            return
        path = scope["path"]
        methods = self._exact.get(path)
        if methods is None:
            path, methods = self._matching(scope)
        exchange = Exchange(scope, path)
        connection = exchange.connection
        if connection:
            connection.serving = asyncio.current_task()
        try:
            await self._respond(exchange, methods, receive, send)
        except asyncio.CancelledError:
            if not (connection and connection.lost):
                raise
            connection.serving.uncancel()
        finally:
            exchange.held.give_back()
            if connection:
                connection.serving = None
        self._log.tell(exchange)

    def _matching(self, scope: Any) -> tuple[str, dict[str, Resource]]:
        """The declared path that an undecoded one fits, and what is at it."""
        for pattern, path, methods in self._patterns:
            if match := pattern.fullmatch(scope["raw_path"]):
                scope["path_params"] = match.groupdict()
                return path, methods
        return UNKNOWN, {}

    async def _respond(
        self, exchange: Exchange, methods: dict[str, Resource], receive: Any, send: Any
    ) -> None:
        self.under_way += 1
        try:
            answer = await self._answer(exchange, methods, receive)
            exchange.status = answer.status
        finally:
            self.under_way -= 1
            for watcher in self._watchers:
                watcher(exchange)
        if exchange.status == 403 and self._denied:
            self._denied(exchange)
        headers = [(b"x-request-id", exchange.id.encode()), *answer.headers]
        body = None if isinstance(answer, Stream) else answer.body
        if answer.status != 204:
            headers.append((b"content-type", answer.media_type))
            if body is not None:
                headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if body is not None and len(body) <= PART_BYTES:
            await send({"type": "http.response.body", "body": body})
            return
        try:
            await pour(self._pieces(answer, exchange), receive, send, self._seconds)
        except (AlcoveError, TimeoutError) as error:  # it breaks off, which a client can tell from its end
            why = str(error) or "its reader is too slow"
            trouble.warning("answer %s was broken off: %s", exchange.id, why)
            if exchange.connection:
                exchange.connection.transport.abort()  # closing would wait for a reader who may never take it

    async def _answer(self, exchange: Exchange, methods: dict[str, Resource], receive: Any) -> Page | Stream:
        try:
            method = "GET" if exchange.method == "HEAD" else exchange.method  # the server drops a HEAD's body
            if (resource := methods.get(method)) is None:
                raise _nothing_there(exchange, methods)
            work = self._call(exchange, resource, receive)
            answer = await (work if resource.takes_lines or resource.unhurried else self._in_time(work))
            if answer is None:
                return NOTHING
            if isinstance(answer, Stream):
                return answer
            page = answer if isinstance(answer, Page) else Page(_encode(answer), JSON)
            if len(page.body) > PART_BYTES:
                self._hold_unread(exchange.held, page.body)
            return page
        except AlcoveError as error:
            return _refusal(error, exchange)
        except TimeoutError:
            return _refusal(Unavailable("the request took longer than is allowed"), exchange)
        except Exception:
            trouble.exception("request %s failed", exchange.id)
            return _refusal(AlcoveError("something went wrong on our side"), exchange)

    async def _call(self, exchange: Exchange, resource: Resource, receive: Any) -> Struct | None:
        """Finds out who calls, parses what they sent and has the resource answer it."""
        scope, headers, held = exchange.scope, exchange.headers, exchange.held
        principal, again = DEFAULT_PRINCIPAL, None
        if not (resource.open or (resource.local and _local(exchange))):
            held.take(self._requests, None)
            principal = exchange.principal = await self._authenticate(headers)
            held.give_back()
            if self._rate:
                self._rate.take(principal)
            if resource.role:
                principal.require(resource.role)
            current_user.set(principal.user_id)
            if exchange.connection:
                exchange.connection.user = principal.user_id
            held.take(self._lasting if resource.lasts else self._requests, principal.user_id)
            again = partial(self._admitted, headers, resource)
        hold = partial(held.take, self._bodies, current_user.get())
        raw_path = scope.get("path_params")
        path = {name: path_parameter(name, raw) for name, raw in raw_path.items()} if raw_path else {}
        asked = resource.parse_query(scope["query_string"])
        pieces, large = None, False
        if resource.takes_lines:
            expect(headers.get(b"content-type", b""), b"application/x-ndjson")
            pieces = in_pieces(receive, self._seconds)
        elif resource.body is not None:
            raw = await whole(receive, headers, self._most_body_bytes, hold)
            large = len(raw) > SMALL_BYTES
            parse = partial(resource.parse_body, raw, headers.get(b"content-type", b""))
            asked = await self._threads(parse) if large else parse()
        key = headers.get(b"idempotency-key") if resource.idempotent else None
        token = key if key is None else key.decode("latin-1")
        return await resource.handler(
            Call(principal, asked, headers, path, pieces, token, again, large, hold)
        )

    async def _admitted(self, headers: Headers, resource: Resource) -> Principal:
        principal = await self._authenticate(headers)
        if resource.role:
            principal.require(resource.role)
        return principal

    def _hold_unread(self, held: Reservations, sent: bytes) -> None:
        """Counts what waits for its reader among bodies, as the largest of them if it is larger."""
        held.take(self._bodies, current_user.get(), min(len(sent), self._most_body_bytes))

    async def _pieces(self, stream: Page | Stream, exchange: Exchange) -> AsyncIterator[bytes]:
        """The pieces of an answer; one that is no longer allowed says so, if it can, and ends.

        For a HEAD it is begun all the same, so that it puts away what it holds.
        """
        if isinstance(stream, Page):
            yield stream.body
            return
        lasting, unread = while_allowed(stream.pieces, stream.allowed), Reservations()
        try:
            async for piece in lasting:
                if exchange.method == "HEAD":
                    return
                if len(piece) > PART_BYTES:
                    self._hold_unread(unread, piece)
                yield piece
                unread.give_back()
        except AlcoveError as error:
            if stream.last_words is None or STATUS[error.code] >= 500:
                raise
            yield stream.last_words % _encode(ErrorAnswer.of(error, exchange.id))
        finally:
            unread.give_back()
            await lasting.aclose()  # type: ignore[attr-defined]


def _local(exchange: Exchange) -> bool:
    client = exchange.scope["client"]
    return client is not None and on_this_machine(client[0], exchange.headers)


def _nothing_there(exchange: Exchange, methods: dict[str, Resource]) -> AlcoveError:
    """What is said where there is nothing at a path, or nothing for this method."""
    if not methods:
        return NotFound(f"there is nothing at {exchange.scope['path']}")
    allowed = ", ".join(sorted(methods))
    return MethodNotAllowed(f"expected {allowed} here", details={"allow": allowed})


def _refusal(error: AlcoveError, exchange: Exchange) -> Page:
    headers = []
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", str(error.details["allow"]).encode()))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if error.code in ("service_unavailable", "rate_limited"):
        headers.append((b"retry-after", b"1"))
    return Page(_encode(ErrorAnswer.of(error, exchange.id)), JSON, STATUS[error.code], headers)
