"""A server as its clients see it: what to send it, and what its answers mean. Nothing here waits."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
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
_PLAIN = {
    each.code: each
    for each in (errors.NotFound, errors.Conflict, Unavailable, errors.RateLimited, errors.Unauthenticated,
                 errors.UpstreamFailed, errors.UpstreamTimeout)
}  # fmt: skip
_NARROW = {each.code: each for each in (InvalidRequest, errors.PayloadTooLarge)}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class NotReached(Unavailable):
    """No connection could be made, so that nothing was sent."""


class HttpRequest(Struct, kw_only=True):
    """A request, before it is sent."""

    method: str
    path: str
    params: Mapping[str, object] = {}
    content: Any = None
    headers: dict[str, str] = {}
    patient: bool = False
    """Whether to wait for its answer for as long as it takes."""
    repeatable: bool = False
    """Whether it may be sent again when nobody knows whether it was done."""


class Server:
    """One server and the credentials for it."""

    def __init__(
        self, url: str, token: str | None, api_key: str | None, timeout: float, retries: int
    ) -> None:
        """`retries`: how often a request that failed on its way is sent again, where that is safe."""
        with errors.requires_extra("a store at a URL", extra="client"):
            import httpx  # noqa: PLC0415
        if token and api_key:
            raise InvalidRequest("api_key", "a token or an API key, not both")
        self.url = url.rstrip("/")
        self.httpx = httpx
        """An extra, which is loaded for who needs it."""
        self._timeout = httpx.Timeout(timeout)
        self.options = {
            "limits": httpx.Limits(max_connections=None),
            "verify": not url.lower().startswith("http://"),  # reading certificates takes 50 ms
        }
        """For a client: every stream has a connection, and no other call waits for one of theirs to end."""
        self._patient = httpx.Timeout(timeout, read=None, write=None)
        self._credentials = _raw({"X-API-Key": api_key, "Authorization": token and f"Bearer {token}"})
        self._retries = retries

    def request(
        self, operation: Operation[..., Any], args: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[HttpRequest, dict[str, Any]]:
        """The request for an operation that is called with these arguments, and all of them by name."""
        bound = operation.signature.bind(*args, **named)
        bound.apply_defaults()
        arguments = bound.arguments
        path, rest = operation.to_request(arguments)
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
            path=operation.path.format(**{name: segment(text, name) for name, text in path.items()}),
            params=_query(rest) if operation.in_query else {},
            content=None if operation.in_query else body(rest),
            headers=headers,
            patient=operation.unlimited_time or operation.stream_type is not None,
            repeatable=operation.repeatable,
        )
        return request, arguments

    def result(self, operation: Operation[..., Any], body: bytes, arguments: Mapping[str, Any]) -> object:
        """The result of an operation, from the body of its answer."""
        return operation.to_result(self.decode(body, operation.answer or type(None)), arguments)

    def httpx_arguments(self, principal: Principal, request: HttpRequest) -> dict[str, Any]:
        """The arguments of `httpx.Client.stream`. Only a principal that the caller chose is named."""
        named = {} if principal is DEFAULT_PRINCIPAL else _raw({"X-User-ID": principal.user_id})
        return {
            "method": request.method,
            "url": f"{self.url}{request.path}",
            "params": request.params,
            "content": request.content,
            "headers": {**self._credentials, **named, **_raw(request.headers)},
            "timeout": self._patient if request.patient else self._timeout,
        }

    def pause(self, request: HttpRequest, error: AlcoveError, attempts: int) -> float:
        """Seconds to wait before a request is sent again; raises the error if it must not be."""
        can_retry = isinstance(error, NotReached) or (
            request.repeatable and isinstance(error, Unavailable | errors.RateLimited)
        )
        if not can_retry or attempts >= self._retries:
            raise error
        return float(min(_FIRST_PAUSE * 2**attempts * (1 + random.random()), _LONGEST_PAUSE))  # noqa: S311

    @contextmanager
    def errors_translated(self) -> Iterator[None]:
        """Raises what went wrong on the way as errors of ours."""
        httpx = self.httpx
        try:
            yield
        except UnicodeEncodeError:
            raise InvalidRequest("request", "text without lone surrogates") from None
        except httpx.LocalProtocolError:  # its own words would show the token
            raise InvalidRequest("headers", "a token, key and user without control characters") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise InvalidRequest("at", f"the URL of a server ({error})") from None
        except httpx.HTTPError as error:
            kind = NotReached if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else Unavailable
            raise kind(f"{self.url} cannot be reached: {str(error) or type(error).__name__}") from None

    def decode(self, raw: bytes, kind: type[T]) -> T:
        """A body of the server's as a record."""
        try:
            return decoder(kind).decode(raw or b"null")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise StoreError(f"what answers at {self.url} is not Alcove, or one of another version") from None

    def error(self, status: int, raw: bytes) -> AlcoveError:
        """The exception that the server's error was, or the nearest to it."""
        try:
            told = decoder(ErrorAnswer).decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if status >= 500:
                return Unavailable(f"{self.url} answers {status}, and not as Alcove does")
            return StoreError(f"what answers at {self.url} is not Alcove ({status})")
        details: dict[str, Any] = told.details or {}
        if told.code in _NARROW and "field" in details:
            error: AlcoveError = _NARROW[told.code](str(details["field"]), str(details.get("expected")))
        elif told.code == InvalidRequest.code:
            error = errors.PolicyError(told.error)
        elif told.code == errors.PermissionDenied.code:
            error = errors.PermissionDenied(told.reason or told.error.removeprefix("access denied: "))
        elif told.code == errors.NotFound.code and told.error.startswith("there is nothing at /"):
            error = StoreError(f"{told.error} of {self.url}: another service, or another version")
        elif told.code in _PLAIN:
            error = _PLAIN[told.code](told.error)
        else:
            error = AlcoveError(f"{told.error} (request {told.request_id})")
        error.details = details
        return error


def body(fields: Mapping[str, object]) -> bytes:
    """A body of the fields that are given; what JSON cannot carry is refused here, by its name."""
    return msgspec.json.encode({name: _json(field, name) for name, field in fields.items()})


def _json(field: object, name: str) -> msgspec.Raw:
    if isinstance(field, msgspec.Raw):
        return field
    return msgspec.Raw(validation.encode_json(dict(field) if isinstance(field, Mapping) else field, name))


def _query(fields: Mapping[str, object]) -> dict[str, object]:
    for name, field in fields.items():
        for text in field if isinstance(field, list) else [field]:
            if isinstance(text, str):
                validation.encode_text(text, name)
    return {**fields}


def segment(text: str, field: str) -> str:
    """A part of a path; any character may be in it, also the dots that a path is tidied of."""
    if not validation.encode_text(text, field):
        raise InvalidRequest(field, "a non-empty string")
    return quote(text, safe="").replace(".", "%2E")


def _raw(headers: Mapping[str, str | None]) -> dict[bytes, bytes]:
    """Headers that are given, in UTF-8: a user id may hold any character."""
    return {name.encode(): value.encode() for name, value in headers.items() if value is not None}
