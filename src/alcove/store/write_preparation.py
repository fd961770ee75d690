"""Prepares the operations of one write: validates, authorises, derives attributes and seals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from alcove.core import cancellation, records, validation
from alcove.core.clock import parse_moment
from alcove.core.errors import AlcoveError, InvalidRequest, KeyDestroyed
from alcove.core.principal import Principal
from alcove.core.records import BatchOperation, Put
from alcove.core.threads import before_waiting
from alcove.core.validation import Location
from alcove.engine.engine import Engine
from alcove.engine.rows import DeleteRow, EvictRow, GetRow, PutRow, RowOperation, TouchRow, Writer
from alcove.engine.transaction import new_id
from alcove.store.access import ActiveConfig
from alcove.store.row_decoder import bound_to
from alcove.vault import SubjectKey, Vault, subject_of


@dataclass(slots=True)
class _Room:
    """What the puts of one write into one namespace share."""

    owner: str | None
    subject: str
    attributes: str | None = None
    """Those of every put there, once one is allowed by a policy that does not judge content."""


class _AllowedPut(NamedTuple):
    """A put that was checked and allowed, and is not sealed yet."""

    location: Location
    value: bytes
    index_text: str | None
    ttl: int | None
    expected: int | None
    room: _Room
    attributes: str
    data_key: SubjectKey | None
    """The key to seal it with, if that is not the room's."""
    imported_fields: Mapping[str, Writer | int | None]
    """Fields of the row that an imported memory sets."""


class WritePreparation:
    """The operations of one write, by the rules of one moment."""

    __slots__ = ("_data_keys", "_engine", "_operations", "_policy", "_principal", "_rooms", "_settings",
                 "_vault", "_writer")  # fmt: skip

    def __init__(self, engine: Engine, vault: Vault, config: ActiveConfig, principal: Principal) -> None:
        self._engine, self._vault = engine, vault
        self._policy, self._settings = config
        self._principal = principal
        self._writer = Writer(principal.user_id, principal.client_id, principal.agent)
        self._operations: list[RowOperation | _AllowedPut] = []
        self._rooms: dict[bytes, _Room] = {}
        """By the encoding of their namespaces: many operations go to few of them."""
        self._data_keys: dict[str, SubjectKey | None] = {}
        """By subject; None for a key that has to be read or made."""

    def check(self, operations: Sequence[BatchOperation], *, is_batch: bool = False) -> None:
        """Validates and authorises; an error of a batch says in `details` which operation it is about."""
        if len(operations) > (max_batch := self._settings.max_batch):
            raise InvalidRequest("operations", f"at most {max_batch}, not {len(operations)}")
        for position, operation in enumerate(operations):
            if position:
                cancellation.check()
            try:
                location = validation.parse_location(operation.namespace, operation.key, self._settings)
                if isinstance(operation, Put):
                    self._operations.append(self._check_put(operation, location))
                else:
                    self._operations.append(self._check_other(operation, location))
            except AlcoveError as error:
                if is_batch:
                    error.details["operation"] = position
                raise

    def data_key(self, subject: str) -> SubjectKey:
        """The data key of a subject; it may have to be made first, which waits for other writes."""
        if (key := self._data_keys.get(subject) or self._vault.cached_key(subject)) is None:
            before_waiting()
            key = self._vault.key(subject)
        self._data_keys[subject] = key
        return key

    def seal(self) -> list[RowOperation]:
        """Seals the puts and returns all operations as the engine takes them."""
        return [self._seal(each) if isinstance(each, _AllowedPut) else each for each in self._operations]

    def _seal(self, put: _AllowedPut) -> PutRow:
        location, value, index_text, ttl, expected, room, attributes, data_key, imported_fields = put
        data_key = data_key or self.data_key(room.subject)
        id = new_id()
        sealed = data_key.seal(value, bound_to(id, location.ns, location.key))
        row = PutRow(id, location.ns, location.key, room.owner, self._writer, data_key.id, sealed, attributes,
                     index_text, ttl, expected)  # fmt: skip
        return row._replace(**imported_fields) if imported_fields else row  # type: ignore[arg-type]

    def _check_put(self, put: Put, location: Location) -> _AllowedPut:
        namespace, ns, _ = location
        value = validation.encode_value(put.value, self._settings)
        index = validation.encode_index(put.index, self._settings, put.value)
        ttl = None if put.ttl_seconds is None else validation.parse_ttl(put.ttl_seconds)
        expected = validation.parse_revision(put.expected_revision, create_only=put.create_only)
        room = self._rooms.get(ns)
        if room is None:
            room = self._rooms[ns] = _Room(namespace.owner, subject_of(namespace))
        is_import = isinstance(put, records.ImportedPut)
        attributes = None if is_import else room.attributes
        if attributes is None:
            content = self._principal, namespace, put.key, value, index
            self._policy.authorise_write(*content, "import" if is_import else "write")
            attributes = self._policy.attributes(*content).decode()
            if not is_import and not self._policy.judges_content:
                room.attributes = attributes
        bound = put.bound if isinstance(put, records.DeferredPut) else None
        data_key = self._deferred_key(bound, room.subject) if bound else None
        text = None if index is None else index.decode()
        fields = self._imported_fields(put) if isinstance(put, records.ImportedPut) else {}
        return _AllowedPut(location, value, text, ttl, expected, room, attributes, data_key, fields)

    def _check_other(self, operation: BatchOperation, location: Location) -> RowOperation:
        namespace, ns, key = location
        policy, principal = self._policy, self._principal
        match operation:
            case records.EvictOldest():
                policy.authorise(principal, "delete", namespace, "*")
                return EvictRow(ns, key, self._writer, operation.most)
            case records.Get():
                policy.authorise(principal, "read", namespace, operation.key)
                return GetRow(ns, key)
            case records.Delete():
                expected = validation.parse_revision(operation.expected_revision)
                policy.authorise(principal, "delete", namespace, operation.key)
                return DeleteRow(ns, key, self._writer, expected)
            case records.Touch():
                ttl = None if operation.ttl_seconds is None else validation.parse_ttl(operation.ttl_seconds)
                if operation.refresh and ttl is not None:
                    raise InvalidRequest("refresh", "not to be combined with ttl_seconds")
                policy.authorise_write(principal, namespace, operation.key, b"null", None)
                return TouchRow(ns, key, ttl, operation.refresh is True)
            case _:
                raise InvalidRequest("op", "put, get, delete or touch")

    def _deferred_key(self, bound: records.KeyBinding, subject: str) -> SubjectKey:
        """The key for a put that waited; KeyDestroyed if the owner of its room was wiped meanwhile."""
        self._vault.forget(subject)  # another process may have wiped them, which the next call must see
        key_id, wipes = bound
        if key_id is not None:
            return self._vault.key_by_id(key_id)
        data_key = self._vault.key(subject, wipes=wipes)
        if self._engine.erasure.generation() > wipes:  # a key from before the wipe, or a newer one
            raise KeyDestroyed("somebody was wiped since")
        return data_key

    def _imported_fields(self, put: records.ImportedPut) -> dict[str, Writer | int | None]:
        """The times of an imported memory and, if an admin imports it, its author."""
        writer = self._writer
        if put.written_by and self._principal.is_admin:
            writer = Writer(put.written_by.user, put.written_by.client, put.written_by.agent)
        return {
            "writer": writer,
            "until": parse_moment(put.expires_at, "expires_at"),
            "original_at": parse_moment(put.created_at, "created_at"),
            "added_at": parse_moment(put.added_at, "added_at"),
        }
