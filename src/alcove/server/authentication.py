"""Authentication of requests, as `--auth` configures it: by JSON Web Tokens, by API keys, or not at all."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from urllib.parse import urlsplit

from alcove.core.errors import InvalidRequest, PermissionDenied, Unauthenticated
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal, check_user_id
from alcove.core.records import ApiKey
from alcove.server.config import ServeConfig

Headers = Mapping[bytes, bytes]
"""The headers of a request, their names in lower case."""
Authenticator = Callable[[Headers], Awaitable[Principal]]
"""Returns the caller of a request, from its headers and nothing else."""
KEY_PREFIX = b"alcove_"
"""Every API key begins with it, and no token does."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
_MAX_LOOKUPS = 8
"""Keys that are looked up in a remote store at the same time."""


def make_authenticator(
    config: ServeConfig, find_key: Callable[[str], ApiKey | None], *, remote_store: bool
) -> Authenticator:
    """The authenticator that `--auth` names.

    `find_key` looks an API key up in the store. `remote_store`: the store is behind a network, so that it is
    asked in threads.
    """
    if config.auth == "noop":
        return partial(_allow_everybody, any_host=config.insecure)
    by_key = ApiKeyAuthenticator(find_key, remote_store=remote_store)
    if config.auth == "apikey":
        return by_key
    from alcove.server.jwt_tokens import TokenAuthenticator  # noqa: PLC0415  loads PyJWT

    by_token = TokenAuthenticator(config)
    return by_token if config.auth == "jwt" else partial(_by_key_or_token, by_key=by_key, by_token=by_token)


async def _allow_everybody(headers: Headers, *, any_host: bool) -> Principal:
    """Everybody is `noop`, an admin; safe only where nobody else can reach the server.

    Unless `any_host` allows it, a page of another origin, or a host name that was made to point here, must
    not use a browser to get in.
    """
    if b"x-user-id" in headers:
        refuse_user_header(headers)
    if not any_host and not is_loopback_url(b"//" + headers.get(b"host", b"localhost")):
        raise PermissionDenied(
            "this server has no authentication, so it serves requests to localhost only: call it by "
            "that name, or start it with --auth jwt or --auth apikey"
        )
    if not any_host and not is_loopback_url(headers.get(b"origin", b"//localhost")):
        raise PermissionDenied("this server has no authentication, so it serves no pages of other origins")
    return DEFAULT_PRINCIPAL


class ApiKeyAuthenticator:
    """Finds the user of an API key; only a trusted key may name the user itself, in `X-User-ID`."""

    def __init__(self, find_key: Callable[[str], ApiKey | None], *, remote_store: bool) -> None:
        self._find_key = find_key
        self._threads = ThreadPoolExecutor(_MAX_LOOKUPS, "alcove-keys") if remote_store else None

    async def __call__(self, headers: Headers) -> Principal:
        bearer = bearer_token(headers)
        if bearer and b"x-api-key" in headers:
            raise InvalidRequest("X-API-Key", "no bearer token next to it: send one of the two")
        text = headers.get(b"x-api-key", bearer).decode("latin-1")
        if not text:
            key = None
        elif self._threads is None:
            key = self._find_key(text)
        else:
            key = await asyncio.get_running_loop().run_in_executor(self._threads, self._find_key, text)
        if key is None:
            raise Unauthenticated(
                "the API key is missing, wrong or revoked: send a valid one in the header X-API-Key, or in "
                "`Authorization: Bearer …`"
            )
        if not key.trusted:
            refuse_user_header(headers)
        try:
            user = headers[b"x-user-id"].decode() if b"x-user-id" in headers else key.user
        except UnicodeDecodeError:
            raise Unauthenticated("the header X-User-ID is not UTF-8") from None
        if not user:
            raise Unauthenticated("this API key belongs to no user: name one in the header X-User-ID")
        check_user_id(user, "X-User-ID")
        return Principal(user, key.client, {"roles": list(key.roles)})


async def _by_key_or_token(headers: Headers, *, by_key: Authenticator, by_token: Authenticator) -> Principal:
    """Takes a bearer token that begins as our API keys do for an API key."""
    bearer = bearer_token(headers)
    if not bearer and b"x-api-key" not in headers:
        raise Unauthenticated(
            "a bearer token or an API key is missing: send one in `Authorization: Bearer …`, or the key in "
            "the header X-API-Key"
        )
    is_key = b"x-api-key" in headers or bearer.startswith(KEY_PREFIX)
    return await (by_key if is_key else by_token)(headers)


# Headers


def bearer_token(headers: Headers) -> bytes:
    """The token in `Authorization: Bearer …`; empty if there is none."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token if scheme.lower() == b"bearer" else b""


def refuse_user_header(headers: Headers) -> None:
    """Refuses `X-User-ID`: whoever sends it expects to be served as that user, and not as somebody else."""
    if b"x-user-id" in headers:
        raise PermissionDenied("only a trusted API key may name the user with X-User-ID")


def is_local_program(address: str, headers: Headers) -> bool:
    """True for a program on this machine; false for a proxy, and for a browser that shows another site."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    if not (mapped or ip).is_loopback or any(name in headers for name in _FORWARDED):
        return False
    return has_loopback_host(headers) and is_loopback_url(headers.get(b"origin", b"//localhost"))


def has_loopback_host(headers: Headers) -> bool:
    """True if the header `Host` names this machine, or is missing."""
    return is_loopback_url(b"//" + headers.get(b"host", b"localhost"))


@lru_cache(16)  # an entry may be as long as a request's headers may be
def is_loopback_url(url: bytes) -> bool:
    """True if a URL names this machine."""
    try:
        return urlsplit(url.decode("latin-1")).hostname in LOOPBACK
    except ValueError:
        return False
