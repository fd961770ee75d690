"""Authentication of requests, as `--auth` configures it: by JSON Web Tokens, by API keys, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from alcove.core.admin_records import ApiKey
from alcove.core.errors import PermissionDenied, Unauthenticated
from alcove.core.principal import DEFAULT_PRINCIPAL, Principal
from alcove.server.api_keys import KEY_PREFIX, ApiKeyAuthenticator
from alcove.server.config import ServeConfig
from alcove.server.headers import Authenticator, Headers, bearer_token, refuse_user_header
from alcove.server.jwt_tokens import TokenAuthenticator
from alcove.server.loopback import has_loopback_host, has_loopback_origin


def make_authenticator(
    config: ServeConfig, find_key: Callable[[str], ApiKey | None], *, remote_store: bool
) -> Authenticator:
    """The authenticator that `--auth` names.

    `find_key` looks an API key up in the store. `remote_store`: the store is behind a network, so that it is
    asked in threads.
    """
    if config.auth == "noop":
        return partial(_allow_everybody, any_host=config.insecure)
    if config.auth == "jwt":
        return TokenAuthenticator(config)
    by_key = ApiKeyAuthenticator(find_key, remote_store=remote_store)
    if config.auth == "apikey":
        return by_key
    return partial(_by_key_or_token, by_key=by_key, by_token=TokenAuthenticator(config))


async def _allow_everybody(headers: Headers, *, any_host: bool) -> Principal:
    """Everybody is `noop`, an admin; safe only where nobody else can reach the server.

    Unless `any_host` allows it, a page of another origin, or a host name that was made to point here, must
    not use a browser to get in.
    """
    refuse_user_header(headers)
    if not any_host and not has_loopback_host(headers):
        raise PermissionDenied(
            "this server has no authentication, so it serves requests to localhost only: call it by "
            "that name, or start it with --auth jwt or --auth apikey"
        )
    if not any_host and not has_loopback_origin(headers):
        raise PermissionDenied("this server has no authentication, so it serves no pages of other origins")
    return DEFAULT_PRINCIPAL


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
