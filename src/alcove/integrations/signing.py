"""Signatures of what an adapter stores, so that it reads back only what it wrote itself.

A user may write any memory in their own namespaces, so the place of a memory does not tell who wrote it. A
signature does: its key is known to the app, and not to the user.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence

from alcove.client import is_url
from alcove.client.store import Store
from alcove.core.errors import InvalidRequest
from alcove.core.settings import read_variable

KEY_VARIABLE = "ALCOVE_CHECKPOINT_KEY"
_MIN_KEY_BYTES = 32
_MAKE_ONE = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"


class Signer:
    """Signs with the first of its keys, and verifies with each of them."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys

    def sign(self, *fields: object) -> str:
        """The signature of some JSON values, in their order."""
        return _signature(self._keys[0], fields)

    def is_signed(self, signature: object, *fields: object) -> bool:
        """True if one of the keys made this signature of these values."""
        if not isinstance(signature, str) or not signature.isascii():
            return False
        return any(hmac.compare_digest(signature, _signature(key, fields)) for key in self._keys)


def _signature(key: bytes, fields: Sequence[object]) -> str:
    return hmac.new(key, json.dumps(fields, separators=(",", ":")).encode(), "sha256").hexdigest()


def secret_key(signing_key: str | bytes | None, at: object) -> bytes | None:
    """The key that an app gives, or that the environment has; at a URL there must be one."""
    key = signing_key if signing_key is not None else read_variable(KEY_VARIABLE)
    if key is None:
        if is_url(at):
            raise InvalidRequest("signing_key", _expected("for a store at a URL"))
        return None
    if not isinstance(key, str | bytes):
        raise InvalidRequest("signing_key", "a string or bytes")
    secret = key.encode() if isinstance(key, str) else key
    if len(secret) < _MIN_KEY_BYTES:
        raise InvalidRequest("signing_key", _expected(f"of at least {_MIN_KEY_BYTES} bytes"))
    return secret


def make_signer(store: Store, secret: bytes | None, purpose: str) -> Signer:
    """A signer with the app's secret, and with the key that a store in this process derives for `purpose`."""
    derived = store.transport.derive_key(purpose)
    keys = [key for key in (secret, derived) if key is not None]
    if not keys:
        raise InvalidRequest("signing_key", _expected("for a store at a URL"))
    return Signer(keys)


def _expected(which: str) -> str:
    return (
        f"a secret {which}, so that nobody but this app can write what it resumes. Make one with "
        f"{_MAKE_ONE}, store it where the app's other secrets are, and pass it or set {KEY_VARIABLE}"
    )
