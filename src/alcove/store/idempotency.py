"""Idempotent requests: the same request with the same key within a day gets the same answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from alcove.core import records, validation
from alcove.core.errors import Conflict, InvalidRequest
from alcove.core.principal import Principal
from alcove.core.records import BatchOperation
from alcove.engine.engine import Engine
from alcove.engine.rows import IdempotentRequest, Row, StoredAnswer
from alcove.vault import SubjectKey, Vault

_MAX_KEY_BYTES = 255


class _Answer(NamedTuple):
    """What is stored of a request, sealed: its digest, and the versions of its answer."""

    digest: bytes
    rows: list[Row | None]
    """Without content or author, which are read again, so that nothing erased since comes back."""


_decode_answer = msgspec.msgpack.Decoder(_Answer).decode


def token(principal: Principal, key: str) -> bytes:
    """Returns a digest of an idempotency key and its user: two clients of a user do not share keys."""
    if not 1 <= len(validation.encode_text(key, "idempotency_key")) <= _MAX_KEY_BYTES:
        raise InvalidRequest("idempotency_key", f"1 to {_MAX_KEY_BYTES} bytes")
    caller = [principal.user_id, principal.client_id, principal.agent, key]
    return hashlib.sha256(msgspec.json.encode(caller)).digest()


def request(
    user: str, token: bytes, operations: Sequence[BatchOperation], data_key: SubjectKey
) -> IdempotentRequest:
    """Returns what the engine needs to perform a request once."""
    digest = _digest(operations)

    def seal(rows: Sequence[Row | None]) -> bytes:
        return data_key.seal(msgspec.msgpack.encode(_Answer(digest, [*map(_without_content, rows)])), token)

    return IdempotentRequest(user, token, data_key.id, seal)


def repeat(
    engine: Engine, vault: Vault, operations: Sequence[BatchOperation], token: bytes, stored: StoredAnswer
) -> list[Row | None]:
    """Returns the rows of an earlier answer to a request, as far as they still exist."""
    answer = _decode_answer(vault.open(stored.data_key, stored.sealed, token))
    if answer.digest != _digest(operations):
        raise Conflict("idempotency_key: it was used for another request less than 24 hours ago")
    rows = {row.seq: row for row in engine.versions([row.seq for row in answer.rows if row])}
    return [_repeat_row(op, row, rows) for op, row in zip(operations, answer.rows, strict=False)]


def _repeat_row(operation: BatchOperation, earlier: Row | None, rows: Mapping[int, Row]) -> Row | None:
    if earlier is None or (isinstance(operation, records.Get) and earlier.seq not in rows):
        return None
    return rows.get(earlier.seq, earlier)._replace(expires_at=earlier.expires_at)


def _without_content(row: Row | None) -> Row | None:
    """A row without anything that an erasure would have to reach."""
    return row and row._replace(
        user=None, client=None, agent=None, data_key=None, sealed=None, attributes="{}", index_text=None
    )


def _digest(operations: Sequence[BatchOperation]) -> bytes:
    return hashlib.sha256(msgspec.json.encode(operations, order="sorted")).digest()
