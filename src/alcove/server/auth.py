"""Who calls: nobody in particular, the bearer of a token, or the holder of an API key."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import math
import time
import urllib.request
import warnings
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import jwt

from alcove.core.admin_records import ApiKey
from alcove.core.errors import InvalidRequest, PermissionDenied, Unauthenticated, Unavailable
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal, check_user_id
from alcove.server.config import ServeConfig

log = logging.getLogger("alcove.http")
Headers = Mapping[bytes, bytes]

_ASYMMETRIC = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA"]
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
_NO_NAMES = "only a trusted API key may name the user with X-User-ID"
"""Whoever names a user expects to be served as that user, and not as somebody else."""
_MOST_TOKENS = 10_000
_MOST_REMEMBERED = 4096
"""Bytes of a token that is remembered, so that all take some 100 MB; a longer one is verified each time."""
SAFE_SECRET_BYTES = 32
warnings.filterwarnings("ignore", category=jwt.InsecureKeyLengthWarning)  # we say so ourselves, once
_FETCH_SECONDS = 5
_MOST_PUBLISHED = 1_000_000
_DISCOVERY = "/.well-known/openid-configuration"
_BETWEEN_FETCHES = 2
_FRESH_SECONDS = 300
_BELIEVED_SECONDS = 3600
_NO_KEY_SET = "the keys that tokens are checked with cannot be fetched; the server's log says why"
_KEY_PREFIX = b"alcove_"
"""How every API key begins, and no token does."""
_KEYS_AT_ONCE = 8
"""API keys that a database on a server is asked for at the same time."""


Authenticator = Callable[[Headers], Awaitable[Principal]]
"""Says who calls, from the headers of a request and nothing else."""


def authenticator(
    config: ServeConfig, find_key: Callable[[str], ApiKey | None], *, far: bool
) -> Authenticator:
    """Who says who calls, as it is configured; `find_key` finds an API key of the store by its text.

    `far`: it asks a server for that, which may not answer.
    """
    if config.auth == "noop":
        return partial(_anybody, anywhere=config.insecure)
    if config.auth == "jwt":
        return Tokens(config)
    threads = ThreadPoolExecutor(_KEYS_AT_ONCE, thread_name_prefix="alcove-keys") if far else None
    by_key = partial(_key_holder, find_key=find_key, threads=threads)
    return by_key if config.auth == "apikey" else partial(_by_either, by_token=Tokens(config), by_key=by_key)


async def _anybody(headers: Headers, *, anywhere: bool) -> Principal:
    """Everybody is `noop`, an admin; safe only where nobody else can reach the server.

    A page of another origin, or a name that was made to point here, must not use a browser to get in, unless
    `anywhere` says that it may.
    """
    if b"x-user-id" in headers:
        raise PermissionDenied(_NO_NAMES)
    if not anywhere:
        if not has_loopback_host(headers):
            raise PermissionDenied("without authentication, only a loopback Host is served")
        origin = headers.get(b"origin")
        if origin is not None and not _is_loopback(origin.decode("latin-1")):
            raise PermissionDenied("without authentication, no other Origin is served")
    return DEFAULT_PRINCIPAL


async def _by_either(headers: Headers, *, by_token: Authenticator, by_key: Authenticator) -> Principal:
    """Whom a token or an API key is of; a bearer that begins as our keys do is one of them."""
    bearer = _bearer(headers)
    if not bearer and b"x-api-key" not in headers:
        raise Unauthenticated("expected a bearer token, or an API key in X-API-Key or as a bearer token")
    is_key = b"x-api-key" in headers or bearer.startswith(_KEY_PREFIX)
    return await (by_key if is_key else by_token)(headers)


class Tokens:
    """JSON Web Tokens, signed with a shared secret or with a key of a published set.

    The algorithms are fixed by the kind of key, so that a token cannot choose `none` or have a public key
    taken for a secret. A verified token is remembered until it expires or the key set changes: a key that is
    no longer in it, or that another one has replaced under its name, verifies nothing from then on.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._secret = config.jwt_secret
        self._published = PublishedKeys(config)
        self._verified: dict[bytes, tuple[float, int, Principal]] = {}

    async def __call__(self, headers: Headers) -> Principal:
        if not (token := _bearer(headers)):
            raise Unauthenticated("expected a bearer token")
        if b"x-user-id" in headers:
            raise PermissionDenied(_NO_NAMES)
        if self._secret is None:
            await self._published.refresh()
        until, version, principal = self._verified.get(token, (0.0, 0, None))
        if principal is None or until <= time.time() or version != self._published.version:
            version = self._published.version  # of the set that verifies it, or of one before
            until, principal = await self._verify(token.decode("latin-1"))
            if len(self._verified) >= _MOST_TOKENS:
                self._verified.clear()
            if len(token) <= _MOST_REMEMBERED:
                self._verified[token] = until, version, principal
        return principal

    async def _verify(self, token: str) -> tuple[float, Principal]:
        config = self._config
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key=await self._published.key_for(token) if self._secret is None else self._secret,
                algorithms=_ASYMMETRIC if self._secret is None else ["HS256"],
                audience=config.jwt_audience,
                issuer=config.jwt_issuer or config.oidc_issuer,
                leeway=config.jwt_leeway,
                options={
                    "require": ["exp"] if config.jwt_require_exp else [],
                    "verify_aud": config.jwt_audience is not None,
                    "verify_sub": False,
                },
            )
        except jwt.PyJWTError as error:
            raise Unauthenticated(f"the token does not hold: {error}") from None
        user = claims.get(config.jwt_user_claim)
        if not isinstance(user, str) or not user:
            raise Unauthenticated(f"the token names no user in {config.jwt_user_claim!r}")
        check_user_id(user, config.jwt_user_claim)
        if config.jwt_roles_claim != "roles":
            claims["roles"] = _claim(claims, config.jwt_roles_claim)
        client = claims.get("azp") or claims.get("client_id")
        try:
            until = int(claims["exp"]) + config.jwt_leeway if "exp" in claims else time.time() + 60
            return until, Principal(user, client if isinstance(client, str) else None, claims)
        except (InvalidRequest, OverflowError) as error:
            raise Unauthenticated(f"the token does not hold: {error}") from None


class PublishedKeys:
    """A key set at a URL, or at the URL that an OIDC issuer names; each key is for one algorithm.

    It is fetched again when it is old or does not have a token's key, though not for every token of somebody
    who makes key ids up. A known key needs no fetch to succeed until the set is too old to be believed.
    """

    version = 0
    """Goes up whenever the keys that are believed change."""

    def __init__(self, config: ServeConfig) -> None:
        self._url, self._issuer = config.jwks_url, config.oidc_issuer
        self._keys: dict[str, jwt.PyJWK] = {}
        self._set: object = None
        self._fetched = self._tried = -math.inf
        self._trouble = ""
        self._fetching: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Fetches a set that is old, and waits for it; after one that failed, nobody waits for the next."""
        if not self._keys or _age(self._fetched) < _FRESH_SECONDS:
            return
        if _age(self._fetched) >= _BELIEVED_SECONDS:
            self._believe(None, {})
        fetching = self._refreshed()
        if fetching and not self._trouble:
            await asyncio.shield(fetching)  # whoever waits may give up; the fetch goes on for all

    async def key_for(self, token: str) -> jwt.PyJWK:
        name = str(jwt.get_unverified_header(token).get("kid", ""))
        if name not in self._keys and (fetching := self._refreshed()):
            await asyncio.shield(fetching)
        if key := self._keys.get(name):
            return key
        if self._trouble:
            raise Unavailable(_NO_KEY_SET)
        raise jwt.InvalidKeyError("its key is not in the key set")

    def _refreshed(self) -> asyncio.Task[None] | None:
        """The fetch that is under way, or a new one unless the last is too recent."""
        if self._fetching is None or self._fetching.done():
            recent = _age(self._tried) <= _BETWEEN_FETCHES
            self._fetching = None if recent else asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        try:
            published = await asyncio.to_thread(self._published)
            keys = _usable_keys(published)
        except (OSError, ValueError, KeyError, TypeError, HTTPException) as error:
            if self._trouble != str(error):
                log.warning("the key set cannot be fetched: %s", error)
            self._trouble = str(error)
        else:
            if published != self._set:
                self._believe(published, keys)
            self._trouble, self._fetched = "", time.monotonic()
        self._tried = time.monotonic()

    def _believe(self, published: object, keys: dict[str, jwt.PyJWK]) -> None:
        self._set, self._keys, self.version = published, keys, self.version + 1

    def _published(self) -> dict[str, Any]:
        url = self._url or str(_json_at(f"{(self._issuer or '').rstrip('/')}{_DISCOVERY}")["jwks_uri"])
        return _json_at(url)


def _usable_keys(published: dict[str, Any]) -> dict[str, jwt.PyJWK]:
    """The keys of a set that sign tokens, by name; one of a kind that we do not know is left out."""
    listed = published["keys"]
    if not isinstance(listed, list):
        raise ValueError("it has no list of keys")
    found = {}
    for each in listed:
        with suppress(jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError):
            key = jwt.PyJWK(each)
            if key.key_id is not None and key.public_key_use in ("sig", None):
                found[key.key_id] = key
    return found


async def _key_holder(
    headers: Headers, *, find_key: Callable[[str], ApiKey | None], threads: ThreadPoolExecutor | None
) -> Principal:
    """Whom an API key acts for; only a trusted one may name the user."""
    bearer = _bearer(headers)
    if bearer and b"x-api-key" in headers:
        raise InvalidRequest("X-API-Key", "no bearer token beside it: send one of the two")
    given = headers.get(b"x-api-key", bearer).decode("latin-1")
    if not given:
        key = None
    elif threads:
        key = await asyncio.get_running_loop().run_in_executor(threads, find_key, given)
    else:
        key = find_key(given)
    if key is None:
        raise Unauthenticated("expected a valid API key, in X-API-Key or as a bearer token")
    named = headers.get(b"x-user-id")
    if named is not None and not key.trusted:
        raise PermissionDenied("only a trusted key may name the user with X-User-ID")
    try:
        user = named.decode() if named is not None else key.user
    except UnicodeDecodeError:
        raise Unauthenticated("X-User-ID: expected UTF-8") from None
    if not user:
        raise Unauthenticated("this key acts for the user that X-User-ID names, and none is named")
    check_user_id(user, "X-User-ID")
    return Principal(user, key.client, {"roles": list(key.roles)})


def make_token(secret: str, user: str, roles: list[str], *, seconds: int) -> str:
    """A token for trying things out in HS256 mode."""
    now = int(time.time())
    claims = {"sub": user, "roles": roles, "iat": now, "exp": now + seconds}
    return jwt.encode(claims, secret, algorithm="HS256")


def on_this_machine(address: str, headers: Headers) -> bool:
    """Whether a program here calls for itself: no proxy for others, and no browser for some page."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    if not (mapped or ip).is_loopback or any(name in headers for name in _FORWARDED):
        return False
    origin = headers.get(b"origin", b"//localhost")
    return has_loopback_host(headers) and _is_loopback(origin.decode("latin-1"))


def has_loopback_host(headers: Headers) -> bool:
    """Whether a request was sent to a name of this machine, or to none."""
    return _is_loopback(f"//{headers.get(b'host', b'localhost').decode('latin-1')}")


@lru_cache(16)  # each as long as a head may be
def _is_loopback(url: str) -> bool:
    try:
        return urlsplit(url).hostname in LOOPBACK
    except ValueError:
        return False


def _bearer(headers: Headers) -> bytes:
    """What the header `Authorization` bears; nothing where it bears something else."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token if scheme.lower() == b"bearer" else b""


def _claim(claims: dict[str, Any], path: str) -> Any:
    """What a claim says, None if it is not there; dots lead into objects, unless one has that very name."""
    found: Any = claims
    for name in [path] if path in claims else path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _age(moment: float) -> float:
    return time.monotonic() - moment


def _json_at(url: str) -> dict[str, Any]:
    """A JSON object that an issuer publishes; one that drips or never ends is given up."""
    deadline = time.monotonic() + _FETCH_SECONDS
    content = b""
    try:
        with urllib.request.urlopen(url, timeout=_FETCH_SECONDS) as answer:  # noqa: S310  the operator's own URL
            while piece := answer.read1(_MOST_PUBLISHED):
                content += piece
                if time.monotonic() > deadline or len(content) > _MOST_PUBLISHED:
                    raise ValueError("it takes too long, or is too long")
        found = json.loads(content)
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        return found
    except (OSError, ValueError, HTTPException) as error:
        raise ValueError(f"{url}: {error}") from None
