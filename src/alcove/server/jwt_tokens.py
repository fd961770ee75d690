"""Authentication by JSON Web Tokens, signed with a shared secret or with a key of a published set."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import urllib.request
import warnings
from contextlib import suppress
from http.client import HTTPException
from typing import Any

import jwt

from alcove.core.errors import InvalidRequest, Unauthenticated, Unavailable
from alcove.core.principal import Principal, check_user_id
from alcove.server.authentication import Headers, bearer_token, refuse_user_header
from alcove.server.config import ServeConfig

log = logging.getLogger("alcove.http")
_ASYMMETRIC = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA"]
_MAX_CACHED_TOKENS = 10_000
_MAX_CACHED_TOKEN_BYTES = 4096
"""A longer token is verified each time, so that the cache takes 100 MB at most."""
_DISCOVERY_PATH = "/.well-known/openid-configuration"
_FETCH_SECONDS = 5
_MAX_KEY_SET_BYTES = 1_000_000
_MIN_FETCH_INTERVAL_SECONDS = 2
FRESH_SECONDS = 300
"""An older set is fetched again."""
TRUSTED_SECONDS = 3600
"""An older set verifies nothing until it is fetched again."""
SAFE_SECRET_BYTES = 32
warnings.filterwarnings("ignore", category=jwt.InsecureKeyLengthWarning)  # startup says so once


class TokenAuthenticator:
    """Verifies tokens and reads the user from their claims.

    The kind of key fixes the algorithms, so that a token cannot choose `none` or pass off a public key as a
    shared secret. A verified token is cached until it expires or the key set changes: a key that was taken
    out of the set, or replaced under its name, verifies nothing from then on.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._secret = config.jwt_secret
        self._key_set = KeySet(config.jwks_url, config.oidc_issuer)
        self._verified: dict[bytes, tuple[float, int, Principal]] = {}
        """By token: when it expires, the version of the key set that verified it, and who it belongs to."""

    async def __call__(self, headers: Headers) -> Principal:
        if not (token := bearer_token(headers)):
            raise Unauthenticated("the bearer token is missing: send one in `Authorization: Bearer …`")
        refuse_user_header(headers)
        if self._secret is None:
            await self._key_set.refresh()
        expires, version, principal = self._verified.get(token, (0.0, 0, None))
        if principal is None or expires <= time.time() or version != self._key_set.version:
            version = self._key_set.version  # read before verifying, so that it is never too new
            expires, principal = await self._verify(token.decode("latin-1"))
            if len(self._verified) >= _MAX_CACHED_TOKENS:
                self._verified.clear()
            if len(token) <= _MAX_CACHED_TOKEN_BYTES:
                self._verified[token] = expires, version, principal
        return principal

    async def _verify(self, token: str) -> tuple[float, Principal]:
        """When the token expires, and who it belongs to."""
        config = self._config
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key=await self._key_set.key_for(token) if self._secret is None else self._secret,
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
            raise _invalid(error) from None
        user = claims.get(config.jwt_user_claim)
        if not isinstance(user, str) or not user:
            raise Unauthenticated(f"the token names no user: its claim {config.jwt_user_claim!r} is missing")
        check_user_id(user, config.jwt_user_claim)
        if config.jwt_roles_claim != "roles":
            claims["roles"] = _claim(claims, config.jwt_roles_claim)
        client = claims.get("azp") or claims.get("client_id")
        try:
            expires = int(claims["exp"]) + config.jwt_leeway if "exp" in claims else time.time() + 60
            return expires, Principal(user, client if isinstance(client, str) else None, claims)
        except (InvalidRequest, OverflowError) as error:
            raise _invalid(error) from None


def make_token(secret: str, user: str, roles: list[str], *, seconds: int) -> str:
    """A token signed with the shared secret, for trying the server out."""
    now = int(time.time())
    claims = {"sub": user, "roles": roles, "iat": now, "exp": now + seconds}
    return jwt.encode(claims, secret, algorithm="HS256")


def _invalid(error: Exception) -> Unauthenticated:
    return Unauthenticated(f"this is not a valid token: {error}")


def _claim(claims: dict[str, Any], path: str) -> Any:
    """The value of a claim or None; dots lead into objects, unless a claim has that very name."""
    value: Any = claims
    for name in [path] if path in claims else path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


class KeySet:
    """The keys of a set by their id; each is for one algorithm.

    The set is fetched again when it is old or lacks a token's key, though not for every token with an
    invented key id. A known key stays valid while fetches fail, until the set is too old to be trusted.
    """

    version = 0
    """Goes up whenever the trusted keys change."""

    def __init__(self, url: str | None, issuer: str | None) -> None:
        """`url`: of the set. `issuer`: an OIDC issuer that names the URL, if `url` is None."""
        self._url, self._issuer = url, issuer
        self._keys: dict[str, jwt.PyJWK] = {}
        self._document: object = None
        self._fetched_at = self._tried_at = -math.inf
        self._last_error = ""
        self._fetching: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Fetches an old set again and waits for it, unless the last fetch failed: then nobody waits."""
        if not self._keys or _seconds_since(self._fetched_at) < FRESH_SECONDS:
            return
        if _seconds_since(self._fetched_at) >= TRUSTED_SECONDS:
            self._replace(None, {})
        fetching = self._start_fetch()
        if fetching and not self._last_error:
            await asyncio.shield(fetching)  # a caller may give up; the fetch goes on for the others

    async def key_for(self, token: str) -> jwt.PyJWK:
        """The key that the token says it is signed with."""
        key_id = str(jwt.get_unverified_header(token).get("kid", ""))
        if key_id not in self._keys and (fetching := self._start_fetch()):
            await asyncio.shield(fetching)
        if key := self._keys.get(key_id):
            return key
        if self._last_error:
            raise Unavailable(
                "tokens cannot be verified now, because the server cannot fetch the key set (its log says "
                "why); try again later"
            )
        raise jwt.InvalidKeyError("its key is not in the key set")

    def _start_fetch(self) -> asyncio.Task[None] | None:
        """The running fetch, or a new one; None if the last one is too recent."""
        if self._fetching is None or self._fetching.done():
            is_recent = _seconds_since(self._tried_at) <= _MIN_FETCH_INTERVAL_SECONDS
            self._fetching = None if is_recent else asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        try:
            document = await asyncio.to_thread(self._download)
            keys = _signing_keys(document)
        except (OSError, ValueError, KeyError, TypeError, HTTPException) as error:
            if self._last_error != str(error):
                log.warning("the key set cannot be fetched: %s", error)
            self._last_error = str(error)
        else:
            if document != self._document:
                self._replace(document, keys)
            self._last_error, self._fetched_at = "", time.monotonic()
        self._tried_at = time.monotonic()

    def _replace(self, document: object, keys: dict[str, jwt.PyJWK]) -> None:
        self._document, self._keys, self.version = document, keys, self.version + 1

    def _download(self) -> dict[str, Any]:
        url = self._url or str(
            _download_json(f"{(self._issuer or '').rstrip('/')}{_DISCOVERY_PATH}")["jwks_uri"]
        )
        return _download_json(url)


def _signing_keys(document: dict[str, Any]) -> dict[str, jwt.PyJWK]:
    """The keys of a set that sign tokens, by id; keys of unknown kinds are left out."""
    if not isinstance(document["keys"], list):
        raise ValueError("it has no list of keys")
    keys = {}
    for entry in document["keys"]:
        with suppress(jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError):
            key = jwt.PyJWK(entry)
            if key.key_id is not None and key.public_key_use in ("sig", None):
                keys[key.key_id] = key
    return keys


def _download_json(url: str) -> dict[str, Any]:
    """A JSON object at a URL, unless it is too large or takes too long."""
    deadline = time.monotonic() + _FETCH_SECONDS
    content = b""
    try:
        with urllib.request.urlopen(url, timeout=_FETCH_SECONDS) as response:  # noqa: S310  the operator's own URL
            while piece := response.read1(_MAX_KEY_SET_BYTES):
                content += piece
                if time.monotonic() > deadline or len(content) > _MAX_KEY_SET_BYTES:
                    raise ValueError("it takes too long, or is too large")
        document = json.loads(content)
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        return document
    except (OSError, ValueError, HTTPException) as error:
        raise ValueError(f"{url}: {error}") from None


def _seconds_since(moment: float) -> float:
    return time.monotonic() - moment
