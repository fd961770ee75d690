"""API keys: random, shown once, kept as a hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from alcove.core.clock import to_datetime
from alcove.core.errors import NotFound
from alcove.core.principal import checked_user
from alcove.upkeep.wipe_ledger import Ledger, Note

if TYPE_CHECKING:
    from alcove.engine.base import Administration

_PREFIX = "alcove"


class ApiKey(Struct, frozen=True, kw_only=True):
    """What may be shown of a key."""

    id: str
    client: str
    user: str | None
    roles: list[str]
    trusted: bool
    created_at: datetime


class KeyRow(Struct, frozen=True):
    """What is kept of a key; the key itself is not."""

    id: str
    client: str
    user: str | None
    roles: tuple[str, ...]
    trusted: bool
    digest: bytes
    created_at: int


class ApiKeys:
    """Makes, finds, lists and revokes keys; a revoked one is refused at once, in every process."""

    def __init__(self, rows: Administration, ledger: Ledger) -> None:
        self._rows = rows
        self._ledger = ledger

    def create(
        self, client: str, user: str | None, roles: Sequence[str], *, trusted: bool, now: int
    ) -> tuple[str, str]:
        """The id of a new key, and the key, which cannot be shown again."""
        if user is not None:
            checked_user(user, "user")
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        self._rows.add_api_key(KeyRow(id, client, user, tuple(roles), trusted, _digest(secret), now))
        return id, f"{_PREFIX}_{id}_{secret}"

    def find(self, given: str) -> KeyRow | None:
        """The key that this text is, if it is one and has not been revoked."""
        prefix, _, rest = given.partition("_")
        id, _, secret = rest.partition("_")
        key = self._rows.api_key(id) if prefix == _PREFIX and secret else None
        return key if key and hmac.compare_digest(key.digest, _digest(secret)) else None

    def list(self) -> list[ApiKey]:
        """Every key that has not been revoked."""
        return [
            ApiKey(
                id=key.id,
                client=key.client,
                user=key.user,
                roles=[*key.roles],
                trusted=key.trusted,
                created_at=to_datetime(key.created_at),
            )
            for key in self._rows.api_keys()
        ]

    def revoke(self, id: str) -> None:
        """Makes a key useless from now on, in a restored backup, too."""
        if self._rows.api_key(id) is None:
            raise NotFound(f"there is no API key {id}")
        self._ledger.record(Note(wiped_at=datetime.now(UTC), api_key=id))
        self._rows.remove_api_key(id)


def _digest(secret: str) -> bytes:
    """A plain hash is enough: the secret has 256 random bits, and no dictionary holds it."""
    return hashlib.sha256(secret.encode()).digest()
