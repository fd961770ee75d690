"""The ASGI application: authenticates, limits and parses each request, and sends its answer.

Requests are routed and answered here, which costs less than Starlette's Request and Response would, keeps a
slash inside a path's parameter and gives every error the same shape. Starlette handles startup and shutdown.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct
from starlette.routing import Router
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from alcove.api.messages import ErrorAnswer
from alcove.core import errors
from alcove.core.errors import STATUS, AlcoveError
from alcove.core.fair_shares import Shares
from alcove.core.principal import Principal
from alcove.server.authentication import Authenticator, is_local_program
from alcove.server.config import ServeConfig
from alcove.server.limits import (
    RateLimiter,
    Reservations,
    TakeRequest,
    ThreadPool,
    TimeLimit,
    current_user,
)
from alcove.server.routes import Endpoint, Page, Request, check_media_type, path_pattern
from alcove.server.streams import ACCESS_CHECK_SECONDS, PART_BYTES, Stream, send_body, while_allowed
from alcove.store.reader import SMALL_BYTES

log = logging.getLogger("alcove.http")

_encode = msgspec.json.Encoder().encode
UNKNOWN = "unknown"
"""The route of a request for a path that no operation declares."""
METHODS = frozenset(("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"))
"""Methods with a time series of their own; callers must not be able to create any number of them."""
_MIN_BODIES_BYTES = 256 * 1024 * 1024
_MAX_BODIES = 64
MAX_PUBLIC_BODY_BYTES = 16 * 1024
"""The largest body of a caller without credentials: to sign in, a token of a few kilobytes is enough."""
MIN_BODY_BYTES = 16 * 1024
"""Bytes that a body of any length must send within the time limit; one that trickles would never end."""

_UNIQUE_HEADERS = {
    name.lower().encode(): name
    for name in ("Authorization", "X-API-Key", "X-User-ID", "Cookie", "Host", "Origin", "X-Alcove-CSRF")
}
"""Headers that say who calls, for which user, and from which site."""

Watcher = Callable[[Request], None]


class Application:
    """Answers requests; no error shows a stack trace to the caller."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        authenticate: Authenticator,
        config: ServeConfig,
        access_log: Watcher,
        threads: ThreadPool,
        *,
        lifespan: Any = None,
        watchers: Sequence[Watcher] = (),
        denied: Watcher | None = None,
        take_request: TakeRequest | None = None,
        admit: Watcher | None = None,
        add_grants: Callable[[Principal], Principal] | None = None,
    ) -> None:
        """An application that serves these endpoints.

        `access_log` is called at the end of each request, `watchers` when its answer is ready or will never
        be, `denied` when it is refused for lack of permission. `threads` parse large bodies. `lifespan`:
        startup and shutdown, as Starlette takes them. `take_request` counts requests for all nodes together,
        if they share that. `admit` authenticates browsers by their cookies. `add_grants` returns a principal
        with the rooms that specs of agents open to it.
        """
        methods: dict[str, dict[str, Endpoint]] = {}
        for each in endpoints:
            methods.setdefault(each.operation.path, {})[each.operation.method] = each
        self._exact = {path: each for path, each in methods.items() if "{" not in path}
        self._patterns = [(path_pattern(path), path, each) for path, each in methods.items() if "{" in path]
        self._lifespan = Router(lifespan=lifespan)
        self._authenticate, self._admit, self._add_grants = authenticate, admit, add_grants
        self._threads = threads
        self._watchers, self._denied, self._access_log = watchers, denied, access_log
        self._seconds = config.request_seconds
        self._limit_time = TimeLimit(config.request_seconds)
        self._max_body_bytes = config.max_body_bytes
        self._rate = RateLimiter(config.rate_limit, take_request) if config.rate_limit else None
        self._requests = Shares(config.most_in_flight)
        self._open_requests = Shares(config.most_in_flight)
        self._bodies = Shares(max(_MAX_BODIES * config.max_body_bytes, _MIN_BODIES_BYTES))
        self.pending_count = 0
        """Requests whose answer is not ready yet."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves one request, from its headers to its line in the log; cancels it when its client is gone."""
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        route, methods = scope["path"], self._exact.get(scope["path"])
        if methods is None:
            route, methods = self._match_pattern(scope)
        request = Request(scope, route, self._authenticate, self._add_grants, self._bodies)
        connection = request.connection
        if connection:
            connection.serving = asyncio.current_task()
        try:
            self.pending_count += 1
            try:
                answer = await self._answer(request, methods, receive)
                request.status = answer.status
            finally:
                self.pending_count -= 1
                for watcher in self._watchers:
                    watcher(request)
            if request.status == 403 and self._denied:
                self._denied(request)
            if not await send_start(send, answer, request.id):
                await self._send_pieces(answer, request, receive, send)
        except asyncio.CancelledError:
            if not (connection and connection.lost):
                raise
            connection.serving.uncancel()
        finally:
            request.reservations.give_back()
            if connection:
                connection.serving = None
        self._access_log(request)

    def _match_pattern(self, scope: Any) -> tuple[str, dict[str, Endpoint]]:
        """The declared path that matches the undecoded path of a request, and its endpoints by method."""
        for pattern, path, methods in self._patterns:
            if match := pattern.fullmatch(scope["raw_path"]):
                scope["path_params"] = match.groupdict()
                return path, methods
        return UNKNOWN, {}

    async def _answer(self, request: Request, methods: Mapping[str, Endpoint], receive: Any) -> Page | Stream:
        try:
            method = "GET" if request.method == "HEAD" else request.method  # the server drops a HEAD's body
            if (endpoint := methods.get(method)) is None:
                if not methods:
                    raise errors.NotFound(f"there is nothing at {request.scope['path'][:200]}")
                names = ", ".join(sorted(methods))
                raise errors.MethodNotAllowed(f"expected {names} here", details={"allow": names})
            request.endpoint, operation = endpoint, endpoint.operation
            work = self._call(request, endpoint, receive)
            has_limit = not (operation.line_body or operation.unlimited_time)
            answer = await (self._limit_time(work) if has_limit else work)
            if isinstance(answer, Stream):
                if not endpoint.stays_open:  # it was admitted as a request with a short answer
                    request.reservations.give_back()
                    request.reservations.take(self._open_requests, request.user)
                return answer
            page = answer if isinstance(answer, Page) else Page(_encode(answer))
            if len(page.body) > PART_BYTES:
                request.reserve_bytes(min(len(page.body), self._max_body_bytes))  # until it is sent
            return page
        except AlcoveError as caught:
            error = caught
            if STATUS[error.code] >= 500 and error.public_message != error.message:
                log.warning("request %s: %s", request.id, error.message)
        except TimeoutError:
            error = errors.Unavailable("the request took longer than is allowed")
        except Exception:
            log.exception("request %s failed", request.id)
            error = AlcoveError("something went wrong on our side")
        record = next((each.operation.error_record for each in methods.values()), ErrorAnswer)
        return _error_page(error, record.of(error, request.id))

    async def _call(self, request: Request, endpoint: Endpoint, receive: Any) -> Struct:
        """Authenticates the caller, parses the request and calls the handler."""
        scope, headers, reservations = request.scope, request.headers, request.reservations
        operation = endpoint.operation
        if len(headers) != len(scope["headers"]):
            _refuse_repeated(scope["headers"])
        is_local = operation.is_public_locally and scope["client"]
        if not (operation.is_public or (is_local and is_local_program(scope["client"][0], headers))):
            reservations.take(self._requests, None)
            if self._admit and b"cookie" in headers:
                self._admit(request)
            principal = await self._authenticate(headers)
            request.principal = self._add_grants(principal) if self._add_grants else principal
            reservations.give_back()
            request.user = principal.user_id
            if self._rate:
                await self._rate.take(principal)
            if operation.role:
                request.principal.require(operation.role)
            current_user.set(request.user)
            if request.connection:
                request.connection.user = request.user
            reservations.take(self._open_requests if endpoint.stays_open else self._requests, request.user)
        request.path = {}
        for name, segment in scope.get("path_params", request.path).items():
            try:  # a segment may contain any character, also an encoded slash
                request.path[name] = unquote(segment.decode("ascii"), errors="strict")
            except UnicodeDecodeError:
                raise errors.InvalidRequest(name, "percent-encoded UTF-8") from None
        if endpoint.body is None or scope["query_string"]:
            request.parameters = endpoint.parse_query(scope["query_string"])
        if operation.line_body:
            check_media_type(headers.get(b"content-type", b""), b"application/x-ndjson")
            request.pieces = self._body_pieces(receive)
        elif endpoint.body is not None:
            body = self._read_body(request, receive)
            raw = await (self._limit_time(body) if operation.unlimited_time else body)
            request.large = len(raw) > SMALL_BYTES
            parse = partial(endpoint.parse_body, raw, headers.get(b"content-type", b""))
            request.parameters = await self._threads(parse) if request.large else parse()
        if operation.idempotent and (key := headers.get(b"idempotency-key")) is not None:
            request.idempotency_key = key.decode("latin-1")
        return await endpoint.handler(request)

    async def _read_body(self, request: Request, receive: Any) -> bytearray:
        """Reads the body; raises as soon as it is known to be too large.

        Memory for a body that may be large is reserved before it is read, by its declared length.
        """
        max_bytes, declared = self._max_body_bytes, request.headers.get(b"content-length", b"0")
        if request.endpoint.operation.is_public:
            max_bytes = min(max_bytes, MAX_PUBLIC_BODY_BYTES)
        expected = int(declared[:20]) if declared.isdigit() else 0
        if b"transfer-encoding" in request.headers:
            expected = max_bytes
        if SMALL_BYTES < expected <= max_bytes:
            request.reserve_bytes(expected)
        body, has_more = bytearray(), True
        while has_more and max(expected, len(body)) <= max_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise errors.Unavailable("the client went away")
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
        if max(expected, len(body)) > max_bytes:
            raise errors.PayloadTooLarge("body", f"at most {max_bytes} bytes")
        return body

    async def _body_pieces(self, receive: Any) -> AsyncIterator[bytes]:
        """The body as it arrives; raises if less than `MIN_BODY_BYTES` arrive within the time limit."""
        received, seconds_left, has_more = 0, self._seconds, True
        while has_more:
            started = time.monotonic()
            async with asyncio.timeout(seconds_left):
                message = await receive()
            if message["type"] == "http.disconnect":
                raise errors.Unavailable("the client went away")
            piece, has_more = message.get("body", b""), message.get("more_body", False)
            received, seconds_left = received + len(piece), seconds_left - (time.monotonic() - started)
            if received >= MIN_BODY_BYTES:
                received, seconds_left = 0, self._seconds
            yield piece

    async def _send_pieces(self, answer: Page | Stream, request: Request, receive: Any, send: Any) -> None:
        """Sends the body of a large or a streaming answer; breaks it off if its client reads too slowly."""
        try:
            await send_body(self._pieces(answer, request), receive, send, self._limit_time)
        except (AlcoveError, TimeoutError) as error:  # clients notice that the answer has no proper end
            reason = str(error) or "the client reads too slowly"
            log.warning("answer %s was cut off: %s", request.id, reason)
            if request.connection:
                request.connection.transport.abort()  # closing would wait for a client that may never read it

    async def _pieces(self, answer: Page | Stream, request: Request) -> AsyncIterator[bytes]:
        """The pieces of an answer; ends with an error, if it can send one, once access is withdrawn.

        A HEAD starts the answer, too, so that it is closed properly.
        """
        if isinstance(answer, Page):
            yield answer.body
            return
        pieces = while_allowed(answer.pieces, request) if answer.waits else answer.pieces
        reservations, checked_at = Reservations(), time.monotonic()
        try:
            async for piece in pieces:
                if request.method == "HEAD":
                    return
                if not answer.waits and time.monotonic() - checked_at >= ACCESS_CHECK_SECONDS:
                    await request.check_access()
                    checked_at = time.monotonic()
                if len(piece) > PART_BYTES:
                    size = min(len(piece), self._max_body_bytes)
                    reservations.take(self._bodies, request.user, size)
                yield piece
                reservations.give_back()
        except AlcoveError as error:
            if answer.last_words is None or STATUS[error.code] >= 500:
                raise
            yield answer.last_words % _encode(ErrorAnswer.of(error, request.id))
        finally:
            reservations.give_back()
            await pieces.aclose()  # type: ignore[attr-defined]


async def send_start(send: Any, answer: Page | Stream, request_id: str) -> bool:
    """Sends the head of an answer, and the body if it is small; returns whether it sent the body.

    uvicorn's `send` writes the head by itself, which is a second system call and wakes the client twice. So
    this function writes both at once if `send` is uvicorn's own and nothing waits to be sent. uvicorn looks
    for line breaks in headers, which this function does not, so it leaves headers of the answer to uvicorn.
    """
    page = answer if isinstance(answer, Page) else None
    is_small = page is not None and len(page.body) <= PART_BYTES
    cycle = getattr(send, "__self__", None)
    if (
        page is None
        or page.headers
        or not is_small
        or not isinstance(cycle, RequestResponseCycle)
        or cycle.scope["method"] == "HEAD"
        or cycle.flow.write_paused
        or cycle.disconnected
        or cycle.response_started
    ):
        headers = [(b"x-request-id", request_id.encode()), *answer.headers]
        if answer.status != 204:
            headers.append((b"content-type", answer.media_type))
            if page:
                headers.append((b"content-length", b"%d" % len(page.body)))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if page and is_small:
            await send({"type": "http.response.body", "body": page.body})
        return is_small
    parts = [STATUS_LINE[page.status]]
    for name, value in cycle.default_headers:
        parts += (name, b": ", value, b"\r\n")
    parts += (b"x-request-id: ", request_id.encode(), b"\r\n")
    if page.status != 204:
        parts += (b"content-type: ", page.media_type, b"\r\ncontent-length: %d\r\n" % len(page.body))
    parts += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", page.body)
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(b"".join(parts))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


def _refuse_repeated(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Refuses a repeated header of authentication: a proxy may have checked the other one."""
    names = [name for name, _ in headers]
    for name, header in _UNIQUE_HEADERS.items():
        if names.count(name) > 1:
            raise errors.InvalidRequest(header, "to be given once")


def _error_page(error: AlcoveError, record: Struct) -> Page:
    headers = []
    if isinstance(error, errors.MethodNotAllowed):
        headers.append((b"allow", str(error.details["allow"]).encode()))
    if isinstance(error, errors.Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if error.code in ("service_unavailable", "rate_limited"):
        headers.append((b"retry-after", b"1"))
    return Page(_encode(record), status=STATUS[error.code], headers=headers)
