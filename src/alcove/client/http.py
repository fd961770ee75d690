"""The client's side of the HTTP protocol: requests, answers, errors and streams. Nothing here does I/O."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from alcove.api.messages import ErrorAnswer
from alcove.api.operation import IDEMPOTENCY_KEY, Operation
from alcove.core import errors, validation
from alcove.core.decoding import decoder
from alcove.core.errors import AlcoveError, InvalidRequest, StoreError, Unavailable
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal

T = TypeVar("T")
_MESSAGE_ERRORS = {
    each.code: each
    for each in (errors.NotFound, errors.Conflict, Unavailable, errors.RateLimited, errors.Unauthenticated,
                 errors.UpstreamFailed, errors.UpstreamTimeout)
}  # fmt: skip
_FIELD_ERRORS = {each.code: each for each in (InvalidRequest, errors.PayloadTooLarge)}
_FIRST_PAUSE, _MAX_PAUSE = 0.1, 2.0


class NotReached(Unavailable):
    """No connection could be made, so nothing was sent."""


class HttpRequest(Struct, kw_only=True):
    """A request, before it is sent."""

    method: str
    path: str
    params: Mapping[str, object] = {}
    content: Any = None
    headers: dict[str, str] = {}
    unlimited_time: bool = False
    """Whether the server may take as long as it needs to answer."""
    repeatable: bool = False
    """Whether it may be sent again if the server may have performed it already."""


class Server:
    """A server's URL and the credentials for it: encodes requests, decodes answers and errors."""

    def __init__(
        self, url: str, token: str | None, api_key: str | None, timeout: float, retries: int
    ) -> None:
        """`retries`: how often a request that was lost is sent again, if that is safe."""
        with errors.requires_extra("a store at a URL", extra="client"):
            import httpx  # noqa: PLC0415
        if token and api_key:
            raise InvalidRequest("api_key", "a token or an API key, not both")
        self.url = url.rstrip("/")
        self.httpx = httpx
        """The module: an extra, which is imported only for stores at a URL."""
        self.options = {
            "limits": httpx.Limits(max_connections=None),
            "verify": not url.lower().startswith("http://"),  # reading certificates takes 50 ms
        }
        """Options of an httpx client. A stream holds a connection, so their number is not limited."""
        self._timeout = httpx.Timeout(timeout)
        self._connect_timeout = httpx.Timeout(timeout, read=None, write=None)
        self._credentials = _encode_headers(
            {"X-API-Key": api_key, "Authorization": token and f"Bearer {token}"}
        )
        self._retries = retries

    def request(
        self, operation: Operation[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[HttpRequest, dict[str, Any]]:
        """Returns the request for a call of an operation, and the arguments of the call by name."""
        bound = operation.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        path, fields = operation.to_request(arguments)
        headers = {"Prefer": "return=representation"} if operation.no_content else {}
        if operation.idempotent:
            key = arguments[IDEMPOTENCY_KEY]
            if key is not None:
                validation.encode_text(key, IDEMPOTENCY_KEY)
            headers["Idempotency-Key"] = secrets.token_hex(16) if key is None else key
        if not operation.in_query:
            headers["Content-Type"] = "application/json"
        request = HttpRequest(
            method=operation.method,
            path=operation.path.format(**{name: _encode_segment(text, name) for name, text in path.items()}),
            params=_check_query(fields) if operation.in_query else {},
            content=None if operation.in_query else _encode_body(fields),
            headers=headers,
            unlimited_time=operation.unlimited_time or operation.stream_type is not None,
            repeatable=operation.repeatable,
        )
        return request, arguments

    def result(self, operation: Operation[..., Any], body: bytes, arguments: Mapping[str, Any]) -> object:
        """The result of an operation, from the body of its answer."""
        return operation.to_result(self.decode(body, operation.answer or type(None)), arguments)

    def httpx_arguments(self, principal: Principal, request: HttpRequest) -> dict[str, Any]:
        """The arguments of `httpx.Client.stream`. The default principal is not named."""
        user = None if principal is DEFAULT_PRINCIPAL else principal.user_id
        return {
            "method": request.method,
            "url": f"{self.url}{request.path}",
            "params": request.params,
            "content": request.content,
            "headers": {**self._credentials, **_encode_headers({"X-User-ID": user, **request.headers})},
            "timeout": self._connect_timeout if request.unlimited_time else self._timeout,
        }

    def pause(self, request: HttpRequest, error: AlcoveError, attempts: int) -> float:
        """Seconds to wait before a request is sent again; raises the error if it must not be."""
        can_retry = isinstance(error, NotReached) or (
            request.repeatable and isinstance(error, Unavailable | errors.RateLimited)
        )
        if not can_retry or attempts >= self._retries:
            raise error
        return float(min(_FIRST_PAUSE * 2**attempts * (1 + random.random()), _MAX_PAUSE))  # noqa: S311

    @contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Raises errors of httpx as Alcove's."""
        httpx = self.httpx
        try:
            yield
        except UnicodeEncodeError:
            raise InvalidRequest("request", "text without lone surrogates") from None
        except httpx.LocalProtocolError:  # its message would show the token
            raise InvalidRequest("headers", "a token, key and user without control characters") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise InvalidRequest("at", f"the URL of a server ({error})") from None
        except httpx.HTTPError as error:
            kind = NotReached if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else Unavailable
            raise kind(f"{self.url} cannot be reached: {str(error) or type(error).__name__}") from None

    def decode(self, body: bytes, kind: type[T]) -> T:
        """The record in the body of an answer."""
        try:
            return decoder(kind).decode(body or b"null")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise StoreError(f"the service at {self.url} is not Alcove, or another version of it") from None

    def error(self, status: int, body: bytes) -> AlcoveError:
        """The exception that the server reported, or the nearest to it."""
        try:
            answer = decoder(ErrorAnswer).decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if status >= 500:
                return Unavailable(f"{self.url} answered {status}, without an error message of Alcove")
            return StoreError(f"the service at {self.url} is not Alcove (it answered {status})")
        details: dict[str, Any] = answer.details or {}
        if answer.code in _FIELD_ERRORS and "field" in details:
            field, expected = str(details["field"]), str(details.get("expected"))
            error: AlcoveError = _FIELD_ERRORS[answer.code](field, expected)
        elif answer.code == InvalidRequest.code:
            error = errors.PolicyError(answer.error)
        elif answer.code == errors.PermissionDenied.code:
            error = errors.PermissionDenied(answer.reason or answer.error.removeprefix("access denied: "))
        elif answer.code == errors.NotFound.code and answer.error.startswith("there is nothing at /"):
            error = StoreError(f"{answer.error} of {self.url}: it is another service, or another version")
        elif answer.code in _MESSAGE_ERRORS:
            error = _MESSAGE_ERRORS[answer.code](answer.error)
        else:
            error = AlcoveError(f"{answer.error} (request {answer.request_id})")
        error.details = details
        return error


def _encode_body(fields: Mapping[str, object]) -> bytes:
    """A JSON body; an error names the field that JSON cannot carry."""
    body = {}
    for name, field in fields.items():
        plain = dict(field) if isinstance(field, Mapping) else field
        is_encoded = isinstance(field, msgspec.Raw)
        body[name] = field if is_encoded else msgspec.Raw(validation.encode_json(plain, name))
    return msgspec.json.encode(body)


def _check_query(fields: Mapping[str, object]) -> dict[str, object]:
    for name, field in fields.items():
        for text in field if isinstance(field, list) else [field]:
            if isinstance(text, str):
                validation.encode_text(text, name)
    return {**fields}


def _encode_segment(text: str, field: str) -> str:
    """A segment of a path. Dots are escaped, too: `..` would be resolved."""
    if not validation.encode_text(text, field):
        raise InvalidRequest(field, "a non-empty string")
    return quote(text, safe="").replace(".", "%2E")


def _encode_headers(headers: Mapping[str, str | None]) -> dict[bytes, bytes]:
    """The headers that are not None, in UTF-8: a user id may have any character."""
    return {name.encode(): value.encode() for name, value in headers.items() if value is not None}


class ResponseStream(Generic[T]):
    """An answer of JSON lines, each a record, decoded as the bytes arrive; an error ends it early."""

    can_reconnect = False
    """Whether to send the request again when the connection ends."""

    def __init__(self, server: Server, request: HttpRequest, kind: type[T]) -> None:
        self.request = request
        self._server, self._kind = server, kind
        self._line = bytearray()

    def start(self) -> None:
        """Prepares for a new answer."""
        self._line.clear()

    def feed(self, chunk: bytes) -> Iterator[T]:
        """Yields the records that this chunk of the answer completes.

        Only a line feed ends a line; texts may contain Unicode's other line ends.
        """
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line = bytes(self._line + end)
            self._line.clear()
            yield from self._records(line)
        self._line += rest

    def _records(self, line: bytes) -> Iterator[T]:
        if line.startswith(b'{"code":'):
            raise self._server.error(200, line)
        yield self._server.decode(line, self._kind)


class AnswerStream(ResponseStream[T]):
    """Server-sent events that answer one request, and end with it."""

    def __init__(self, server: Server, request: HttpRequest, kind: type[T], media_type: str) -> None:
        request.headers |= {"Accept": media_type}
        super().__init__(server, request, kind)
        self._is_error = False

    def _records(self, line: bytes) -> Iterator[T]:
        name, _, text = line.partition(b": ")
        if name == b"data" and self._is_error:
            raise self._server.error(200, text)
        if name == b"data":
            yield self._server.decode(text, self._kind)
        self._is_error = name == b"event" and text == b"error"


class EventStream(ResponseStream[T]):
    """Server-sent events after a cursor; reconnects when the connection is lost."""

    def __init__(self, server: Server, request: HttpRequest, kind: type[T], last_id: str | None) -> None:
        request.headers = {} if last_id is None else {"Last-Event-ID": last_id}
        super().__init__(server, request, kind)
        self._is_control = False
        """Whether the line before named an event: the next one is about the stream, not a record."""

    def start(self) -> None:
        super().start()
        self.can_reconnect, self._is_control = True, False

    def _records(self, line: bytes) -> Iterator[T]:
        name, _, text = line.partition(b": ")
        if name == b"id":
            self.request.headers = {"Last-Event-ID": text.decode()}
        elif name == b"data" and not self._is_control:
            yield self._server.decode(text, self._kind)
        self._is_control = name == b"event"
