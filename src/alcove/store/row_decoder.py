"""Converts rows to records and decrypts their values, which are bound to the key they are stored at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from alcove.core import cancellation, cursor
from alcove.core.clock import SECOND, to_datetime
from alcove.core.errors import KeyDestroyed, Unreadable
from alcove.core.namespace import Namespace
from alcove.core.principal import JSON
from alcove.core.records import Author, Entry, Event, Memory, Version
from alcove.engine.rows import Row
from alcove.vault import Vault

T = TypeVar("T")

_MAX_READS = 10
_LOST = "this value has lost its key, or itself"
_decode = msgspec.json.decode


def bound_to(id: bytes, ns: bytes, key: bytes) -> bytes:
    """The associated data of a sealed value: it opens only as this version of this key in this namespace."""
    return b"%b%d:%b%b" % (id, len(ns), ns, key)


def attributes(row: Row) -> dict[str, JSON]:
    """The attributes that the policy derived."""
    return _decode(row.attributes)  # type: ignore[no-any-return]


def entry(row: Row) -> Entry:
    """The entry of a row: the memory without its value."""
    # Unpacked at once, because that is faster: every put and each memory of a list comes here.
    (_, id, ns, key, _, revision, created_at, expires_at, _, _, _, _, _,
     attributes, _, original_at, ttl, added_at) = row  # fmt: skip
    created = to_datetime(created_at if original_at is None else original_at)
    return Entry(
        id=uuid(id),
        namespace=Namespace.decode(ns),
        key=key.decode(),
        attributes=_decode(attributes),
        revision=revision,
        created_at=created,
        added_at=created if added_at is None else to_datetime(added_at),
        expires_at=None if expires_at is None else to_datetime(expires_at),
        ttl_seconds=ttl and ttl // SECOND,
    )


class RowDecoder:
    """Decrypts rows with the keys of the vault."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def value(self, row: Row) -> dict[str, JSON]:
        """The decrypted value of a version that has one; raises here if the caller was cancelled."""
        cancellation.check()
        if row.data_key is None or row.sealed is None:
            raise Unreadable(_LOST)
        plain = self._vault.open(row.data_key, row.sealed, bound_to(row.id, row.ns, row.key))
        return _decode(plain)  # type: ignore[no-any-return]

    def memory(self, row: Row) -> Memory:
        """A live memory."""
        # Unpacked at once, because that is faster: every get comes here.
        (_, id, ns, key, _, revision, created_at, expires_at, user, client, agent, data_key, sealed,
         attributes, index_text, original_at, ttl, added_at) = row  # fmt: skip
        if data_key is None or sealed is None:
            raise Unreadable(_LOST)
        created = to_datetime(created_at if original_at is None else original_at)
        return Memory(
            id=uuid(id),
            namespace=Namespace.decode(ns),
            key=key.decode(),
            revision=revision,
            created_at=created,
            added_at=created if added_at is None else to_datetime(added_at),
            expires_at=None if expires_at is None else to_datetime(expires_at),
            ttl_seconds=ttl and ttl // SECOND,
            value=_decode(self._vault.open(data_key, sealed, bound_to(id, ns, key))),
            attributes=_decode(attributes),
            index=_decode(index_text) if index_text else {},
            written_by=Author(user, client, agent),
            score=None,
        )

    def existing(self, rows: Iterable[Row], decode: Callable[[Row], T]) -> Iterator[T]:
        """Decodes rows one by one; leaves out those whose user was wiped since they were read."""
        for row in rows:
            cancellation.check()
            with contextlib.suppress(KeyDestroyed):
                yield decode(row)

    def version(self, row: Row) -> Version:
        """An entry of one memory's history."""
        index = row.index_texts if row.sealed else None
        return Version(**self._change(row), created_at=to_datetime(row.written_at), index=index)

    def event(self, row: Row) -> Event:
        """An entry of the timeline."""
        occurred_at = to_datetime(row.created_at)
        return Event(**self._change(row), occurred_at=occurred_at, cursor=cursor.encode(row.seq))

    def _change(self, row: Row) -> dict[str, Any]:
        """The fields that versions and events share; a tombstone keeps its attributes for the policy only."""
        is_deleted = row.sealed is None
        return {
            "id": uuid(row.id),
            "namespace": Namespace.decode(row.ns),
            "key": row.key.decode(),
            "revision": row.revision,
            "expires_at": None if row.expires_at is None else to_datetime(row.expires_at),
            "kind": row.kind,
            "written_by": Author(row.user, row.client, row.agent),
            "value": None if is_deleted else self.value(row),
            "attributes": None if is_deleted else attributes(row),
        }


def uuid(raw: bytes) -> str:
    """An id in the usual notation; `str(uuid.UUID(...))` takes ten times as long."""
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def place(row: Row) -> str:
    """The namespace and key of a memory as one text, to make a pseudonym of."""
    return f"{row.ns.hex()}:{row.key.hex()}"


def retry_if_wiped(read: Callable[[], T]) -> T:
    """Repeats a read if a wipe destroyed a key between reading the rows and decrypting them."""
    for _ in range(_MAX_READS):
        with contextlib.suppress(KeyDestroyed):
            return read()
    return read()
