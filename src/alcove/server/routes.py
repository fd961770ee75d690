"""Routes: requests and their parsing, endpoints, and the handlers of a table of operations."""

from __future__ import annotations

import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints
from urllib.parse import unquote_plus

import msgspec
from msgspec import Struct

from alcove.api.messages import NoQuery
from alcove.api.operation import Operation, operations
from alcove.core.decoding import convert, decoder
from alcove.core.errors import InvalidRequest, UnsupportedMediaType
from alcove.core.fair_shares import Shares
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.core.validation import to_invalid_request
from alcove.server.authentication import Authenticator
from alcove.server.limits import Reservations, ThreadPool
from alcove.store.access import View

JSON = b"application/json"
CONNECTION = "alcove.connection"
"""The key of a scope for the connection, which knows whether its client is gone."""
CLIENT_GONE = 499
"""The status in the log of a request whose client went away before it was answered."""
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_FLAGS = {"true": True, "false": False}


class Page(Struct):
    """An answer that is sent whole: an encoded record, a page, or a script."""

    body: bytes
    media_type: bytes = JSON
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()


NO_CONTENT = Page(b"", status=204)


class Request:
    """One request and its answer, for its handler, the log, metrics and traces."""

    endpoint: Endpoint
    parameters: Any
    """The record of the body if there is one, else of the query."""
    path: dict[str, str]
    """The parameters in the path."""
    pieces: AsyncIterator[bytes]
    """The body as it arrives, for an operation with `line_body`."""
    idempotency_key: str | None = None
    large = False
    """Whether the body is so large that only threads should work on it, not the event loop."""
    principal = DEFAULT_PRINCIPAL
    user: str | None = None
    """The caller; None for a public operation."""
    view: View | None = None
    """Checks, for an answer that stays open, that the caller may still see it; raises if not."""
    status = CLIENT_GONE

    def __init__(
        self,
        scope: dict[str, Any],
        route: str,
        authenticate: Authenticator,
        add_grants: Callable[[Principal], Principal] | None,
        bodies: Shares,
    ) -> None:
        """A request whose operation declares its path as `route`.

        `bodies`: the bytes that all requests together may use for their bodies.
        """
        self.scope, self.route = scope, route
        self.started = time.perf_counter()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.method: str = scope["method"]
        self.connection = scope.get(CONNECTION)
        sent_id = self.headers.get(b"x-request-id", b"")
        self.id = sent_id.decode() if _REQUEST_ID.fullmatch(sent_id) else f"{random.getrandbits(64):016x}"
        self.reservations = Reservations()
        self._authenticate, self._add_grants, self._bodies = authenticate, add_grants, bodies

    async def check_access(self) -> None:
        """Authenticates the caller again, for a request that stays open; raises if access was withdrawn."""
        principal = await self._authenticate(self.headers)
        self.principal = self._add_grants(principal) if self._add_grants else principal
        if role := self.endpoint.operation.role:
            self.principal.require(role)
        if self.view:
            self.view()

    def reserve_bytes(self, size: int) -> None:
        """Reserves memory for a body until the request ends; raises `Unavailable` if there is none."""
        self.reservations.take(self._bodies, self.user, size)


Handler = Callable[[Request], Awaitable[Struct]]


class Endpoint:
    """An operation with the handler that answers it; parses its requests."""

    def __init__(self, operation: Operation[..., Any], handler: Handler) -> None:
        self.operation, self.handler = operation, handler
        record = operation.request
        self.body = record if operation.has_body else None
        in_query = None if self.body else record
        self.query: type[Struct] = operation.query_record or in_query or NoQuery
        self.stays_open = bool(operation.stream_type or operation.line_body or operation.unlimited_time)
        """Whether it takes longer than the time limit of requests."""
        required = self.body is None or any(field.required for field in msgspec.structs.fields(self.body))
        self.is_body_optional = operation.method == "POST" and not required
        self._decode = decoder(self.body or NoQuery).decode
        hints = get_type_hints(self.query)
        self._lists, self._numbers, self._flags = (
            {name for name, hint in hints.items() if _contains(kind, hint)} for kind in (list, int, bool)
        )

    def parse_query(self, raw: bytes) -> Struct:
        """The query parameters as a record; raises for an unknown parameter and for a repeated one."""
        values: dict[str, Any] = {}
        names = self.query.__struct_fields__
        try:  # `urllib.parse.parse_qsl` takes three times as long
            for part in raw.decode("ascii").split("&"):
                name, _, value = part.partition("=")
                if "%" in part or "+" in part:
                    name, value = (unquote_plus(each, errors="strict") for each in (name, value))
                name = self.operation.aliases.get(name, name)
                if name in self._lists:
                    values.setdefault(name, []).append(value)
                elif part:
                    if name not in names:
                        expected = f"one of the parameters {', '.join(names)}" if names else "no parameters"
                        raise InvalidRequest(name, expected)
                    if name in values:
                        raise InvalidRequest(name, "to be given once")
                    values[name] = self._parse_value(name, value)
        except UnicodeDecodeError:
            raise InvalidRequest("query", "percent-encoded UTF-8") from None
        try:
            return convert(values, self.query)
        except msgspec.ValidationError as error:
            raise to_invalid_request(error, self.query, "query") from None

    def _parse_value(self, name: str, value: str) -> str | int | bool:
        if name in self._flags and value in _FLAGS:
            return _FLAGS[value]
        if name not in self._numbers:
            return value
        if not re.fullmatch(r"-?[0-9]{1,19}", value):
            raise InvalidRequest(name, "a whole number")
        return int(value)

    def parse_body(self, raw: bytes | bytearray, content_type: bytes) -> Struct:
        """The body as a record; errors name the field."""
        assert self.body is not None
        if not raw and self.is_body_optional:
            return self.body()
        if self.operation.raw_body and not content_type.lower().startswith(JSON):
            return self.body(**{self.operation.raw_body: bytes(raw)})
        if content_type != JSON:
            check_media_type(content_type, JSON)
        try:
            try:
                return self._decode(raw)
            except msgspec.ValidationError:
                if not (self.operation.aliases and (renamed := self._replace_aliases(raw))):
                    raise
                return self._decode(renamed)
        except msgspec.ValidationError as error:
            invalid = to_invalid_request(error, self.body, "body")
            if operation := re.match(r"operations\[(\d+)\]", invalid.field):
                invalid.details["operation"] = int(operation[1])  # the position in a batch
            raise invalid from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest("body", f"JSON in UTF-8 ({error})") from None

    def _replace_aliases(self, raw: bytes | bytearray) -> bytes | None:
        """The same body with other names replaced by those of its record; None if it uses none."""
        fields = msgspec.json.decode(raw)
        if not isinstance(fields, dict):
            return None
        names = {name: self.operation.aliases.get(name, name) for name in fields}
        if [*names] == [*names.values()] or len({*names.values()}) < len(names):
            return None
        return msgspec.json.encode({names[name]: value for name, value in fields.items()})


def check_media_type(content_type: bytes, media_type: bytes) -> None:
    """Raises if the body is of another media type."""
    if content_type.partition(b";")[0].strip().lower() != media_type:
        raise UnsupportedMediaType(f"expected a body of {media_type.decode()}")


def path_pattern(path: str) -> re.Pattern[bytes]:
    """A pattern for undecoded paths, in which each `{parameter}` is one segment."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)).encode())


def _contains(kind: type, hint: Any) -> bool:
    """Whether a type is part of a hint, such as int of `Annotated[int, …] | None`."""
    return kind in (hint, get_origin(hint)) or any(_contains(kind, part) for part in get_args(hint))


def endpoint(route: str, handler: Handler, summary: str = "", **options: Any) -> Endpoint:
    """An endpoint that is in no table of operations; its name is that of the handler."""
    return Endpoint(Operation(None, route, summary, name=handler.__name__, **options), handler)


def endpoints(
    table: type,
    services: Mapping[str, object],
    *,
    reads: ThreadPool,
    changes: ThreadPool,
    streams: object = None,
    restarts: bool = False,
) -> list[Endpoint]:
    """The endpoints of a table's operations, answered by services, which are given by their class names.

    `reads` and `changes` are threads for operations that only read, and for others. `streams` has a handler
    for each streaming operation, by its name. `restarts`: whether the services raise before any effect if
    they would block, so that an operation can be tried on the event loop, or in a thread that must not wait.
    """
    served = []
    for operation in operations(table):
        if operation.stream_type:
            handler = getattr(streams, operation.name)
        else:
            stream_handler = getattr(streams, operation.name) if operation.can_stream else None
            service = services[operation.service]
            handler = _make_handler(operation, service, reads, changes, stream_handler, restarts=restarts)
        served.append(Endpoint(operation, handler))
    return served


def _make_handler(
    operation: Operation[..., Any],
    service: object,
    reads: ThreadPool,
    changes: ThreadPool,
    stream_handler: Handler | None,
    *,
    restarts: bool,
) -> Handler:
    """The handler of an operation whose service `restarts` or not.

    A write of a service that restarts awaits its commit on the event loop. `stream_handler` answers requests
    that ask for events.
    """
    assert operation.function is not None
    perform = getattr(service, operation.function.__name__)
    begin = operation.begin.__get__(service) if restarts and operation.begin else None

    async def handle(request: Request) -> Struct:
        headers, principal = request.headers, request.principal
        if stream_handler and (
            request.parameters.stream or b"text/event-stream" in headers.get(b"accept", b"")
        ):
            return await stream_handler(request)
        arguments = operation.arguments(request)
        quick = operation.quick and not request.large
        result = partial(perform, principal, **arguments)
        try:
            if begin:
                pending = await reads.run(partial(begin, principal, **arguments), quick=quick)
                await reads.committed(pending.commit)
                result = pending.result
            if restarts:
                body = await reads.run(lambda: operation.encode_result(result()), quick=quick)
            else:
                threads = reads if operation.only_reads(arguments) else changes
                body = await threads(lambda: operation.encode_result(result()))
        except InvalidRequest as error:
            raise operation.rename_field(error) from None
        if body is None or (operation.no_content and headers.get(b"prefer") != b"return=representation"):
            return NO_CONTENT
        return Page(body)

    return handle
