"""Errors at the edge: each code's status, and the few that only an edge can raise."""

from __future__ import annotations

from alcove.core.errors import AlcoveError

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
    "not_implemented": 501,
    "service_unavailable": 503,
}


class Unauthenticated(AlcoveError):
    """Nobody said who they are, or what they said does not hold."""

    code = "unauthenticated"


class MethodNotAllowed(AlcoveError):
    code = "method_not_allowed"


class UnsupportedMediaType(AlcoveError):
    code = "unsupported_media_type"


class RateLimited(AlcoveError):
    code = "rate_limited"
