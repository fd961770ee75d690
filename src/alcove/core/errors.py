"""Every error that Alcove raises, each with the code that clients see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

E = TypeVar("E", bound="AlcoveError")

STATUS = {
    "invalid_request": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "rate_limited": 429,
    "internal_error": 500,
    "upstream_failed": 502,
    "service_unavailable": 503,
    "upstream_timeout": 504,
}
"""The HTTP status of each code."""


class AlcoveError(Exception):
    """Base of all errors; `code` is stable and meant for programs, the message for people."""

    code = "internal_error"
    default_public_message: str | None = None
    """Replaces the message for remote callers."""

    def __init__(self, message: str, *, details: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, object] = details or {}
        self.public_message = self.default_public_message or message
        """The message for remote callers: without the store's address and the database's own text."""

    @property
    def told(self) -> str:
        """The name of `public_message` in earlier versions."""
        return self.public_message

    @property
    def tool_text(self) -> str:
        """One line for the model that called a tool; made of the public message."""
        return f"error: {' '.join(self.public_message.split())}"


class InvalidRequest(AlcoveError):
    """An argument is wrong; the message names the field and what was expected."""

    code = "invalid_request"

    def __init__(self, field: str, expected: str) -> None:
        field, expected = _truncate(field, 300), _truncate(expected, 600)
        super().__init__(f"{field}: expected {expected}", details={"field": field, "expected": expected})
        self.field = field
        self.expected = expected


def _truncate(text: str, max_length: int) -> str:
    """Shortens what an error repeats of a request, which may be megabytes long."""
    return text if len(text) <= max_length else f"{text[:max_length]}…"


class PayloadTooLarge(InvalidRequest):
    """An argument is well-formed but larger than its limit."""

    code = "payload_too_large"


class PermissionDenied(AlcoveError):
    """The caller may not do this; `reason` says why, in the policy's own words if the policy denied it."""

    code = "permission_denied"

    def __init__(self, reason: str, *, operation: str | None = None) -> None:
        """`operation`: what the policy denied; None if something else denied it."""
        super().__init__(f"access denied: {reason}")
        self.reason = reason
        self.operation = operation


class NotFound(AlcoveError):
    """The object of the call does not exist."""

    code = "not_found"


class Conflict(AlcoveError):
    """The memory is not at the revision the caller expected."""

    code = "conflict"


class Unavailable(AlcoveError):
    """The store cannot take the call now (busy, full, read-only); nothing was changed."""

    code = "service_unavailable"


class UpstreamFailed(AlcoveError):
    """The LLM returned an error or an unusable answer; nothing was stored."""

    code = "upstream_failed"


class UpstreamTimeout(UpstreamFailed):
    """The LLM, or the whole turn, exceeded its time limit; nothing was stored."""

    code = "upstream_timeout"


class StoreError(AlcoveError):
    """The store cannot be opened, such as another program's file or a newer schema."""

    default_public_message = "the store cannot be opened"


class KeyUnavailable(AlcoveError):
    """The key that sealed the data is missing or wrong; nothing was changed."""

    default_public_message = "the key that opens this store is not available"


class Unreadable(AlcoveError):
    """A sealed value cannot be decrypted: it was altered, or moved to another row."""


class KeyDestroyed(Unreadable):
    """A value's data key is destroyed, because its user was wiped."""


class PolicyFailed(AlcoveError):
    """The active policy failed to decide a call; the log says where."""


class PolicyError(AlcoveError):
    """A policy bundle does not compile or evaluate; the message has file and line."""

    code = "invalid_request"


class Unauthenticated(AlcoveError):
    """The request has no credentials, or invalid ones."""

    code = "unauthenticated"


class RateLimited(AlcoveError):
    """The caller exceeds the rate limit."""

    code = "rate_limited"


class MethodNotAllowed(AlcoveError):
    """This path does not support the method; `details["allow"]` lists those that it does."""

    code = "method_not_allowed"


class UnsupportedMediaType(AlcoveError):
    """The content type of the body is not supported."""

    code = "unsupported_media_type"


class MissingExtra(AlcoveError):
    """An optional package is not installed; the message says how to install it."""


def hide_address(error: E, address: object, public_message: str | None = None) -> E:
    """Replaces the store's address in the error's message for remote callers."""
    error.public_message = public_message or error.message.replace(str(address), "the store")
    return error


@contextmanager
def requires_extra(feature: str, *, extra: str) -> Iterator[None]:
    """Put this around the imports of an optional feature: raises `MissingExtra` if one fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{feature} needs {error.name}: pip install '.[{extra}]' in a clone of Alcove"
        ) from None


def quote_name(name: str) -> str:
    """Quotes a name from a request for an error message, cut to 60 characters."""
    return repr(name if len(name) <= 60 else f"{name[:60]}…")
