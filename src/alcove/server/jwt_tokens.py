"""Authentication by JSON Web Tokens, signed with a shared secret or with a key of a published set."""

from __future__ import annotations

import time
import warnings
from typing import Any

import jwt

from alcove.core.errors import InvalidRequest, Unauthenticated
from alcove.core.principal import Principal, check_user_id
from alcove.server.authentication import Headers, bearer_token, refuse_user_header
from alcove.server.config import ServeConfig
from alcove.server.jwks import KeySet

_ASYMMETRIC = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA"]
_MAX_CACHED_TOKENS = 10_000
_MAX_CACHED_TOKEN_BYTES = 4096
"""A longer token is verified each time, so that the cache takes 100 MB at most."""
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
