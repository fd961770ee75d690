"""What is served where: each route with what it takes and gives, and the operations of tables as routes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import unquote, unquote_plus

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from alcove.api import wire
from alcove.api.messages import NoQuery
from alcove.api.operation import Operation, operations
from alcove.core.errors import InvalidRequest, UnsupportedMediaType
from alcove.core.principal import Principal
from alcove.server.limits import ThreadPool
from alcove.store.common import Steps, Work
from alcove.store.validation import refusal

JSON = b"application/json"


class Page(Struct):
    """An answer that is sent whole: a page, a script, or one of our records once it is encoded."""

    body: bytes
    media_type: bytes
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()


def encoded(answer: object) -> Page:
    """An answer as it is sent: for a thread that has made one that may be large."""
    return Page(wire.encoded(answer), JSON)


NOTHING = Page(b"", b"", 204)


@dataclass(slots=True)
class Call:
    """One request, as far as a resource needs to know it."""

    principal: Principal
    asked: Any
    """The record of the parameters: of the body where there is one, and of the query."""
    headers: Mapping[bytes, bytes]
    path: Mapping[str, str]
    """The parameters in the path."""
    pieces: Any = None
    """The body as it comes, for a resource that takes lines."""
    idempotency_key: str | None = None
    authenticate: Callable[[], Awaitable[Principal]] | None = None
    large: bool = False
    """Whether the body is so large that nothing with it should be done on the event loop."""
    hold: Callable[[int], None] = lambda size: None
    """Takes so many bytes of what all bodies together may have, until the request ends; or refuses it."""

    async def ask_again(self) -> None:
        """Finds out who calls once more, for what stays open; raises where that no longer holds."""
        if self.authenticate:
            self.principal = await self.authenticate()


@dataclass(frozen=True, kw_only=True)
class Resource:
    """What is at a method and a path."""

    name: str
    method: str
    path: str
    summary: str
    tag: str = "service"
    description: str | None = None
    handler: Callable[[Call], Awaitable[Struct | None]]
    query: type[Struct] = NoQuery
    body: type[Struct] | None = None
    answer: type[Struct] | None = None
    errors: tuple[int, ...] = (400, 401, 403)
    role: Literal["admin", "auditor"] | None = None
    """Who may call it, whatever the policy says; what an auditor may, an admin may too."""
    streams: str | None = None
    """The media type of an answer that is sent piece by piece."""
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

    @cached_property
    def lasts(self) -> bool:
        """Whether it stays open for as long as there is something to send or to take."""
        return bool(self.streams) or self.takes_lines

    @cached_property
    def body_optional(self) -> bool:
        """Whether nothing need be sent, because nothing in the body is required."""
        required = self.body is None or any(field.required for field in fields(self.body))
        return self.method == "POST" and not required

    @cached_property
    def _decode(self) -> Callable[[bytes | bytearray], Struct]:
        return msgspec.json.Decoder(self.body or NoQuery).decode

    @cached_property
    def _lists(self) -> set[str]:
        """The parameters of the query that may be repeated."""
        return {name for name, hint in get_type_hints(self.query).items() if _has(list, hint)}

    @cached_property
    def _numbers(self) -> set[str]:
        """Those that are whole numbers."""
        return {name for name, hint in get_type_hints(self.query).items() if _has(int, hint)}

    def parse_query(self, raw: bytes) -> Struct:
        """The query parameters as a record; an unknown one, or one given twice, is an error."""
        given: dict[str, Any] = {}
        try:  # `urllib.parse.parse_qsl` takes three times as long
            for part in raw.decode("ascii").split("&") if raw else ():
                if "%" in part or "+" in part:
                    name, value = (unquote_plus(each, errors="strict") for each in part.partition("=")[::2])
                else:
                    name, _, value = part.partition("=")
                if part:
                    self._take(given, name, value)
        except UnicodeDecodeError:
            raise InvalidRequest("query", "percent-encoded UTF-8") from None
        try:
            return msgspec.convert(given, self.query)
        except msgspec.ValidationError as error:
            raise _named(error, "query", self.query) from None

    def _take(self, given: dict[str, Any], name: str, value: str) -> None:
        """Adds one parameter to those given before it."""
        if name not in self.query.__struct_fields__:
            names = ", ".join(self.query.__struct_fields__)
            raise InvalidRequest(name, f"one of the parameters {names}" if names else "no parameters")
        if name in self._lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise InvalidRequest(name, "to be given once")
        elif name in self._numbers:
            if not re.fullmatch(r"-?[0-9]{1,19}", value):
                raise InvalidRequest(name, "a whole number")
            given[name] = int(value)
        else:
            given[name] = value

    def parse_body(self, raw: bytes | bytearray, content_type: bytes) -> Struct:
        """The body as a record; an error names the field."""
        assert self.body is not None
        if not raw and self.body_optional:
            return self.body()
        expect(content_type, b"application/json")
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
    parts = re.split(r"\{(\w+)\}", path)
    escaped = [
        f"(?P<{part}>[^/]+)" if position % 2 else re.escape(part) for position, part in enumerate(parts)
    ]
    return re.compile("".join(escaped).encode())


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
    found = refusal(error, record, whole)
    if operation := re.match(r"operations\[(\d+)\]", found.field):
        found.details["operation"] = int(operation[1])
    return found


Handler = Callable[[Call], Awaitable[Struct | None]]
_PREFERS_TO_BE_TOLD = b"return=representation"
_SHARED = (
    "name", "tag", "method", "path", "summary", "answer", "errors", "role", "streams", "idempotent", "quiet",
    "unhurried", "example",
)  # fmt: skip
"""What a resource has from its operation as it is."""


def served(
    table: type,
    service: object,
    *,
    reads: ThreadPool,
    changes: ThreadPool,
    handlers: Mapping[str, Handler] | None = None,
) -> list[Resource]:
    """What is at the routes of a table's operations, done by the methods of a service.

    `reads` and `changes` have the threads for operations that only read, and for the others. `handlers` are
    there for those that stream.
    """
    more = handlers or {}
    return [
        _resource(each, more.get(each.name) or _handler(each, service, reads, changes))
        for each in operations(table)
    ]


def _handler(
    operation: Operation[..., Any], service: object, reads: ThreadPool, changes: ThreadPool
) -> Handler:
    method = getattr(service, operation.does.__name__)
    steps = operation.steps and operation.steps.__get__(service)

    async def handle(call: Call) -> Page | None:
        arguments = operation.arguments(call)

        def done() -> Steps[Page | None]:
            if steps is None or call.large:
                yield Work.LARGE
            try:
                if steps:
                    result = yield from steps(call.principal, **arguments)
                else:
                    result = method(call.principal, **arguments)
            except InvalidRequest as error:
                raise operation.named(error) from None
            answer = operation.told(result)
            if operation.quiet and call.headers.get(b"prefer") != _PREFERS_TO_BE_TOLD:
                return None
            return None if answer is None else encoded(answer)

        return await (reads if operation.only_reads(arguments) else changes).settled(done())

    return handle


def _resource(operation: Operation[..., Any], handler: Handler) -> Resource:
    body = None if operation.in_query else operation.request
    query = operation.request if operation.in_query else None
    told: dict[str, Any] = {name: getattr(operation, name) for name in _SHARED}
    query = query or NoQuery
    return Resource(**told, description=operation.__doc__, handler=handler, query=query, body=body)
