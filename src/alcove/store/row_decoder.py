"""Rows into records: opening values, which are bound to the place they are stored at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import structs

from alcove.core import cancellation, cursor
from alcove.core.clock import SECOND, to_datetime
from alcove.core.errors import KeyDestroyed, Unreadable
from alcove.core.namespace import Namespace
from alcove.core.principal import JSON
from alcove.core.records import Author, Entry, Event, Memory, Version
from alcove.engine.rows import Row
from alcove.vault import Vault

if TYPE_CHECKING:
    from alcove.search.ranking import Hit

T = TypeVar("T")

_MOST_READS = 10

_LOST = "this value has lost its key, or itself"
_decode = msgspec.json.decode


def bound_to(id: bytes, ns: bytes, key: bytes) -> bytes:
    """What a sealed value is bound to: this version of this key in this namespace."""
    return b"%b%d:%b%b" % (id, len(ns), ns, key)


def attributes(row: Row) -> dict[str, JSON]:
    """What the policy derived."""
    return _decode(row.attributes)  # type: ignore[no-any-return]


def entry(row: Row) -> Entry:
    """The row without its value."""
    # Spelled out, and taken apart at once: it is on the path of every put, and of each memory of a list.
    (_, id, ns, key, _, revision, created_at, expires_at, _, _, _, _, _,
     attributes, _, original_at, ttl, added_at) = row  # fmt: skip
    written = to_datetime(created_at if original_at is None else original_at)
    return Entry(
        id=uuid(id),
        namespace=Namespace.decode(ns),
        key=key.decode(),
        attributes=_decode(attributes),
        revision=revision,
        created_at=written,
        added_at=written if added_at is None else to_datetime(added_at),
        expires_at=None if expires_at is None else to_datetime(expires_at),
        ttl_seconds=ttl and ttl // SECOND,
    )


class RowDecoder:
    """Opens rows with the vault's keys."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def value(self, row: Row) -> dict[str, JSON]:
        """The decrypted value of a version that has one; what opens many stops here once it is cancelled."""
        cancellation.check()
        if row.data_key is None or row.sealed is None:
            raise Unreadable(_LOST)
        plain = self._vault.open(row.data_key, row.sealed, bound_to(row.id, row.ns, row.key))
        return _decode(plain)  # type: ignore[no-any-return]

    def memory(self, row: Row) -> Memory:
        """A live memory."""
        # Spelled out, and taken apart at once: it is on the path of every get.
        (_, id, ns, key, _, revision, created_at, expires_at, user, client, agent, data_key, sealed,
         attributes, index_text, original_at, ttl, added_at) = row  # fmt: skip
        if data_key is None or sealed is None:
            raise Unreadable(_LOST)
        written = to_datetime(created_at if original_at is None else original_at)
        return Memory(
            id=uuid(id),
            namespace=Namespace.decode(ns),
            key=key.decode(),
            revision=revision,
            created_at=written,
            added_at=written if added_at is None else to_datetime(added_at),
            expires_at=None if expires_at is None else to_datetime(expires_at),
            ttl_seconds=ttl and ttl // SECOND,
            value=_decode(self._vault.open(data_key, sealed, bound_to(id, ns, key))),
            attributes=_decode(attributes),
            index=_decode(index_text) if index_text else {},
            written_by=Author(user, client, agent),
            score=None,
        )

    def existing(self, rows: Iterable[Row], decode: Callable[[Row], T]) -> Iterator[T]:
        """Opens one after the other; those whose user was wiped since they were read are left out."""
        for row in rows:
            cancellation.check()
            with contextlib.suppress(KeyDestroyed):
                yield decode(row)

    def search_hit(self, row: Row, hit: Hit, *, similarity: bool) -> Memory:
        """A memory that a search found, with its score and why, and its cosine where that is asked for."""
        cosine, explain = hit.similarity if similarity else None, dict(hit.signals) or None
        return structs.replace(
            self.memory(row), score=hit.score, relevance=hit.relevance, explain=explain, similarity=cosine
        )

    def version(self, row: Row) -> Version:
        """An entry of one memory's history."""
        shown = row.index_texts if row.sealed else None
        return Version(**self._happened(row), created_at=to_datetime(row.written_at), index=shown)

    def event(self, row: Row) -> Event:
        """An entry of the timeline."""
        occurred_at = to_datetime(row.created_at)
        return Event(**self._happened(row), occurred_at=occurred_at, cursor=cursor.encode(row.seq))

    def _happened(self, row: Row) -> dict[str, Any]:
        """What both tell; a tombstone keeps its attributes for the policy and shows none."""
        happened = {**_common(row), "kind": row.kind, "written_by": Author(row.user, row.client, row.agent)}
        if row.sealed is None:
            return {**happened, "value": None, "attributes": None}
        return {**happened, "value": self.value(row), "attributes": attributes(row)}


def _common(row: Row) -> dict[str, Any]:
    return {
        "id": uuid(row.id),
        "namespace": Namespace.decode(row.ns),
        "key": row.key.decode(),
        "revision": row.revision,
        "expires_at": None if row.expires_at is None else to_datetime(row.expires_at),
    }


def uuid(raw: bytes) -> str:
    """The usual spelling; `str(uuid.UUID(...))` takes ten times as long."""
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def place(row: Row) -> str:
    """The place of a memory as one text, for a pseudonym of it."""
    return f"{row.ns.hex()}:{row.key.hex()}"


def retry_if_wiped(read: Callable[[], T]) -> T:
    """Reads again where a wipe came between reading the rows and opening them."""
    for _ in range(_MOST_READS):
        with contextlib.suppress(KeyDestroyed):
            return read()
    return read()
