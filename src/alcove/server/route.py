"""A resource: one method at one path, with what it takes and gives; routing and OpenAPI read it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import unquote, unquote_plus

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from alcove.api.messages import NoQuery
from alcove.core.errors import InvalidRequest, UnsupportedMediaType
from alcove.core.principal import Principal
from alcove.store.validation import refusal


@dataclass(slots=True)
class Call:
    """One request, as far as a resource needs to know it."""

    principal: Principal
    query: Any
    body: Any
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

    @property
    def asked(self) -> Any:
        """The record of the parameters, wherever they stand."""
        return self.query if self.body is None else self.body

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "_query", _Query(self.query))
        object.__setattr__(self, "_decoder", msgspec.json.Decoder(self.body) if self.body else None)

    @property
    def lasts(self) -> bool:
        """Whether it stays open for as long as there is something to send or to take."""
        return bool(self.streams) or self.takes_lines

    @property
    def body_optional(self) -> bool:
        """Whether nothing need be sent, because nothing in the body is required."""
        required = self.body is None or any(field.required for field in fields(self.body))
        return self.method == "POST" and not required

    def admit(self, principal: Principal) -> None:
        """Refuses who does not have the role, before anything they sent is looked at."""
        if self.role is not None:
            principal.require(self.role)

    def parse_query(self, raw: bytes) -> Struct:
        """The query parameters as a record; an unknown one, or one given twice, is an error."""
        return self._query.parse(raw)  # type: ignore[attr-defined,no-any-return]

    def parse_body(self, raw: bytes | bytearray, content_type: bytes) -> Struct | None:
        """The body as a record; an error names the field."""
        if self.body is None:
            return None
        if not raw and self.body_optional:
            return self.body()
        expect(content_type, b"application/json")
        try:
            return self._decoder.decode(raw)  # type: ignore[attr-defined,no-any-return]
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


class _Query:
    """Turns a query string into a record: repeated names into lists, text into numbers."""

    def __init__(self, record: type[Struct]) -> None:
        self._record = record
        hints = get_type_hints(record)
        self._lists = {name for name, hint in hints.items() if _has(list, hint)}
        self._numbers = {name for name, hint in hints.items() if _has(int, hint)}

    def parse(self, raw: bytes) -> Struct:
        given: dict[str, Any] = {}
        for name, value in _pairs(raw):
            if name not in self._record.__struct_fields__:
                raise InvalidRequest(name, _one_of("parameters", self._record))
            if name in self._lists:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise InvalidRequest(name, "to be given once")
            elif name in self._numbers:
                given[name] = _whole(name, value)
            else:
                given[name] = value
        try:
            return msgspec.convert(given, self._record)
        except msgspec.ValidationError as error:
            raise _named(error, "query", self._record) from None


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    """Names and values in order; `urllib.parse.parse_qsl` takes three times as long."""
    try:
        parts = [part.partition("=") for part in raw.decode("ascii").split("&") if part]
        return [(_unquoted(name), _unquoted(value)) for name, _, value in parts]
    except UnicodeDecodeError:
        raise InvalidRequest("query", "percent-encoded UTF-8") from None


def _unquoted(text: str) -> str:
    return unquote_plus(text, errors="strict") if "%" in text or "+" in text else text


def _one_of(what: str, record: type[Struct]) -> str:
    names = ", ".join(record.__struct_fields__)
    return f"one of the {what} {names}" if names else f"no {what}"


def _has(kind: type, hint: Any) -> bool:
    """Whether a type is a part of a hint, such as int of `Annotated[int, …] | None`."""
    return kind in (hint, get_origin(hint)) or any(_has(kind, part) for part in get_args(hint))


def _whole(name: str, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text):
        raise InvalidRequest(name, "a whole number")
    return int(text)


def _named(error: msgspec.ValidationError, whole: str, record: type[Struct]) -> InvalidRequest:
    """The same complaint with the field first, and with the operation of a batch that it is about."""
    found = refusal(error, record, whole)
    if operation := re.match(r"operations\[(\d+)\]", found.field):
        found.details["operation"] = int(operation[1])
    return found
