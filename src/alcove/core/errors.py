"""Every error Alcove raises: one small hierarchy, each class with the code its edge answers with."""

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

    def __init__(self, message: str, *, details: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, object] = details or {}
        self.public_message = message
        """What whoever calls over a network hears: not where the store is, nor what its database says."""

    @property
    def tool_text(self) -> str:
        """One line for the model that called a tool; it leaves this machine, so it is what `told` says."""
        return f"error: {' '.join(self.public_message.split())}"


class InvalidRequest(AlcoveError):
    """An argument is wrong; the message names the field and what was expected."""

    code = "invalid_request"

    def __init__(self, field: str, expected: str) -> None:
        field, expected = _cut(field, 300), _cut(expected, 600)
        super().__init__(f"{field}: expected {expected}", details={"field": field, "expected": expected})
        self.field = field
        self.expected = expected


def _cut(text: str, most: int) -> str:
    """What an error repeats of what was sent, which may be megabytes long."""
    return text if len(text) <= most else f"{text[:most]}…"


class PayloadTooLarge(InvalidRequest):
    """An argument is well-formed but larger than its limit."""

    code = "payload_too_large"


class PermissionDenied(AlcoveError):
    """The caller may not do this; `reason` says why, in the policy's own words if it was the policy."""

    code = "permission_denied"

    def __init__(self, reason: str, *, operation: str | None = None) -> None:
        """`operation`: the name of what the policy denied; None if something else denied it."""
        super().__init__(f"access denied: {reason}")
        self.reason = reason
        self.operation = operation


class NotFound(AlcoveError):
    """What the call acts on is not there."""

    code = "not_found"


class Conflict(AlcoveError):
    """The memory is not at the revision the caller expected."""

    code = "conflict"


class Unavailable(AlcoveError):
    """The store cannot take the call now (busy, full, read-only); nothing was changed."""

    code = "service_unavailable"


class UpstreamFailed(AlcoveError):
    """The LLM gave an error, or what is no answer; nothing was stored."""

    code = "upstream_failed"


class UpstreamTimeout(UpstreamFailed):
    """The LLM, or the whole turn, took longer than it may; nothing was stored."""

    code = "upstream_timeout"


class StoreError(AlcoveError):
    """The store cannot be opened: another program's file, a newer schema, a path that is no file."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.public_message = "the store cannot be opened"


class KeyUnavailable(AlcoveError):
    """The key that sealed the data is missing or wrong; nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.public_message = "the key that opens this store is not available"


class Unreadable(AlcoveError):
    """A sealed value does not open: it was altered, or moved from the row it was sealed for."""


class KeyDestroyed(Unreadable):
    """A value's data key is gone: its user was wiped."""


class PolicyFailed(AlcoveError):
    """The policy in force failed over a call that it should have decided; the log says where."""


class PolicyError(AlcoveError):
    """A policy bundle does not compile or evaluate; the message has file and line."""

    code = "invalid_request"


class Unauthenticated(AlcoveError):
    """Nobody said who they are, or what they said does not hold."""

    code = "unauthenticated"


class RateLimited(AlcoveError):
    """The caller makes more requests than the server lets them."""

    code = "rate_limited"


class MethodNotAllowed(AlcoveError):
    """There is something at this path, but not for this method; `details["allow"]` has those it is for."""

    code = "method_not_allowed"


class UnsupportedMediaType(AlcoveError):
    """The body is of a kind that is not taken here."""

    code = "unsupported_media_type"


class MissingExtra(AlcoveError):
    """Packages that only some installations need are not there; the message says what to install."""


def hide_address(error: E, place: object, told: str | None = None) -> E:
    """An error whose message names the place of a store, which is not for everybody who calls."""
    error.public_message = told or error.message.replace(str(place), "the store")
    return error


@contextmanager
def requires_extra(what: str, *, extra: str) -> Iterator[None]:
    """Goes around the imports of an optional part: where one fails, raises `MissingExtra`."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{what} needs {error.name}: pip install '.[{extra}]' in a clone of Alcove"
        ) from None


def quote_name(name: str) -> str:
    """A name that a caller sent, quoted and at most 60 characters long, for an error message."""
    return repr(name if len(name) <= 60 else f"{name[:60]}…")
