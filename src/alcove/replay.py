"""Idempotent requests: the same key with the same body is done once and answered again for a day."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from alcove import checks
from alcove.engine.base import Replay, Replayed, Row
from alcove.errors import Conflict, InvalidRequest
from alcove.principal import Principal
from alcove.records import Get, Operation
from alcove.vault import Vault, user_subject

_MAX_KEY_BYTES = 255


class _Answer(NamedTuple):
    """What is kept, sealed, of a request: which one it was, and the rows of its answer."""

    digest: bytes
    rows: list[Row | None]


class Replays:
    """Makes and reads the sealed answers; the engine keeps them in the request's transaction."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def request(
        self, principal: Principal, operations: Sequence[Operation], key: str | None
    ) -> Replay | None:
        """What the engine needs to do this request once; None where the caller gave no key."""
        if key is None:
            return None
        token, digest = _token(principal, key), _digest(operations)
        data_key = self._vault.key(user_subject(principal.user_id))

        def seal(rows: Sequence[Row | None]) -> bytes:
            # Only a get answers with a value; a put's own sealed value need not be kept twice.
            kept = [
                row if row is None or isinstance(op, Get) else row._replace(sealed=None)
                for op, row in zip(operations, rows, strict=True)
            ]
            return data_key.seal(msgspec.msgpack.encode(_Answer(digest, kept)), token)

        return Replay(principal.user_id, token, data_key.id, seal)

    def answer(
        self,
        principal: Principal,
        operations: Sequence[Operation],
        key: str | None,
        outcome: list[Row | None] | Replayed,
    ) -> list[Row | None]:
        """The rows of this request, or of the earlier one that it repeats."""
        if not isinstance(outcome, Replayed):
            return outcome
        assert key is not None
        plain = self._vault.open(outcome.data_key, outcome.sealed, _token(principal, key))
        earlier = msgspec.msgpack.decode(plain, type=_Answer)
        if earlier.digest != _digest(operations):
            raise Conflict("idempotency_key: it was used for another request less than 24 hours ago")
        return earlier.rows


def _token(principal: Principal, key: str) -> bytes:
    """A digest of the key and of who uses it: two clients of one user do not share keys."""
    if not 1 <= len(checks.text(key, "idempotency_key")) <= _MAX_KEY_BYTES:
        raise InvalidRequest("idempotency_key", f"1 to {_MAX_KEY_BYTES} bytes")
    who = [principal.user_id, principal.client_id, principal.agent, key]
    return hashlib.sha256(msgspec.json.encode(who)).digest()


def _digest(operations: Sequence[Operation]) -> bytes:
    return hashlib.sha256(msgspec.json.encode(operations, order="sorted")).digest()
