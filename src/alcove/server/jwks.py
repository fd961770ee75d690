"""The published set of keys that tokens are verified with, at a URL or found through an OIDC issuer."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from typing import Any

import jwt

from alcove.core.errors import Unavailable

log = logging.getLogger("alcove.http")
_DISCOVERY = "/.well-known/openid-configuration"
_FETCH_SECONDS = 5
_MAX_BYTES = 1_000_000
_MIN_SECONDS_BETWEEN_FETCHES = 2
FRESH_SECONDS = 300
"""An older set is fetched again."""
TRUSTED_SECONDS = 3600
"""An older set verifies nothing until it is fetched again."""


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
            is_recent = _seconds_since(self._tried_at) <= _MIN_SECONDS_BETWEEN_FETCHES
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
        url = self._url or str(_download_json(f"{(self._issuer or '').rstrip('/')}{_DISCOVERY}")["jwks_uri"])
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
            while piece := response.read1(_MAX_BYTES):
                content += piece
                if time.monotonic() > deadline or len(content) > _MAX_BYTES:
                    raise ValueError("it takes too long, or is too large")
        document = json.loads(content)
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        return document
    except (OSError, ValueError, HTTPException) as error:
        raise ValueError(f"{url}: {error}") from None


def _seconds_since(moment: float) -> float:
    return time.monotonic() - moment
