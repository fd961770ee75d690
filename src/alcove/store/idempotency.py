"""Idempotent requests: the same request with the same key within a day gets the same answer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from alcove.core import records, validation
from alcove.core.errors import Conflict, InvalidRequest
from alcove.core.principal import Principal
from alcove.core.records import BatchOperation
from alcove.engine.engine import Engine
from alcove.engine.rows import IdempotentRequest, Row, StoredAnswer
from alcove.vault import SubjectKey, Vault

_MAX_KEY_BYTES = 255
_NO_CONTENT: dict[str, Any] = {"user": None, "client": None, "agent": None, "data_key": None, "sealed": None,
                               "attributes": "{}", "index_text": None}  # fmt: skip
"""Removes everything from a row that an erasure would have to reach."""


class _Answer(NamedTuple):
    """The stored answer to a request, sealed: the digest of the request, and the rows of the answer."""

    digest: bytes
    rows: list[Row | None]
    """Without content and author, which are read again, so that nothing erased since comes back."""


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
        answer = _Answer(digest, [row and row._replace(**_NO_CONTENT) for row in rows])
        return data_key.seal(msgspec.msgpack.encode(answer), token)

    return IdempotentRequest(user, token, data_key.id, seal)


def repeat(
    engine: Engine, vault: Vault, operations: Sequence[BatchOperation], token: bytes, stored: StoredAnswer
) -> list[Row | None]:
    """Returns the rows of an earlier answer to a request, as far as they still exist."""
    answer = _decode_answer(vault.open(stored.data_key, stored.sealed, token))
    if answer.digest != _digest(operations):
        raise Conflict("idempotency_key: it was used for another request less than 24 hours ago")
    current = {row.seq: row for row in engine.versions([row.seq for row in answer.rows if row])}
    rows: list[Row | None] = []
    for operation, earlier in zip(operations, answer.rows, strict=False):
        if earlier is None or (isinstance(operation, records.Get) and earlier.seq not in current):
            rows.append(None)
        else:
            rows.append(current.get(earlier.seq, earlier)._replace(expires_at=earlier.expires_at))
    return rows


def _digest(operations: Sequence[BatchOperation]) -> bytes:
    return hashlib.sha256(msgspec.json.encode(operations, order="sorted")).digest()
