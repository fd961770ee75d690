"""How operations become one transaction: validated, authorised, sealed, and done once where it is asked."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from alcove.core import cancellation, cursor, records, validation
from alcove.core.clock import parse_moment
from alcove.core.cursor import Page
from alcove.core.errors import AlcoveError, Conflict, InvalidRequest, KeyDestroyed, Unavailable
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import BatchOperation, Entry, OperationResult, Put
from alcove.core.threads import before_long_work, before_waiting
from alcove.engine.commit import Submission
from alcove.engine.rows import (
    DeleteRow,
    EvictRow,
    GetRow,
    IdempotentRequest,
    Outcome,
    PutRow,
    Row,
    RowOperation,
    StaleDecision,
    StoredAnswer,
    TouchRow,
    Writer,
)
from alcove.engine.transaction import new_id
from alcove.store import row_decoding
from alcove.store.active_config import ActiveConfig, Denials
from alcove.store.common import Service
from alcove.store.pending_write import PendingWrite
from alcove.store.session_cache import SessionLocation
from alcove.vault import SubjectKey, subject_of, user_subject

R = TypeVar("R")
_MAX_ATTEMPTS = 10
_MAX_KEY_BYTES = 255


class Request:
    """A write as it was asked for, whichever rules and keys hold when it is committed."""

    __slots__ = ("answered", "attempts", "is_batch", "operations", "places", "principal", "token",
                 "wait_for_index")  # fmt: skip

    def __init__(
        self,
        principal: Principal,
        operations: Sequence[BatchOperation],
        idempotency_key: str | None = None,
        after_cursor: str | None = None,
        places: SessionLocation | None = None,
        *,
        wait_for_index: bool = False,
        is_batch: bool = True,
    ) -> None:
        """`places`: of a session, whose messages go into the session store as well."""
        self.answered = 0 if after_cursor is None else _position(after_cursor, operations)
        if self.answered:  # nothing is written, so nothing can be written twice
            operations, idempotency_key = operations[self.answered :], None
        self.principal, self.operations = principal, operations
        self.token = None if idempotency_key is None else _token(principal, idempotency_key)
        self.places, self.wait_for_index, self.is_batch = places, wait_for_index, is_batch
        self.attempts = 0


class _Write:
    """What the operations of one write have in common."""

    __slots__ = ("data_keys", "policy", "principal", "rooms", "settings", "writer")

    def __init__(self, in_force: ActiveConfig, principal: Principal) -> None:
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

    index_patience = 30.0
    """Seconds for which a call waits for the index, if it is asked to."""

    def check(self, principal: Principal, operation: BatchOperation) -> None:
        """Raises what this write would raise before it has any effect: wrong arguments, or a policy's no."""
        self._allow(_Write(self._configuration.current(), principal), operation)

    def _begin_one(
        self,
        principal: Principal,
        operation: BatchOperation,
        answer: type[R],
        idempotency_key: str | None = None,
        *,
        wait_for_index: bool = False,
    ) -> PendingWrite[R]:
        """Begins a write of one operation, whose errors do not say which of a batch they are about."""
        request = Request(
            principal, [operation], idempotency_key, wait_for_index=wait_for_index, is_batch=False
        )

        def the_only_result(outcome: Outcome) -> R:
            (result,) = self._finish(request, outcome)
            assert isinstance(result, answer)
            return result

        return PendingWrite(partial(self._submit, request), the_only_result, partial(self._recover, request))

    def _begin(self, request: Request) -> PendingWrite[Page[OperationResult]]:
        """Begins a write of many operations."""
        submit, finish = partial(self._submit, request), partial(self._finish, request)
        return PendingWrite(submit, finish, partial(self._recover, request))

    def _submit(self, request: Request) -> Submission:
        """Decides, seals and submits a write; where a data key has to be made first, it may wait for that."""
        for _ in range(_MAX_ATTEMPTS):
            version, in_force = self._configuration.loaded
            write = _Write(in_force, request.principal)
            allowed, denials = self._configuration.decided(partial(self._allowed, write, request))
            if isinstance(allowed, AlcoveError):
                self._refuse(allowed, denials, version)
                continue
            if request.token is not None:
                own = user_subject(request.principal.user_id)
                write.data_keys[own] = self._vault.held(own)
            if None in write.data_keys.values():  # of newcomers, or who has not been here for long
                before_waiting()
                write.data_keys = {subject: self._vault.key(subject) for subject in write.data_keys}
            sealed = [_sealed(each, write) if isinstance(each, _Allowed) else each for each in allowed]
            once = _idempotent(write, request)
            return self._engine.submit(sealed, once, request.principal.user_id, version)
        raise Unavailable("rules are put again and again; try later")

    def _refuse(self, refusal: AlcoveError, denials: Denials, version: int) -> None:
        """Raises a refusal, unless other rules were put than those of the version by which it was made."""
        if self._engine.is_remote:
            before_long_work()
        if self._configuration.is_newest(version):
            self._configuration.tell(denials)
            raise refusal

    def _recover(self, request: Request, error: Exception) -> None:
        """Raises why a write was not committed, or gets ready to submit it once more.

        That is where rules were put, or a data key was destroyed by a wipe, since it was decided and sealed.
        """
        if isinstance(error, AlcoveError):
            if not request.is_batch:
                error.details.pop("operation", None)
            raise error
        before_waiting()
        request.attempts += 1
        if request.attempts == _MAX_ATTEMPTS:
            raise Unavailable("this user is being wiped, or rules are put, again and again; try later")
        if isinstance(error, StaleDecision):
            self._configuration.current()
            return
        self._vault.forget(user_subject(request.principal.user_id))
        for operation in request.operations:
            self._vault.forget(subject_of(Namespace.checked(operation.namespace)))

    def _finish(self, request: Request, outcome: Outcome) -> Page[OperationResult]:
        """The results of a write that was committed."""
        principal, operations = request.principal, request.operations
        if isinstance(outcome, StoredAnswer):
            if self._engine.is_remote:
                before_long_work()
            assert request.token is not None
            outcome = self._earlier(operations, request.token, outcome)
        imported = [each for each in operations if isinstance(each, records.ImportedPut)]
        is_recorded = principal.has_role and any(isinstance(each, records.Get) for each in operations)
        if imported or is_recorded or request.wait_for_index:
            before_waiting()  # for the audit log or the index; now, because what follows has effects
        if self._sessions and request.places:
            done = zip(operations, outcome, strict=True)
            self._sessions.wrote(request.places, [row for each, row in done if row and isinstance(each, Put)])
        if self._indexer and any(isinstance(each, Put) and each.index for each in operations):
            self._indexer.wake()
        if imported:
            self._audit.imported(principal, [Namespace.checked(each.namespace).owner for each in imported])
        results = Page(map(self._result, operations, outcome))
        if request.wait_for_index:
            self._wait_for_all(operations, results)
        gets = [each.namespace for each in results if isinstance(each, records.Memory)]
        if gets:
            self._record_read(principal, "batch", _common_scope(gets), gets)
        if len(outcome) < len(operations):
            results.after_cursor = cursor.encode(request.answered + len(outcome))
        return results

    def wait_for_index(self, entry: Entry, seconds: float) -> bool | None:
        """Waits until an entry that was just written can be found by meaning; whether it can.

        None where it has no text, or is gone by now.
        """
        place = validation.parse_location(entry.namespace, entry.key, self._configuration.current().settings)
        row = self._engine.get(place.ns, place.key, now=self._clock())
        if row is None or row.index_text is None:
            return None
        if self._indexer is not None:
            self._indexer.wait(row.seq, seconds)
        return not self._engine.index.pending_status(row.seq)[0]

    def _wait_for_all(self, operations: Sequence[BatchOperation], results: Page[OperationResult]) -> None:
        """Waits until what was put can be found by meaning, and says of each entry whether it can."""
        until = time.monotonic() + self.index_patience
        for n, (put, entry) in enumerate(zip(operations, results, strict=False)):
            if isinstance(put, Put) and put.index and isinstance(entry, Entry):
                indexed = self.wait_for_index(entry, until - time.monotonic())
                results[n] = structs.replace(entry, indexed=bool(indexed))

    def _allowed(self, write: _Write, request: Request) -> list[RowOperation | _Allowed]:
        """Every operation, checked and allowed; an error says which of a batch it is."""
        operations = request.operations
        if len(operations) > (most := write.settings.max_batch):
            raise InvalidRequest("operations", f"at most {most}, not {len(operations)}")
        allowed = []
        for position, operation in enumerate(operations):
            if position:  # of many
                cancellation.check()
            try:
                allowed.append(self._allow(write, operation))
            except AlcoveError as error:
                if request.is_batch:
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
        if self._engine.erasure.generation() > wipes:  # it is of another time, or gone when it is looked for
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


def _idempotent(write: _Write, request: Request) -> IdempotentRequest | None:
    """What the engine needs to do a request once, if that is asked for."""
    if (token := request.token) is None:
        return None
    user, digest = write.principal.user_id, _digest(request.operations)
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
