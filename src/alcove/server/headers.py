"""Request headers that say who calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from alcove.core.errors import PermissionDenied
from alcove.core.principal import Principal

Headers = Mapping[bytes, bytes]
"""The headers of a request, their names in lower case."""
Authenticator = Callable[[Headers], Awaitable[Principal]]
"""Returns the caller of a request, from its headers and nothing else."""


def bearer_token(headers: Headers) -> bytes:
    """The token in `Authorization: Bearer …`; empty if there is none."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token if scheme.lower() == b"bearer" else b""


def refuse_user_header(headers: Headers) -> None:
    """Refuses `X-User-ID`: whoever sends it expects to be served as that user, and not as somebody else."""
    if b"x-user-id" in headers:
        raise PermissionDenied("only a trusted API key may name the user with X-User-ID")
