"""Requests to a server, with its errors raised as the exceptions that a store in this process raises."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Struct

from alcove.api.operation import Operation as Declared
from alcove.core.clock import checked_moment, to_datetime
from alcove.core.errors import (
    AlcoveError,
    Conflict,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    PolicyError,
    RateLimited,
    StoreError,
    Unauthenticated,
    Unavailable,
    needed_by,
)
from alcove.core.namespace import Namespace
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.core.records import Delete, Deletion, Entry, Get, Memory, Operation, Result
from alcove.server import answers
from alcove.server.answers import ErrorAnswer
from alcove.store import validation
from alcove.store.reading import Address

if TYPE_CHECKING:
    import httpx

_BEFORE_RECONNECTING = 0.5
T = TypeVar("T")
R = TypeVar("R", bound=Struct)
_PLAIN = {each.code: each for each in (NotFound, Conflict, Unavailable, RateLimited, Unauthenticated)}
_NARROW = {each.code: each for each in (InvalidRequest, PayloadTooLarge)}


class Wire:
    """One server and the credentials for it; connections are kept, and shared by threads.

    A principal other than that of a plain handle is named with X-User-ID, as only a trusted key may.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        with needed_by("a store at a URL", extra="client"):
            import httpx  # noqa: PLC0415
        self.url = url.rstrip("/")
        self._client = httpx.Client(timeout=timeout)
        self._headers = _raw(headers)

    def call(
        self,
        who: Principal,
        method: str,
        path: str,
        kind: type[T],
        *,
        params: Mapping[str, object] | None = None,
        body: bytes | None = None,
        lines: Iterable[bytes] | None = None,
        idempotency_key: str | None = None,
        patient: bool = False,
    ) -> T:
        """One request and its answer, read as this kind of record."""
        headers = {"Content-Type": "application/x-ndjson" if lines else "application/json"}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        content, patient = lines or body, patient or lines is not None
        with self.stream(
            who, method, path, params=params, content=content, headers=headers, patient=patient
        ) as response:
            return self.decode(b"".join(response.iter_bytes()), kind)

    def perform(self, who: Principal, operation: Declared[..., T], arguments: Mapping[str, Any]) -> T:
        """Asks the server to do an operation, and gives back what its method would have given here."""
        path, rest = operation.asked(arguments)
        at = operation.path.format(**{name: segment(text, name) for name, text in path.items()})
        answer = self.call(
            who,
            operation.method,
            at,
            operation.answer or type(None),
            params=rest if operation.in_query else None,
            body=None if operation.in_query else whole(rest),  # null takes a setting back
            patient=operation.unhurried,
        )
        return operation.meant(answer)

    @contextmanager
    def stream(
        self,
        who: Principal,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        content: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        patient: bool = False,
    ) -> Iterator[httpx.Response]:
        """One request whose answer is read by the caller; `patient` waits for it as long as it takes."""
        import httpx  # noqa: PLC0415

        given = {name: value for name, value in (params or {}).items() if value is not None}
        named = {} if who is DEFAULT_PRINCIPAL else _raw({"X-User-ID": who.user_id})
        timeout = httpx.Timeout(self._client.timeout.connect, read=None, write=None)
        try:
            request = self._client.build_request(
                method,
                f"{self.url}{path}",
                params=given,  # type: ignore[arg-type]
                content=content,
                headers={**self._headers, **named, **_raw(headers or {})},
                timeout=timeout if patient else self._client.timeout,
            )
            response = self._client.send(request, stream=True)
            try:
                if response.status_code >= 400:
                    raise self._error(response.status_code, response.read())
                yield response
            finally:
                response.close()
        except UnicodeEncodeError:
            raise InvalidRequest("request", "text without lone surrogates") from None
        except httpx.LocalProtocolError:  # its own words would show the token
            raise InvalidRequest("headers", "a token, key and user without control characters") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise InvalidRequest("at", f"the URL of a server ({error})") from None
        except httpx.HTTPError as error:
            raise Unavailable(f"{self.url} cannot be reached: {error or type(error).__name__}") from None

    def lines(self, who: Principal, path: str, params: Mapping[str, object] | None = None) -> Iterator[bytes]:
        """The lines of an answer, as they come; one that ended before its end says so in the last."""
        with self.stream(who, "GET", path, params=params, patient=True) as response:
            for line in _lines(response):
                if line.startswith(b'{"code":'):
                    raise self._error(response.status_code, line)
                yield line

    def sent_events(
        self, who: Principal, path: str, params: Mapping[str, object], last: str | None
    ) -> Iterator[bytes]:
        """The data of server-sent events; once there was a connection, a lost one is made again."""
        connected = False
        while True:
            headers = {} if last is None else {"Last-Event-ID": last}
            try:
                with self.stream(who, "GET", path, params=params, headers=headers, patient=True) as response:
                    connected, special = True, False
                    for line in _lines(response):
                        name, _, text = line.partition(b": ")
                        if name == b"id":
                            last = text.decode()
                        elif name == b"data" and not special:
                            yield text
                        special = name == b"event"  # about the stream, and not one of its events
            except Unavailable:
                if not connected:
                    raise
            time.sleep(_BEFORE_RECONNECTING)

    def decode(self, raw: bytes, kind: type[T]) -> T:
        """A body of the server's as a record."""
        try:
            return _decoder(kind).decode(raw or b"null")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise StoreError(f"what answers at {self.url} is not Alcove, or one of another version") from None

    def close(self) -> None:
        self._client.close()

    def _error(self, status: int, raw: bytes) -> AlcoveError:
        """The exception that the server's error was, or the nearest to it."""
        try:
            told = _decoder(ErrorAnswer).decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if status >= 500:
                return Unavailable(f"{self.url} answers {status}, and not as Alcove does")
            return StoreError(f"what answers at {self.url} is not Alcove ({status})")
        details: dict[str, Any] = told.details or {}
        if told.code in _NARROW and "field" in details:
            error: AlcoveError = _NARROW[told.code](str(details["field"]), str(details.get("expected")))
        elif told.code == InvalidRequest.code:
            error = PolicyError(told.error)
        elif told.code == PermissionDenied.code:
            error = PermissionDenied(told.reason or told.error.removeprefix("access denied: "))
        elif told.code == NotFound.code and told.error.startswith("there is nothing at /"):
            error = StoreError(f"{told.error} of {self.url}: another service, or another version")
        elif told.code in _PLAIN:
            error = _PLAIN[told.code](told.error)
        else:
            error = AlcoveError(f"{told.error} (request {told.request_id})")
        error.details = details
        return error


def record(kind: type[R], answer: Struct) -> R:
    """One of the library's records, from what went over the wire or from a wider one."""
    fields = {name: getattr(answer, name) for name in kind.__struct_fields__}
    fields = {name: None if value is UNSET else value for name, value in fields.items()}
    return kind(**{**fields, "namespace": Namespace(fields["namespace"])})


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """Whole lines, ended by a line feed and by nothing else that a text may hold."""
    begun = bytearray()
    for piece in response.iter_bytes():
        *ended, last = piece.split(b"\n")
        for end in ended:
            yield bytes(begun + end)
            begun.clear()
        begun += last


def _namespace(kind: type, segments: object) -> object:
    """The one type of ours that JSON does not know."""
    return Namespace.checked(segments) if kind is Namespace else segments


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_deciding = threading.Lock()


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a record, made by one thread: two that are the first to need one crash msgspec 0.22."""
    with _deciding:
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(kind, dec_hook=_namespace)
        return _decoders[kind]


def _converted(answer: object, kind: type[T]) -> T:
    _decoder(kind)
    return msgspec.convert(answer, kind)


def _raw(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    """Headers in UTF-8: a user id may hold any character."""
    return {name.encode(): value.encode() for name, value in headers.items()}


def encoded(**fields: object) -> bytes:
    """A body of the fields that are given; what JSON cannot carry is refused here, by its name."""
    return whole({name: field for name, field in fields.items() if field is not None})


def whole(fields: Mapping[str, object]) -> bytes:
    """The same with those that are null."""
    return msgspec.json.encode(
        {
            name: msgspec.Raw(validation.json(dict(field) if isinstance(field, Mapping) else field, name))
            for name, field in fields.items()
        }
    )


def segment(text: str, field: str) -> str:
    """A part of a path; any character may be in it, also the dots that a path is tidied of."""
    if not validation.text(text, field):
        raise InvalidRequest(field, "a non-empty string")
    return quote(text, safe="").replace(".", "%2E")


def segments(address: Address, field: str) -> list[str]:
    """A namespace as the server takes it."""
    return [*Namespace.checked(address, field)]


def fields_of(operation: Operation) -> dict[str, Any]:
    """An operation as its body."""
    fields: dict[str, Any] = {name: getattr(operation, name) for name in operation.__struct_fields__}
    tag = type(operation).__struct_config__.tag
    return {"op": tag, **fields, "namespace": segments(operation.namespace, "namespace")}


def body_of(position: int, operation: Operation) -> bytes:
    try:
        return encoded(**fields_of(operation))
    except AlcoveError as error:
        error.details["operation"] = position
        raise


def result_of(operation: Operation, answer: dict[str, Any] | None) -> Result:
    match operation:
        case Delete():
            assert answer is not None
            return Deletion(**{**answer, "namespace": Namespace(answer["namespace"])})
        case Get():
            return None if answer is None else record(Memory, _converted(answer, answers.MemoryAnswer))
        case _:
            return record(Entry, _converted(answer, answers.EntryAnswer))


def instant(moment: datetime | str | None, field: str) -> str | None:
    """A time as the server takes it."""
    at = checked_moment(moment, field)
    return None if at is None else to_datetime(at).isoformat()
