"""Idempotent requests: the same key with the same body is done once and answered again for a day."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from alcove.core.errors import Conflict, InvalidRequest
from alcove.core.principal import Principal
from alcove.core.records import Get, Operation
from alcove.engine.rows import IdempotentRequest, KeptAnswer, Outcome, Row
from alcove.store import validation
from alcove.vault import Vault, user_subject

_MAX_KEY_BYTES = 255


class _Answer(NamedTuple):
    """What is kept, sealed, of a request: which one it was, and which versions its answer was made of."""

    digest: bytes
    rows: list[Row | None]
    """Without content or author: those are read again, so that what was erased since does not come back."""


_answer = msgspec.msgpack.Decoder(_Answer).decode


class IdempotentRequests:
    """Makes and reads the sealed answers; the engine keeps them in the request's transaction."""

    def __init__(self, vault: Vault, versions: Callable[[Sequence[int]], list[Row]]) -> None:
        self._vault = vault
        self._versions = versions

    def request(
        self, principal: Principal, operations: Sequence[Operation], key: str | None, missing: set[str]
    ) -> IdempotentRequest | None:
        """What the engine needs to do this request once; None where the caller gave no key.

        A subject without a data key is added to `missing`.
        """
        if key is None:
            return None
        token, digest = _token(principal, key), _digest(operations)
        data_key = self._vault.known(subject := user_subject(principal.user_id))
        if data_key is None:
            missing.add(subject)
            return None

        def seal(rows: Sequence[Row | None]) -> bytes:
            return data_key.seal(msgspec.msgpack.encode(_Answer(digest, [*map(_bare, rows)])), token)

        return IdempotentRequest(principal.user_id, token, data_key.id, seal)

    def answer(
        self,
        principal: Principal,
        operations: Sequence[Operation],
        key: str | None,
        outcome: Outcome,
    ) -> list[Row | None]:
        """The rows of this request, or of the earlier one that it repeats."""
        if not isinstance(outcome, KeptAnswer):
            return outcome
        assert key is not None
        plain = self._vault.open(outcome.data_key, outcome.sealed, _token(principal, key))
        earlier = _answer(plain)
        if earlier.digest != _digest(operations):
            raise Conflict("idempotency_key: it was used for another request less than 24 hours ago")
        found = {row.seq: row for row in self._versions([row.seq for row in earlier.rows if row])}
        return [_again(op, row, found) for op, row in zip(operations, earlier.rows, strict=False)]


def _bare(row: Row | None) -> Row | None:
    """A row without what an erasure would have to reach."""
    return row and row._replace(
        user=None, client=None, agent=None, data_key=None, sealed=None, attributes="{}", index_text=None
    )


def _again(operation: Operation, earlier: Row | None, found: Mapping[int, Row]) -> Row | None:
    """What an operation answered with, as far as it is still there: a get's memory may be gone."""
    if earlier is None or (isinstance(operation, Get) and earlier.seq not in found):
        return None
    return found.get(earlier.seq, _bare(earlier))._replace(expires_at=earlier.expires_at)  # type: ignore[union-attr]


def _token(principal: Principal, key: str) -> bytes:
    """A digest of the key and of who uses it: two clients of one user do not share keys."""
    if not 1 <= len(validation.text(key, "idempotency_key")) <= _MAX_KEY_BYTES:
        raise InvalidRequest("idempotency_key", f"1 to {_MAX_KEY_BYTES} bytes")
    who = [principal.user_id, principal.client_id, principal.agent, key]
    return hashlib.sha256(msgspec.json.encode(who)).digest()


def _digest(operations: Sequence[Operation]) -> bytes:
    return hashlib.sha256(msgspec.json.encode(operations, order="sorted")).digest()
