"""Write operations of one transaction, its outcome, and why it may be refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from alcove.engine.rows.versions import Row, Writer


class PutRow(NamedTuple):
    """Stores a sealed memory; `expected` is a revision, 0 for absent, None for any."""

    id: bytes
    ns: bytes
    key: bytes
    owner: str | None
    writer: Writer
    data_key: int
    sealed: bytes
    attributes: str
    index_text: str | None
    ttl: int | None
    expected: int | None
    until: int | None = None
    """When it expires, for an imported memory with an expiry; `ttl` counts from the write."""
    original_at: int | None = None
    """When it was first written, for an imported memory. Future timestamps are ignored."""
    added_at: int | None = None
    """The same for the first version of its key, if that was not imported."""


class GetRow(NamedTuple):
    """Reads the live version of a key within a transaction."""

    ns: bytes
    key: bytes


class DeleteRow(NamedTuple):
    """Ends the live version of a key; `expected` as in `PutRow`."""

    ns: bytes
    key: bytes
    writer: Writer
    expected: int | None


class TouchRow(NamedTuple):
    """Sets a new expiry, or with `refresh` restarts the time to live that the memory was written with."""

    ns: bytes
    key: bytes
    ttl: int | None
    refresh: bool


class EvictRow(NamedTuple):
    """Ends the oldest memory of a namespace that holds `max_keys` or more, if `key` is a new one."""

    ns: bytes
    key: bytes
    writer: Writer
    max_keys: int


RowOperation = PutRow | GetRow | DeleteRow | TouchRow | EvictRow


class IdempotentRequest(NamedTuple):
    """A request to run once: its answer is sealed inside the transaction and stored for a day."""

    user: str
    token: bytes
    data_key: int
    seal: Callable[[Sequence[Row | None]], bytes]


class StoredAnswer(NamedTuple):
    """The sealed answer to an earlier request with the same token."""

    data_key: int
    sealed: bytes


Outcome = list[Row | None] | StoredAnswer
"""The answer of a transaction: a row for each operation, or the answer to an earlier request."""


class StaleDecision(Exception):
    """The rules that allowed a write have been replaced since; decide again and retry."""


class DataKeyGone(Exception):
    """The data key that sealed a write has been destroyed since; seal again and retry."""
