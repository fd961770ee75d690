"""What is served where: each route with what it takes and gives, and the operations of tables as routes."""

from __future__ import annotations

import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import unquote, unquote_plus

import msgspec
from msgspec import Struct

from alcove.api import wire
from alcove.api.messages import ErrorAnswer, NoQuery
from alcove.api.operation import Operation, operations
from alcove.core.decoding import convert, decoder
from alcove.core.errors import InvalidRequest, UnsupportedMediaType
from alcove.core.principal import DEFAULT_PRINCIPAL
from alcove.core.validation import to_invalid_request
from alcove.server.headers import Authenticator
from alcove.server.limits import Reservations, Shares, ThreadPool
from alcove.store.reading import View

JSON = b"application/json"
CONNECTION = "alcove.connection"
"""Where a scope has what tells that a client is gone, if the server has it."""
CLIENT_GONE = 499
"""The status in the log of a request whose client went away before it was answered."""
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_FLAGS = {"true": True, "false": False}
_PREFERS_TO_BE_TOLD = b"return=representation"


class Page(Struct):
    """An answer that is sent whole: a page, a script, or one of our records once it is encoded."""

    body: bytes
    media_type: bytes = JSON
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()


NOTHING = Page(b"", status=204)


class Request:
    """One request and its answer, for its handler and for who tells of it: log, metrics, traces."""

    resource: Resource
    asked: Any
    """The record of the parameters: of the body where there is one, and of the query."""
    path: Mapping[str, str]
    """The parameters in the path."""
    pieces: AsyncIterator[bytes]
    """The body as it comes, for a resource that takes lines."""
    idempotency_key: str | None = None
    large = False
    """Whether the body is so large that nothing with it should be done on the event loop."""
    principal = DEFAULT_PRINCIPAL
    user: str | None = None
    """Who calls; None where nobody has to say so."""
    view: View | None = None
    """What must still be seen for the answer to go on; it raises where that is no longer allowed."""
    status = CLIENT_GONE

    def __init__(
        self, scope: dict[str, Any], route: str, authenticate: Authenticator, bodies: Shares
    ) -> None:
        """A request at a path that is declared as `route`.

        `authenticate` says who calls, and `bodies` are the bytes that all bodies together may have.
        """
        self.scope, self.route = scope, route
        self.started = time.perf_counter()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.method: str = scope["method"]
        self.connection = scope.get(CONNECTION)
        given = self.headers.get(b"x-request-id", b"")
        self.id = given.decode() if _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        self.held = Reservations()
        self._authenticate, self._bodies = authenticate, bodies

    async def ask_again(self) -> None:
        """Finds out who calls once more, for what stays open; raises where that no longer holds."""
        self.principal = await self._authenticate(self.headers)
        if self.resource.role:
            self.principal.require(self.resource.role)
        if self.view:
            self.view()

    def hold(self, size: int) -> None:
        """Takes so many bytes of what all bodies together may have, until the request ends; or refuses it."""
        self.held.take(self._bodies, self.user, size)


Handler = Callable[[Request], Awaitable[Struct]]


@dataclass(kw_only=True)
class Resource:
    """What is at a method and a path."""

    name: str
    method: str = "GET"
    path: str
    summary: str = ""
    tag: str = "service"
    description: str | None = None
    handler: Handler
    query: type[Struct] = NoQuery
    body: type[Struct] | None = None
    answer: type[Struct] | None = None
    errors: tuple[int, ...] = (400, 401, 403)
    role: Literal["admin", "auditor"] | None = None
    """Who may call it, whatever the policy says; what an auditor may, an admin may too."""
    raw: str | None = None
    """The field that a body of any other media type than JSON is as a whole."""
    streams: str | None = None
    """The media type of an answer that is sent piece by piece."""
    streams_too: bool = False
    """Whether the answer is sent as events to who asks so."""
    refusal: Any = ErrorAnswer
    """The record of errors here, whose `of` makes it from one."""
    takes_lines: bool = False
    """Whether the body is lines of JSON, read as they come and however many they are."""
    idempotent: bool = False
    """Whether an `Idempotency-Key` is taken."""
    quiet: bool = False
    """Whether a 204 answers all who do not prefer to be told."""
    example: Mapping[str, object] | None = None
    """A body that works."""
    unhurried: bool = False
    """Whether it may take as long as the store is large."""
    open: bool = False
    """Whether it is there for callers who have not said who they are."""
    local: bool = False
    """The same, for callers on this machine only."""
    media_type: str | None = None
    """What the answer is where it is text and not one of our records."""

    def __post_init__(self) -> None:
        self.lasts = bool(self.streams) or self.takes_lines or self.unhurried
        """Whether it stays open for as long as there is something to send or to take."""
        required = self.body is None or any(field.required for field in msgspec.structs.fields(self.body))
        self.body_optional = self.method == "POST" and not required
        """Whether nothing need be sent, because nothing in the body is required."""
        self._decode = decoder(self.body or NoQuery).decode
        hints = get_type_hints(self.query)
        self._lists, self._numbers, self._flags = (
            {name for name, hint in hints.items() if _has(kind, hint)} for kind in (list, int, bool)
        )

    def parse_query(self, raw: bytes) -> Struct:
        """The query parameters as a record; an unknown one, or one given twice, is an error."""
        given: dict[str, Any] = {}
        try:  # `urllib.parse.parse_qsl` takes three times as long
            for part in raw.decode("ascii").split("&"):
                name, _, value = part.partition("=")
                if "%" in part or "+" in part:
                    name, value = (unquote_plus(each, errors="strict") for each in (name, value))
                if name in self._lists:
                    given.setdefault(name, []).append(value)
                elif part:
                    given[name] = self._once(given, name, value)
        except UnicodeDecodeError:
            raise InvalidRequest("query", "percent-encoded UTF-8") from None
        try:
            return convert(given, self.query)
        except msgspec.ValidationError as error:
            raise _named(error, "query", self.query) from None

    def _once(self, given: dict[str, Any], name: str, value: str) -> str | int | bool:
        """The value of a parameter that may be given once, and is not among those that were."""
        if name not in self.query.__struct_fields__:
            names = ", ".join(self.query.__struct_fields__)
            raise InvalidRequest(name, f"one of the parameters {names}" if names else "no parameters")
        if name in given:
            raise InvalidRequest(name, "to be given once")
        if name in self._flags and value in _FLAGS:
            return _FLAGS[value]
        if name not in self._numbers:
            return value
        if not re.fullmatch(r"-?[0-9]{1,19}", value):
            raise InvalidRequest(name, "a whole number")
        return int(value)

    def parse_body(self, raw: bytes | bytearray, content_type: bytes) -> Struct:
        """The body as a record; an error names the field."""
        assert self.body is not None
        if not raw and self.body_optional:
            return self.body()
        if self.raw and not content_type.lower().startswith(JSON):
            return self.body(**{self.raw: bytes(raw)})
        if content_type != JSON:
            expect(content_type, JSON)
        try:
            return self._decode(raw)
        except msgspec.ValidationError as error:
            raise _named(error, "body", self.body) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest("body", f"JSON in UTF-8 ({error})") from None


def expect(content_type: bytes, media_type: bytes) -> None:
    """Refuses a body of another kind."""
    if content_type.partition(b";")[0].strip().lower() != media_type:
        raise UnsupportedMediaType(f"expected a body of {media_type.decode()}")


def path_pattern(path: str) -> re.Pattern[bytes]:
    """What an undecoded path looks like, each `{parameter}` being one segment of it."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)).encode())


def path_parameter(name: str, raw: bytes) -> str:
    """One segment of a path, which may hold any character once decoded."""
    try:
        return unquote(raw.decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest(name, "percent-encoded UTF-8") from None


def _has(kind: type, hint: Any) -> bool:
    """Whether a type is a part of a hint, such as int of `Annotated[int, …] | None`."""
    return kind in (hint, get_origin(hint)) or any(_has(kind, part) for part in get_args(hint))


def _named(error: msgspec.ValidationError, whole: str, record: type[Struct]) -> InvalidRequest:
    """The same complaint with the field first, and with the operation of a batch that it is about."""
    found = to_invalid_request(error, record, whole)
    if operation := re.match(r"operations\[(\d+)\]", found.field):
        found.details["operation"] = int(operation[1])
    return found


def served(
    table: type,
    service: object,
    *,
    reads: ThreadPool,
    changes: ThreadPool,
    streams: object = None,
    restarts: bool = False,
) -> list[Resource]:
    """What is at the routes of a table's operations, done by the methods of a service.

    `reads` and `changes` have the threads for operations that only read, and for the others. `streams` has a
    handler for each that streams, by its name. `restarts`: whether the service says before any effect that it
    would block, so that an operation can be tried on the event loop, or in a thread that must not wait.
    """
    resources = []
    for each in operations(table):
        if each.streams:
            handler = getattr(streams, each.name)
        else:
            handler = (_restarting if restarts else _handler)(each, service, reads, changes)
        if each.streams_too:
            handler = _either(handler, getattr(streams, each.name))
        asked = {"query" if each.in_query else "body": each.request} if each.request else {}
        same = {field.name for field in fields(Resource) if hasattr(each, field.name)}
        told: dict[str, Any] = {name: getattr(each, name) for name in same} | asked
        resources.append(Resource(**told, description=each.__doc__, handler=handler))
    return resources


def _handler(
    operation: Operation[..., Any], service: object, reads: ThreadPool, changes: ThreadPool
) -> Handler:
    if operation.awaited:
        return _awaited(operation, service)
    method = getattr(service, operation.does.__name__)

    async def handle(request: Request) -> Page:
        arguments = operation.arguments(request)

        def answer() -> Page:
            return _answer(operation, request, method(request.principal, **arguments))

        try:
            return await (reads if operation.reading(arguments) else changes)(answer)
        except InvalidRequest as error:
            raise operation.named(error) from None

    return handle


def _restarting(
    operation: Operation[..., Any], service: object, reads: ThreadPool, changes: ThreadPool
) -> Handler:
    """The handler of an operation that can be tried on the event loop; a write awaits its commit there."""
    method = getattr(service, operation.does.__name__)
    begin = operation.begin and operation.begin.__get__(service)

    async def handle(request: Request) -> Page:
        arguments = operation.arguments(request)
        threads = reads if operation.reading(arguments) else changes
        quick = operation.quick and not request.large
        result = partial(method, request.principal, **arguments)
        try:
            if begin:
                pending = await threads.run(partial(begin, request.principal, **arguments), quick=quick)
                await threads.committed(pending.commit)
                result = pending.result
            return await threads.run(lambda: _answer(operation, request, result()), quick=quick)
        except InvalidRequest as error:
            raise operation.named(error) from None

    return handle


def _answer(operation: Operation[..., Any], request: Request, result: object) -> Page:
    answer = operation.told(result)
    quiet = operation.quiet and request.headers.get(b"prefer") != _PREFERS_TO_BE_TOLD
    return NOTHING if quiet or answer is None else Page(wire.encoded(answer))


def _awaited(operation: Operation[..., Any], service: object) -> Handler:
    """The handler of an operation that waits for others most of the time, and so holds no thread."""
    does = operation.awaited
    assert does is not None

    async def handle(request: Request) -> Page:
        try:
            result = await does(service, request.principal, **operation.arguments(request))
        except InvalidRequest as error:
            raise operation.named(error) from None
        return Page(wire.encoded(operation.told(result)))

    return handle


def _either(whole: Handler, in_pieces: Handler) -> Handler:
    """The handler of what is answered in one of two ways, as the request says."""

    async def handle(request: Request) -> Struct:
        events = b"text/event-stream" in request.headers.get(b"accept", b"")
        return await (in_pieces if request.asked.stream or events else whole)(request)

    return handle
