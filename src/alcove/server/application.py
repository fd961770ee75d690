"""The ASGI application: one request in, one answer out, whatever happens in between.

Starlette routes; what is at a path is an ASGI application of ours, which costs less than its Request
and Response would and answers every error in one shape.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from starlette.routing import Router

from alcove.core.errors import AlcoveError, NotFound, Unavailable
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.server.answers import ErrorAnswer
from alcove.server.auth import Authenticator, on_this_machine
from alcove.server.body import expected_bytes, in_pieces, whole
from alcove.server.errors import STATUS, MethodNotAllowed, Unauthenticated
from alcove.server.limits import SMALL_BYTES, Held, Limits, RateLimiter, Shares, asking
from alcove.server.logs import AccessLine, AccessLog
from alcove.server.resource import Call, Resource, expect, path_parameter, path_pattern
from alcove.server.streaming import PART_BYTES, Stream, pour, while_allowed
from alcove.server.thread_pool import Offload

trouble = logging.getLogger("alcove.http")

_encode = msgspec.json.Encoder().encode
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_JSON = (b"content-type", b"application/json")
UNKNOWN = "unknown"
"""The declared path of what is not there."""
CONNECTION = "alcove.connection"
"""Where a scope has what tells that a client is gone, if the server has it."""
CLIENT_GONE = 499
"""The status in the log of a request whose client went away before it was answered."""
METHODS = frozenset(("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"))
"""Methods that are told apart where requests are counted: a caller must not be able to make up series."""

Answered = tuple[int, bytes | Stream, list[tuple[bytes, bytes]]]
"""Status, body and headers."""


class Exchange:
    """One request and its answer, as the log tells it."""

    __slots__ = ("headers", "held", "id", "path", "principal", "scope", "started", "status")

    def __init__(self, scope: dict[str, Any], path: str) -> None:
        self.scope = scope
        self.started = time.perf_counter()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        self.id = given.decode() if _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        self.path = path
        self.principal: Principal | None = None
        self.held = Held()
        self.status = 500


class Watcher(Protocol):
    """Sees every request twice: when it has come, and when its answer is ready (or will never be)."""

    def began(self, exchange: Exchange) -> None: ...
    def ended(self, exchange: Exchange) -> None: ...


def application(
    resources: Sequence[Resource],
    authenticate: Authenticator,
    limits: Limits,
    log: AccessLog,
    offload: Offload,
    lifespan: Any = None,
    watchers: Sequence[Watcher] = (),
) -> Router:
    """The application that serves these resources."""
    edge = Edge(authenticate, limits, log, watchers, offload)
    methods: dict[str, dict[str, Resource]] = {}
    for each in resources:
        methods.setdefault(each.path, {})[each.method] = each
    places = {path: Place(edge, path, at) for path, at in methods.items()}
    return Directory(places, default=Place(edge, UNKNOWN, {}), lifespan=lifespan)


class Directory(Router):
    """Finds the place of a path.

    Starlette's own routes compare each path with all of them, and decode it first, so that a slash inside
    a parameter is lost. What is left to it is the start and the end of the server's life.
    """

    def __init__(self, places: dict[str, Place], *, default: Place, lifespan: Any) -> None:
        super().__init__(default=default, lifespan=lifespan)
        self._exact = {path: place for path, place in places.items() if "{" not in path}
        self._patterns = [(path_pattern(path), place) for path, place in places.items() if "{" in path]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        place = self._exact.get(scope.get("path"))
        if place is None and scope["type"] == "http":
            place = self._matching(scope)
        await (place or super().__call__)(scope, receive, send)

    def _matching(self, scope: Any) -> Place | None:
        for pattern, place in self._patterns:
            if match := pattern.fullmatch(scope["raw_path"]):
                scope["path_params"] = match.groupdict()
                return place
        return None


class Place:
    """What is at one path: a resource for each of its methods."""

    def __init__(self, edge: Edge, path: str, methods: dict[str, Resource]) -> None:
        self._edge = edge
        self._path = path
        self._methods = methods

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise AlcoveError("only HTTP is served here")
        await self._edge.serve(Exchange(scope, self._path), self._methods, receive, send)


class Edge:
    """Authenticates, limits, parses, calls and answers; no error leaves with a stack."""

    def __init__(
        self,
        authenticate: Authenticator,
        limits: Limits,
        log: AccessLog,
        watchers: Sequence[Watcher],
        offload: Offload,
    ) -> None:
        self._authenticate = authenticate
        self._offload = offload
        self._watchers = watchers
        self._limits = limits
        self._rate = RateLimiter(limits.rate_per_second)
        self._log = log
        self._requests = Shares(limits.most_in_flight)
        self._lasting = Shares(limits.most_in_flight)
        self._bodies = Shares(limits.most_bodies_bytes)

    async def serve(self, exchange: Exchange, methods: dict[str, Resource], receive: Any, send: Any) -> None:
        """One request, from its headers to its line in the log; it ends when its client is gone."""
        connection = exchange.scope.get(CONNECTION)
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
        self._tell(exchange)

    async def _respond(
        self, exchange: Exchange, methods: dict[str, Resource], receive: Any, send: Any
    ) -> None:
        for watcher in self._watchers:
            watcher.began(exchange)
        exchange.status = CLIENT_GONE
        try:
            status, body, headers = await self._answer(exchange, methods, receive)
            exchange.status = status
        finally:
            for watcher in self._watchers:
                watcher.ended(exchange)
        head = [(b"x-request-id", exchange.id.encode()), *headers]
        if isinstance(body, Stream):
            await send({"type": "http.response.start", "status": status, "headers": head})
            pieces = _begun(body.pieces) if exchange.scope["method"] == "HEAD" else body.pieces
            await self._pour(exchange, self._pieces(pieces, body, exchange), receive, send)
            return
        if status != 204:
            head.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": head})
        if len(body) > PART_BYTES:
            await self._pour(exchange, _alone(body), receive, send)
        else:
            await send({"type": "http.response.body", "body": body})

    async def _pour(self, exchange: Exchange, pieces: AsyncIterator[bytes], receive: Any, send: Any) -> None:
        """Pours an answer out; one that fails half-way breaks off, which the client can tell from its end."""
        try:
            await pour(pieces, receive, send, self._limits.request_seconds)
        except (AlcoveError, TimeoutError) as error:
            trouble.warning(
                "answer %s was broken off: %s", exchange.id, str(error) or "its reader is too slow"
            )
            if connection := exchange.scope.get(CONNECTION):
                connection.transport.abort()  # closing would wait for a reader who may never take the rest

    async def _answer(self, exchange: Exchange, methods: dict[str, Resource], receive: Any) -> Answered:
        try:
            resource = _chosen(exchange, methods)
            if resource.quick or resource.takes_lines or resource.unhurried:
                answer = await self._act(exchange, resource, receive)
            else:
                async with asyncio.timeout(self._limits.request_seconds):
                    answer = await self._act(exchange, resource, receive)
            answered = _answered(answer)
            if isinstance(answered[1], bytes):
                self._hold_unread(exchange.held, answered[1])
        except AlcoveError as error:
            return _refusal(error, exchange)
        except TimeoutError:
            return _refusal(Unavailable("the request took longer than is allowed"), exchange)
        except asyncio.CancelledError:
            raise
        except Exception:
            trouble.exception("request %s failed", exchange.id)
            return _refusal(AlcoveError("something went wrong on our side"), exchange)
        return answered

    def _hold_unread(self, held: Held, sent: bytes) -> None:
        """Counts what waits for its reader among bodies, as the largest of them if it is larger."""
        if len(sent) > PART_BYTES:
            held.take(self._bodies, asking.get(), min(len(sent), self._limits.most_body_bytes))

    async def _pieces(
        self, pieces: AsyncIterator[bytes], stream: Stream, exchange: Exchange
    ) -> AsyncIterator[bytes]:
        """The pieces of an answer; one that is no longer allowed says so, if it can, and ends."""
        lasting, unread = while_allowed(pieces, stream.allowed), Held()
        try:
            async for piece in lasting:
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

    async def _act(self, exchange: Exchange, resource: Resource, receive: Any) -> Struct | None:
        principal, again = DEFAULT_PRINCIPAL, None
        if not (resource.open or (resource.local and _local(exchange))):
            exchange.held.take(self._requests, None)
            principal = exchange.principal = await self._authenticate(exchange.headers)
            exchange.held.give_back()
            self._rate.take(principal)
            resource.admit(principal)
            asking.set(principal.user_id)
            if connection := exchange.scope.get(CONNECTION):
                connection.user = principal.user_id
            exchange.held.take(self._lasting if resource.lasts else self._requests, principal.user_id)
            again = partial(self._admitted, exchange, resource)
        hold = partial(exchange.held.take, self._bodies, asking.get())
        path = {
            name: path_parameter(name, raw) for name, raw in exchange.scope.get("path_params", {}).items()
        }
        query = resource.parse_query(exchange.scope["query_string"])
        body, pieces, large = None, None, False
        if resource.takes_lines:
            expect(exchange.headers.get(b"content-type", b""), b"application/x-ndjson")
            pieces = in_pieces(receive, self._limits.request_seconds)
        elif resource.body is not None:
            most = self._limits.most_body_bytes
            if (expected := expected_bytes(exchange.headers, most)) > SMALL_BYTES:
                hold(expected)
            raw = await whole(receive, most)
            large = len(raw) > SMALL_BYTES
            parse = partial(resource.parse_body, raw, exchange.headers.get(b"content-type", b""))
            body = await self._offload(parse) if large else parse()
        key = exchange.headers.get(b"idempotency-key") if resource.idempotent else None
        token = key if key is None else key.decode("latin-1")
        call = Call(principal, query, body, exchange.headers, path, pieces, token, again, large, hold)
        return await resource.handler(call)

    async def _admitted(self, exchange: Exchange, resource: Resource) -> Principal:
        principal = await self._authenticate(exchange.headers)
        resource.admit(principal)
        return principal

    def _tell(self, exchange: Exchange) -> None:
        who = exchange.principal
        self._log.tell(
            AccessLine(
                time=datetime.now(UTC),
                request_id=exchange.id,
                method=exchange.scope["method"],
                path=exchange.path,
                status=exchange.status,
                ms=round((time.perf_counter() - exchange.started) * 1000, 3),
                user=who.user_id if who else None,
                client=who.client_id if who else None,
            )
        )


class Page(Struct):
    """An answer that is not one of our records: a page, a script, a schema."""

    body: bytes
    media_type: bytes
    status: int = 200


def encoded(answer: Struct) -> Page:
    """An answer as it is sent: for a thread that has made one that may be large."""
    return Page(_encode(answer), _JSON[1])


def _answered(answer: Struct | None) -> Answered:
    if answer is None:
        return 204, b"", []
    if isinstance(answer, Page):
        return answer.status, answer.body, [(b"content-type", answer.media_type)]
    if isinstance(answer, Stream):
        return 200, answer, [(b"content-type", answer.media_type), (b"cache-control", b"no-store")]
    return 200, _encode(answer), [_JSON]


def _refusal(error: AlcoveError, exchange: Exchange) -> Answered:
    headers = [_JSON]
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", str(error.details["allow"]).encode()))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if error.code in ("service_unavailable", "rate_limited"):
        headers.append((b"retry-after", b"1"))
    return STATUS[error.code], _encode(ErrorAnswer.of(error, exchange.id)), headers


async def _alone(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


async def _begun(pieces: Any) -> AsyncIterator[bytes]:
    """Nothing of an answer, which is begun all the same so that it puts away what it holds."""
    async for _ in pieces:
        break
    await pieces.aclose()
    yield b""


def _local(exchange: Exchange) -> bool:
    client = exchange.scope["client"]
    return client is not None and on_this_machine(client[0], exchange.headers)


def _chosen(exchange: Exchange, methods: dict[str, Resource]) -> Resource:
    """The resource for this method, once it is known that there is anything at this path."""
    if not methods:
        raise NotFound(f"there is nothing at {exchange.scope['path']}")
    method = exchange.scope["method"]
    resource = methods.get("GET" if method == "HEAD" else method)  # the server sends no body for a HEAD
    if resource is None:
        allowed = ", ".join(sorted(methods))
        raise MethodNotAllowed(f"expected {allowed} here", details={"allow": allowed})
    return resource
