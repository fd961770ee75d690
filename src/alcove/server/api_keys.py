"""Authentication by API keys, which `alcove apikey` and the panel make."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from alcove.core.admin_records import ApiKey
from alcove.core.errors import InvalidRequest, Unauthenticated
from alcove.core.principal import Principal, check_user_id
from alcove.server.headers import Headers, bearer_token, refuse_user_header

KEY_PREFIX = b"alcove_"
"""Every API key begins with it, and no token does."""
_MAX_LOOKUPS = 8
"""Keys that a remote store is asked for at the same time."""


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
        key = await self._find(text) if text else None
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

    async def _find(self, text: str) -> ApiKey | None:
        if self._threads is None:
            return self._find_key(text)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._find_key, text)
