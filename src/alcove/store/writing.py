"""How operations become one transaction: validated, authorised, sealed, and done once where it is asked."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import msgspec

from alcove.core import cancellation, cursor, records, validation
from alcove.core.clock import parse_moment
from alcove.core.cursor import Page
from alcove.core.errors import AlcoveError, Conflict, InvalidRequest, KeyDestroyed, Unavailable
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import BatchOperation, OperationResult, Put
from alcove.engine.rows.operations import (
    DataKeyGone,
    DeleteRow,
    EvictRow,
    GetRow,
    IdempotentRequest,
    PutRow,
    RowOperation,
    StaleDecision,
    StoredAnswer,
    TouchRow,
)
from alcove.engine.rows.versions import Row, Writer
from alcove.engine.transaction import new_id
from alcove.store import row_decoding
from alcove.store.common import Service, Steps, Work
from alcove.store.effective_configuration import Denials, InForce
from alcove.store.session_store import Places
from alcove.vault import SubjectKey, subject_of, user_subject

R = TypeVar("R")
_MOST_ATTEMPTS = 10
_MAX_KEY_BYTES = 255


class _Write:
    """What the operations of one write have in common."""

    __slots__ = ("data_keys", "policy", "principal", "rooms", "settings", "writer")

    def __init__(self, in_force: InForce, principal: Principal) -> None:
        self.policy, self.settings = in_force
        self.principal = principal
        self.writer = Writer(principal.user_id, principal.client_id, principal.agent)
        self.rooms: dict[bytes, _Room] = {}
        """By the encoding of their namespaces: many operations go to few of them."""
        self.data_keys: dict[str, SubjectKey | None] = {}
        """By subject, what seals it; None where that is still to be read or made."""


class _Room:
    """What the puts of one write to one namespace have in common."""

    __slots__ = ("attributes", "owner", "subject")

    def __init__(self, namespace: Namespace) -> None:
        self.owner = namespace.owner
        self.subject = subject_of(namespace)
        self.attributes: str | None = None
        """Of every put that is allowed there, once the policy allowed one and judges no content."""


class _Allowed(NamedTuple):
    """A put that was checked and allowed, and is to be sealed."""

    place: validation.Location
    value: bytes
    index_text: str | None
    ttl: int | None
    expected: int | None
    room: _Room
    attributes: str
    data_key: SubjectKey | None
    """What it is to be sealed with, where that is not the room's key."""
    brought: Mapping[str, Writer | int | None]
    """Fields of the engine's row that an imported memory brings along."""


class Writing(Service):
    """The writing half of the one road."""

    def check(self, principal: Principal, operation: BatchOperation) -> None:
        """Raises what this write would raise before it has any effect: wrong arguments, or a policy's no."""
        self._allow(_Write(self._configuration.current(), principal), operation)

    def _write_one(
        self,
        principal: Principal,
        operation: BatchOperation,
        answer: type[R],
        idempotency_key: str | None = None,
    ) -> Steps[R]:
        try:
            (result,) = yield from self._write(principal, [operation], idempotency_key)
        except AlcoveError as error:
            error.details.pop("operation", None)
            raise
        assert isinstance(result, answer)
        return result

    def _write(
        self,
        principal: Principal,
        operations: Sequence[BatchOperation],
        idempotency_key: str | None = None,
        after_cursor: str | None = None,
        places: Places | None = None,
    ) -> Steps[Page[OperationResult]]:
        """A write; no part of it waits for the write lock but in what it yields, or after `Work.WAITS`."""
        done = 0 if after_cursor is None else _position(after_cursor, operations)
        if done:  # nothing is written, so nothing can be written twice
            operations, idempotency_key = operations[done:], None
        token = None if idempotency_key is None else _token(principal, idempotency_key)
        for _ in range(_MOST_ATTEMPTS):
            version, in_force = self._configuration.loaded
            write = _Write(in_force, principal)
            allowed, denials = self._configuration.decided(partial(self._allowed, write, operations))
            if isinstance(allowed, AlcoveError):
                yield from self._refuse(allowed, denials, version)
                continue
            once = None
            if token is not None:
                own = user_subject(principal.user_id)
                write.data_keys[own] = self._vault.held(own)
            if None in write.data_keys.values():  # of newcomers, or who has not been here for long
                yield Work.WAITS
                write.data_keys = {subject: self._vault.key(subject) for subject in write.data_keys}
                yield 0.0
            if token is not None:
                once = _request(write, operations, token)
            sealed = [_sealed(each, write) if isinstance(each, _Allowed) else each for each in allowed]
            pending = self._engine.submit(sealed, once, principal.user_id, version)
            yield pending
            try:
                outcome = pending.result()
            except StaleDecision:  # rules were put between the decision and the commit: decide again
                self._configuration.current()
                continue
            except DataKeyGone:  # a wipe came between sealing and the commit: seal under a new key
                self._vault.forget(user_subject(principal.user_id))
                for operation in operations:
                    self._vault.forget(subject_of(Namespace.checked(operation.namespace)))
                continue
            if isinstance(outcome, StoredAnswer):
                assert token is not None
                outcome = self._earlier(operations, token, outcome)
            self._tell_others(principal, operations, outcome, places)
            results = Page(map(self._result, operations, outcome))
            gets = [each.namespace for each in results if isinstance(each, records.Memory)]
            if gets:
                yield from self._record_read(principal, "batch", _common_scope(gets), gets)
            if len(outcome) < len(operations):
                results.after_cursor = cursor.encode(done + len(outcome))
            return results
        raise Unavailable("this user is being wiped, or rules are put, again and again; try later")

    def _refuse(self, refusal: AlcoveError, denials: Denials, version: int) -> Steps[None]:
        """Raises a refusal, unless other rules were put than those of the version by which it was made."""
        if self._engine.far:
            yield Work.LARGE  # a journey to a server, for which no event loop waits
        if self._configuration.is_newest(version):
            self._configuration.tell(denials)
            raise refusal

    def _tell_others(
        self,
        principal: Principal,
        operations: Sequence[BatchOperation],
        outcome: Sequence[Row | None],
        places: Places | None,
    ) -> None:
        """Wakes the indexer if there is a text to index, and notes in the audit log what was imported.

        What was put into a session goes to the session store as well.
        """
        owners, texts = [], False
        if self._sessions and places:
            done = zip(operations, outcome, strict=True)
            self._sessions.wrote(places, [row for each, row in done if row and isinstance(each, Put)])
        for operation in operations:
            texts = texts or (isinstance(operation, Put) and bool(operation.index))
            if isinstance(operation, records.ImportedPut):
                owners.append(Namespace.checked(operation.namespace).owner)
        if self._indexer and texts:
            self._indexer.wake()
        if owners:
            self._audit.imported(principal, owners)

    def _allowed(self, write: _Write, operations: Sequence[BatchOperation]) -> list[RowOperation | _Allowed]:
        """Every operation, checked and allowed; an error says which of a batch it is."""
        if len(operations) > (most := write.settings.max_batch):
            raise InvalidRequest("operations", f"at most {most}, not {len(operations)}")
        allowed = []
        for position, operation in enumerate(operations):
            if position:  # of many
                cancellation.check()
            try:
                allowed.append(self._allow(write, operation))
            except AlcoveError as error:
                error.details["operation"] = position
                raise
        return allowed

    def _allow(self, write: _Write, operation: BatchOperation) -> RowOperation | _Allowed:
        """Validates and authorises one operation; a put is still to be sealed.

        With what is noted among the write's data keys.
        """
        policy, principal = write.policy, write.principal
        place = validation.parse_location(operation.namespace, operation.key, write.settings)
        match operation:
            case Put():
                return self._allow_put(write, operation, place)
            case records.EvictOldest():
                policy.authorise(principal, "delete", place.namespace, "*")
                return EvictRow(place.ns, place.key, write.writer, operation.most)
            case records.Get():
                policy.authorise(principal, "read", place.namespace, operation.key)
                return GetRow(place.ns, place.key)
            case records.Delete():
                expected = validation.parse_revision(operation.expected_revision)
                policy.authorise(principal, "delete", place.namespace, operation.key)
                return DeleteRow(place.ns, place.key, write.writer, expected)
            case records.Touch():
                ttl = None if operation.ttl_seconds is None else validation.parse_ttl(operation.ttl_seconds)
                if operation.refresh and ttl is not None:
                    raise InvalidRequest("refresh", "not to be combined with ttl_seconds")
                policy.authorise_write(principal, place.namespace, operation.key, b"null", None)
                return TouchRow(place.ns, place.key, ttl, operation.refresh is True)
            case _:
                raise InvalidRequest("op", "put, get, delete or touch")

    def _allow_put(self, write: _Write, put: Put, place: validation.Location) -> _Allowed:
        namespace, ns, _ = place
        value = validation.encode_value(put.value, write.settings)
        index = validation.encode_index(put.index, write.settings, put.value)
        ttl = None if put.ttl_seconds is None else validation.parse_ttl(put.ttl_seconds)
        expected = validation.parse_revision(put.expected_revision, create_only=put.create_only)
        room = write.rooms.get(ns)
        if room is None:
            room = write.rooms[ns] = _Room(namespace)
        imported = put if isinstance(put, records.ImportedPut) else None
        attributes = None if imported else room.attributes
        if attributes is None:
            asked: Literal["write", "import"] = "import" if imported else "write"
            write.policy.authorise_write(write.principal, namespace, put.key, value, index, asked)
            attributes = write.policy.attributes(write.principal, namespace, put.key, value, index).decode()
            if not imported and not write.policy.judges_content:
                room.attributes = attributes
        bound = put.bound if isinstance(put, records.DeferredPut) else None
        data_key = self._deferred_key(bound, room.subject) if bound else None
        if data_key is None and room.subject not in write.data_keys:
            write.data_keys[room.subject] = self._vault.held(room.subject)
        text = None if index is None else index.decode()
        brought = _brought(imported, write) if imported else {}
        return _Allowed(place, value, text, ttl, expected, room, attributes, data_key, brought)

    def _deferred_key(self, bound: records.KeyBinding, subject: str) -> SubjectKey:
        """What seals a put that waited, unless its room's owner was wiped meanwhile; then KeyDestroyed."""
        self._vault.forget(subject)  # another process may have wiped them: the next call is to see that
        known, wipes = bound
        if known is not None:
            return self._vault.existing(known)
        data_key = self._vault.key(subject, wipes=wipes)
        if self._engine.erasure.wipes() > wipes:  # it is of another time, or gone when it is looked for
            raise KeyDestroyed("somebody was wiped since")
        return data_key

    def _result(self, operation: BatchOperation, row: Row | None) -> OperationResult:
        match operation:
            case records.Delete():
                return row_decoding.deletion(Namespace.checked(operation.namespace), operation.key, row)
            case records.Get():
                with contextlib.suppress(KeyDestroyed):  # wiped since the commit
                    return self._opener.memory(row) if row else None
                return None
            case _:
                return row_decoding.entry(row) if row else None

    def _earlier(
        self, operations: Sequence[BatchOperation], token: bytes, kept: StoredAnswer
    ) -> list[Row | None]:
        """The rows of the request that this one repeats, as far as they are still there."""
        earlier = _answer(self._vault.open(kept.data_key, kept.sealed, token))
        if earlier.digest != _digest(operations):
            raise Conflict("idempotency_key: it was used for another request less than 24 hours ago")
        found = {row.seq: row for row in self._engine.versions([row.seq for row in earlier.rows if row])}
        return [_again(op, row, found) for op, row in zip(operations, earlier.rows, strict=False)]


def _sealed(allowed: _Allowed, write: _Write) -> PutRow:
    """A put as the engine takes it."""
    (_, ns, key), value, index_text, ttl, expected, room, attributes, data_key, brought = allowed
    data_key = data_key or write.data_keys[room.subject]
    assert data_key is not None
    id = new_id()
    sealed = data_key.seal(value, row_decoding.bound_to(id, ns, key))
    row = PutRow(id, ns, key, room.owner, write.writer, data_key.id, sealed, attributes,
                      index_text, ttl, expected)  # fmt: skip
    return row._replace(**brought) if brought else row  # type: ignore[arg-type]


def _brought(put: records.ImportedPut, write: _Write) -> dict[str, Writer | int | None]:
    """The times that a memory brings along and, if an admin brings it, its author."""
    writer = write.writer
    if put.written_by and write.principal.is_admin:
        writer = Writer(put.written_by.user, put.written_by.client, put.written_by.agent)
    return {
        "writer": writer,
        "until": parse_moment(put.expires_at, "expires_at"),
        "original_at": parse_moment(put.created_at, "created_at"),
        "added_at": parse_moment(put.added_at, "added_at"),
    }


def _common_scope(namespaces: Sequence[Namespace]) -> Namespace:
    """The namespace of all of these, or the root of everything where they differ."""
    return namespaces[0] if namespaces.count(namespaces[0]) == len(namespaces) else Namespace()


def _position(after_cursor: str, operations: Sequence[BatchOperation]) -> int:
    """How many operations of a batch were answered before, which can only be followed by gets."""
    done = cursor.decode(after_cursor)
    if done >= len(operations) or not all(isinstance(each, records.Get) for each in operations[done:]):
        raise InvalidRequest("after_cursor", "a cursor of this batch, after which only gets are left")
    return done


# Idempotent requests: the same key with the same body is done once and answered again for a day.


class _Answer(NamedTuple):
    """What is kept, sealed, of a request: which one it was, and which versions its answer was made of."""

    digest: bytes
    rows: list[Row | None]
    """Without content or author: those are read again, so that what was erased since does not come back."""


_answer = msgspec.msgpack.Decoder(_Answer).decode


def _request(write: _Write, operations: Sequence[BatchOperation], token: bytes) -> IdempotentRequest:
    """What the engine needs to do a request once."""
    user, digest = write.principal.user_id, _digest(operations)
    data_key = write.data_keys[user_subject(user)]
    assert data_key is not None

    def seal(found: Sequence[Row | None]) -> bytes:
        return data_key.seal(msgspec.msgpack.encode(_Answer(digest, [*map(_bare, found)])), token)

    return IdempotentRequest(user, token, data_key.id, seal)


def _bare(row: Row | None) -> Row | None:
    """A row without what an erasure would have to reach."""
    return row and row._replace(
        user=None, client=None, agent=None, data_key=None, sealed=None, attributes="{}", index_text=None
    )


def _again(operation: BatchOperation, earlier: Row | None, found: Mapping[int, Row]) -> Row | None:
    """What an operation answered with, as far as it is still there: a get's memory may be gone."""
    if earlier is None or (isinstance(operation, records.Get) and earlier.seq not in found):
        return None
    return found.get(earlier.seq, _bare(earlier))._replace(expires_at=earlier.expires_at)  # type: ignore[union-attr]


def _token(principal: Principal, key: str) -> bytes:
    """A digest of the key and of who uses it: two clients of one user do not share keys."""
    if not 1 <= len(validation.encode_text(key, "idempotency_key")) <= _MAX_KEY_BYTES:
        raise InvalidRequest("idempotency_key", f"1 to {_MAX_KEY_BYTES} bytes")
    who = [principal.user_id, principal.client_id, principal.agent, key]
    return hashlib.sha256(msgspec.json.encode(who)).digest()


def _digest(operations: Sequence[BatchOperation]) -> bytes:
    return hashlib.sha256(msgspec.json.encode(operations, order="sorted")).digest()
