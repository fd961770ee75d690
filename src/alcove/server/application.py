"""The ASGI application: one request in, one answer out, whatever happens in between.

Requests are routed and answered here, which costs less than Starlette's Request and Response would, keeps a
slash inside a path's parameter and answers every error in one shape. Starlette has the start and the end of
the server's life.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from starlette.routing import Router

from alcove.api.messages import ErrorAnswer
from alcove.core import errors
from alcove.core.errors import STATUS, AlcoveError
from alcove.server.config import ServeConfig
from alcove.server.headers import Authenticator
from alcove.server.limits import (
    RateLimiter,
    Reservations,
    Shares,
    TakeRequest,
    ThreadPool,
    TimeLimit,
    current_user,
)
from alcove.server.loopback import is_local_program
from alcove.server.protocol import send_whole
from alcove.server.routes import Page, Request, Resource, expect, path_parameter, path_pattern
from alcove.server.streams import PART_BYTES, Stream, pour, when_asked, while_allowed
from alcove.store.reading import SMALL_BYTES

trouble = logging.getLogger("alcove.http")

_encode = msgspec.json.Encoder().encode
UNKNOWN = "unknown"
"""The declared path of what is not there."""
METHODS = frozenset(("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"))
"""Methods that are told apart where requests are counted: a caller must not be able to make up series."""
_LEAST_BODIES_BYTES = 256 * 1024 * 1024
_BODIES = 64
OPEN_BODY_BYTES = 16 * 1024
"""Of a body from callers who have not said who they are: one signs in with a token of a few kilobytes."""
LEAST_BYTES = 16 * 1024
"""Of a body of any length, in the time that a request has: one that trickles would never end."""

_GIVEN_ONCE = {
    name.lower().encode(): name
    for name in ("Authorization", "X-API-Key", "X-User-ID", "Cookie", "Host", "Origin", "X-Alcove-CSRF")
}
"""Headers that say who calls, in the name of whom, and from where."""

Watcher = Callable[[Request], None]


class Application:
    """Authenticates, limits, parses, calls and answers; no error leaves with a stack."""

    def __init__(
        self,
        resources: Sequence[Resource],
        authenticate: Authenticator,
        config: ServeConfig,
        log: Watcher,
        threads: ThreadPool,
        *,
        lifespan: Any = None,
        watchers: Sequence[Watcher] = (),
        denied: Watcher | None = None,
        take_request: TakeRequest | None = None,
        admit: Watcher | None = None,
    ) -> None:
        """An application that serves these resources.

        `authenticate` says who calls, and `log` is told of each request that has ended. `threads` parse large
        bodies. `lifespan` is what goes on around the serving, as Starlette takes it. `watchers` are told of
        each request when its answer is ready or will never be, `denied` of those only that were refused for
        want of permission. `take_request` counts requests for all nodes together, where they share that.
        `admit` lets browsers in by their cookies.
        """
        methods: dict[str, dict[str, Resource]] = {}
        for each in resources:
            methods.setdefault(each.path, {})[each.method] = each
        self._exact = {path: at for path, at in methods.items() if "{" not in path}
        self._patterns = [(path_pattern(path), path, at) for path, at in methods.items() if "{" in path]
        self._life = Router(lifespan=lifespan)
        self._authenticate, self._admit = authenticate, admit
        self._threads = threads
        self._watchers, self._denied, self._log = watchers, denied, log
        self._seconds = config.request_seconds
        self._in_time = TimeLimit(config.request_seconds)
        self._most_body_bytes = config.max_body_bytes
        self._rate = RateLimiter(config.rate_limit, take_request) if config.rate_limit else None
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
        route = scope["path"]
        methods = self._exact.get(route)
        if methods is None:
            route, methods = self._matching(scope)
        request = Request(scope, route, self._authenticate, self._bodies)
        connection = request.connection
        if connection:
            connection.serving = asyncio.current_task()
        try:
            await self._respond(request, methods, receive, send)
        except asyncio.CancelledError:
            if not (connection and connection.lost):
                raise
            connection.serving.uncancel()
        finally:
            request.held.give_back()
            if connection:
                connection.serving = None
        self._log(request)

    def _matching(self, scope: Any) -> tuple[str, dict[str, Resource]]:
        """The declared path that an undecoded one fits, and what is at it."""
        for pattern, path, methods in self._patterns:
            if match := pattern.fullmatch(scope["raw_path"]):
                scope["path_params"] = match.groupdict()
                return path, methods
        return UNKNOWN, {}

    async def _respond(self, request: Request, methods: dict[str, Resource], receive: Any, send: Any) -> None:
        self.under_way += 1
        try:
            answer = await self._answer(request, methods, receive)
            request.status = answer.status
        finally:
            self.under_way -= 1
            for watcher in self._watchers:
                watcher(request)
        if request.status == 403 and self._denied:
            self._denied(request)
        page = answer if isinstance(answer, Page) else None
        small = page is not None and len(page.body) <= PART_BYTES
        if page and small and not page.headers and send_whole(send, page, request.id):
            return
        headers = [(b"x-request-id", request.id.encode()), *answer.headers]
        if answer.status != 204:
            headers.append((b"content-type", answer.media_type))
            if page:
                headers.append((b"content-length", b"%d" % len(page.body)))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if page and small:
            await send({"type": "http.response.body", "body": page.body})
            return
        try:
            await pour(self._pieces(answer, request), receive, send, self._in_time)
        except (AlcoveError, TimeoutError) as error:  # it breaks off, which a client can tell from its end
            why = str(error) or "its reader is too slow"
            trouble.warning("answer %s was broken off: %s", request.id, why)
            if request.connection:
                request.connection.transport.abort()  # closing would wait for a reader who may never take it

    async def _answer(self, request: Request, methods: dict[str, Resource], receive: Any) -> Page | Stream:
        try:
            method = "GET" if request.method == "HEAD" else request.method  # the server drops a HEAD's body
            if (resource := methods.get(method)) is None:
                raise _nothing_there(request, methods)
            request.resource = resource
            work = self._call(request, resource, receive)
            answer = await (work if resource.takes_lines or resource.unhurried else self._in_time(work))
            if isinstance(answer, Stream):
                if not resource.lasts:  # it was let in as something that is soon answered
                    request.held.give_back()
                    request.held.take(self._lasting, request.user)
                return answer
            page = answer if isinstance(answer, Page) else Page(_encode(answer))
            if len(page.body) > PART_BYTES:
                request.hold(self._unread(page.body))
            return page
        except AlcoveError as error:
            refused = error
            if STATUS[error.code] >= 500 and error.public_message != error.message:
                trouble.warning("request %s: %s", request.id, error.message)
        except TimeoutError:
            refused = errors.Unavailable("the request took longer than is allowed")
        except Exception:
            trouble.exception("request %s failed", request.id)
            refused = AlcoveError("something went wrong on our side")
        told_as = next((each.refusal for each in methods.values()), ErrorAnswer)
        return _refusal(refused, told_as.of(refused, request.id))

    async def _call(self, request: Request, resource: Resource, receive: Any) -> Struct:
        """Finds out who calls, parses what they sent and has the resource answer it."""
        scope, headers, held = request.scope, request.headers, request.held
        if len(headers) != len(scope["headers"]):
            _refuse_repeated(scope["headers"])
        here = resource.local and scope["client"] and is_local_program(scope["client"][0], headers)
        if not (resource.open or here):
            held.take(self._requests, None)
            if self._admit:
                self._admit(request)
            principal = request.principal = await self._authenticate(headers)
            held.give_back()
            request.user = principal.user_id
            if self._rate:
                await self._rate.take(principal)
            if resource.role:
                principal.require(resource.role)
            current_user.set(request.user)
            if request.connection:
                request.connection.user = request.user
            held.take(self._lasting if resource.lasts else self._requests, request.user)
        raw_path = scope.get("path_params")
        request.path = {name: path_parameter(name, raw) for name, raw in raw_path.items()} if raw_path else {}
        if resource.body is None or scope["query_string"]:
            request.asked = resource.parse_query(scope["query_string"])
        if resource.takes_lines:
            expect(headers.get(b"content-type", b""), b"application/x-ndjson")
            request.pieces = self._body_in_pieces(receive)
        elif resource.body is not None:
            body = self._whole_body(request, receive)
            raw = await (self._in_time(body) if resource.unhurried else body)
            request.large = len(raw) > SMALL_BYTES
            parse = partial(resource.parse_body, raw, headers.get(b"content-type", b""))
            request.asked = await self._threads(parse) if request.large else parse()
        if resource.idempotent and (key := headers.get(b"idempotency-key")) is not None:
            request.idempotency_key = key.decode("latin-1")
        return await resource.handler(request)

    async def _whole_body(self, request: Request, receive: Any) -> bytearray:
        """The body, refused as soon as it is known to have more bytes than it may.

        One that may not be small is counted before it is read, by what its head says of its length.
        """
        most, declared = self._most_body_bytes, request.headers.get(b"content-length", b"0")
        most = min(most, OPEN_BODY_BYTES) if request.resource.open else most
        expected = int(declared[:20]) if declared.isdigit() else 0
        if b"transfer-encoding" in request.headers:
            expected = most
        if SMALL_BYTES < expected <= most:
            request.hold(expected)
        body, more = bytearray(), True
        while more and max(expected, len(body)) <= most:
            piece, more = await _received(receive)
            body += piece
        if max(expected, len(body)) > most:
            raise errors.PayloadTooLarge("body", f"at most {most} bytes")
        return body

    async def _body_in_pieces(self, receive: Any) -> AsyncIterator[bytes]:
        """The body as it comes, as long as some of it comes in the time that a request has."""
        got, left, more = 0, self._seconds, True
        while more:
            started = time.monotonic()
            async with asyncio.timeout(left):
                piece, more = await _received(receive)
            got, left = got + len(piece), left - (time.monotonic() - started)
            if got >= LEAST_BYTES:
                got, left = 0, self._seconds
            yield piece

    def _unread(self, sent: bytes) -> int:
        """What counts among bodies while it waits for its reader: as the largest of them, if it is larger."""
        return min(len(sent), self._most_body_bytes)

    async def _pieces(self, answer: Page | Stream, request: Request) -> AsyncIterator[bytes]:
        """The pieces of an answer; one that is no longer allowed says so, if it can, and ends.

        For a HEAD it is begun all the same, so that it puts away what it holds.
        """
        if isinstance(answer, Page):
            yield answer.body
            return
        allowed = while_allowed if answer.waits else when_asked
        lasting, held = allowed(answer.pieces, request), Reservations()
        try:
            async for piece in lasting:
                if request.method == "HEAD":
                    return
                if len(piece) > PART_BYTES:
                    held.take(self._bodies, request.user, self._unread(piece))
                yield piece
                held.give_back()
        except AlcoveError as error:
            if answer.last_words is None or STATUS[error.code] >= 500:
                raise
            yield answer.last_words % _encode(ErrorAnswer.of(error, request.id))
        finally:
            held.give_back()
            await lasting.aclose()  # type: ignore[attr-defined]


def _refuse_repeated(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Refuses a second header that says who calls, or whence: a proxy may have checked the other one."""
    names = [name for name, _ in headers]
    for name, spelled in _GIVEN_ONCE.items():
        if names.count(name) > 1:
            raise errors.InvalidRequest(spelled, "to be given once")


async def _received(receive: Any) -> tuple[bytes, bool]:
    """What came of a body, and whether there is more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise errors.Unavailable("the client went away")
    return message.get("body", b""), message.get("more_body", False)


def _nothing_there(request: Request, methods: dict[str, Resource]) -> AlcoveError:
    """What is said where there is nothing at a path, or nothing for this method."""
    if not methods:
        return errors.NotFound(f"there is nothing at {request.scope['path'][:200]}")
    allowed = ", ".join(sorted(methods))
    return errors.MethodNotAllowed(f"expected {allowed} here", details={"allow": allowed})


def _refusal(error: AlcoveError, told: Struct) -> Page:
    headers = []
    if isinstance(error, errors.MethodNotAllowed):
        headers.append((b"allow", str(error.details["allow"]).encode()))
    if isinstance(error, errors.Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if error.code in ("service_unavailable", "rate_limited"):
        headers.append((b"retry-after", b"1"))
    return Page(_encode(told), status=STATUS[error.code], headers=headers)
