"""Writes memories: each write is validated, authorised, sealed, and committed in one transaction."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from msgspec import structs

from alcove.core import cancellation, cursor, records, validation
from alcove.core.clock import parse_moment
from alcove.core.cursor import Page
from alcove.core.errors import AlcoveError, InvalidRequest, KeyDestroyed, Unavailable
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import (
    AfterCursor,
    BatchOperation,
    Delete,
    Deletion,
    Entry,
    IndexSpec,
    Key,
    KeyBinding,
    NamespaceLike,
    OperationResult,
    Put,
    Revision,
    Seconds,
    Touch,
)
from alcove.core.threads import before_long_work, before_waiting
from alcove.core.validation import Location
from alcove.engine.commit import Submission
from alcove.engine.engine import Engine
from alcove.engine.rows import (
    DataKeyGone,
    DeleteRow,
    EvictRow,
    GetRow,
    Outcome,
    PutRow,
    Row,
    RowOperation,
    StaleDecision,
    StoredAnswer,
    TouchRow,
)
from alcove.engine.rows import Writer as Author
from alcove.engine.transaction import new_id
from alcove.search.indexer import Indexer
from alcove.store import idempotency
from alcove.store.access import Access, ActiveConfig
from alcove.store.audit import AuditLog
from alcove.store.row_decoder import RowDecoder, bound_to, entry
from alcove.store.session_cache import SessionCache, SessionLocation
from alcove.vault import SubjectKey, Vault, subject_of, user_subject

P = ParamSpec("P")
R = TypeVar("R")
_MAX_ATTEMPTS = 10


class PendingWrite(Generic[R]):
    """A write that is checked, sealed and in the commit queue.

    An event loop awaits `commit` and then asks for the result; a thread asks at once and blocks.
    """

    def __init__(
        self,
        writer: Writer,
        principal: Principal,
        operations: Sequence[BatchOperation],
        idempotency_key: str | None = None,
        *,
        after_cursor: str | None = None,
        location: SessionLocation | None = None,
        wait_for_index: bool = False,
        is_batch: bool = True,
    ) -> None:
        """`location`: that of a session, if its messages also go into the session cache."""
        self.answered = 0 if after_cursor is None else _answered_count(after_cursor, operations)
        if self.answered:  # only gets are left, so nothing can be written twice
            operations, idempotency_key = operations[self.answered :], None
        self.principal, self.operations, self.is_batch = principal, operations, is_batch
        self.token = None if idempotency_key is None else idempotency.token(principal, idempotency_key)
        self.location, self.wait_for_index = location, wait_for_index
        self.attempts = 0
        self._writer = writer
        self.commit = writer.submit(self)

    def result(self) -> R:
        """Waits for the commit and returns the answer, or raises why the write was refused."""
        while True:
            try:
                outcome = self.commit.result()
            except (StaleDecision, DataKeyGone) as reason:
                self.commit = self._writer.submit_again(self, reason)
            except AlcoveError as error:
                if not self.is_batch:
                    error.details.pop("operation", None)
                raise
            else:
                results: Any = self._writer.finish(self, outcome)
                return results if self.is_batch else results[0]  # type: ignore[no-any-return]


def commits(begin: Callable[P, PendingWrite[R]]) -> Callable[P, R]:
    """Makes a method that begins a write block until it is committed; its attribute `begin` does not."""

    @wraps(begin)
    def write(*args: P.args, **kwargs: P.kwargs) -> R:
        return begin(*args, **kwargs).result()

    answer = begin.__annotations__["return"].removeprefix("PendingWrite[").removesuffix("]")
    write.__annotations__ = {**begin.__annotations__, "return": answer}
    write.__signature__ = inspect.signature(begin).replace(return_annotation=answer)  # type: ignore[attr-defined]
    write.begin = begin  # type: ignore[attr-defined]
    return write


class Writer:
    """Writes what a principal may write: validate, authorise, derive attributes, seal, commit."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        vault: Vault,
        decoder: RowDecoder,
        audit: AuditLog,
        indexer: Indexer | None,
        session_cache: SessionCache | None,
        *,
        index_wait_seconds: float,
    ) -> None:
        """`index_wait_seconds`: how long a call with `wait_for_index` waits."""
        self._engine, self._access, self._vault, self._decoder = engine, access, vault, decoder
        self._audit, self._indexer, self._session_cache = audit, indexer, session_cache
        self._index_wait_seconds = index_wait_seconds

    @commits
    def put(
        self,
        principal: Principal,
        namespace: NamespaceLike,
        key: Key,
        value: Mapping[str, object],
        *,
        index: IndexSpec | None = None,
        ttl_seconds: Seconds | None = None,
        expected_revision: Revision | None = None,
        create_only: bool = False,
        idempotency_key: str | None = None,
        wait_for_index: bool = False,
    ) -> PendingWrite[Entry]:
        """Stores a JSON object at a key, replacing what was there; the answer does not repeat the value.

        `namespace`, `key`: its place; a namespace is a sequence of segments, or text such as `user:alice`.
        `value`: the object.
        `index`: the texts that a search finds it by, stored unencrypted: true for every text of the value, a
        list of dotted paths to some of them (`["title", "turns.said"]`), or texts of your own by field.
        `ttl_seconds`: how long it lives; by default forever.
        `expected_revision`: fails with Conflict if the current revision is another one; 0 is no memory.
        `create_only`: fails with Conflict if there is a memory.
        `idempotency_key`: repeating the same request with the same key within a day has no further effect
        and gives the same answer.
        `wait_for_index`: whether to wait until the memory can be found by meaning; `indexed` in the answer
        says whether it can.
        """
        put = Put(namespace, key, value, index, ttl_seconds, expected_revision, create_only)
        return PendingWrite(
            self, principal, [put], idempotency_key, wait_for_index=wait_for_index, is_batch=False
        )

    @commits
    def put_record(self, principal: Principal, put: Put) -> PendingWrite[Entry]:
        """Stores what a record describes."""
        return PendingWrite(self, principal, [put], is_batch=False)

    @commits
    def delete(
        self,
        principal: Principal,
        namespace: NamespaceLike,
        key: Key,
        *,
        expected_revision: Revision | None = None,
        idempotency_key: str | None = None,
    ) -> PendingWrite[Deletion]:
        """Deletes the memory at a key; it is no error if there is none.

        `namespace`, `key`: its place.
        `expected_revision`: fails with Conflict if the current revision is another one.
        `idempotency_key`: repeating the same request with the same key within a day has no further effect
        and gives the same answer.
        """
        delete = Delete(namespace, key, expected_revision)
        return PendingWrite(self, principal, [delete], idempotency_key, is_batch=False)

    @commits
    def touch(
        self, principal: Principal, namespace: NamespaceLike, key: Key, *, ttl_seconds: Seconds | None = None
    ) -> PendingWrite[Entry]:
        """Changes when a memory expires, without a version or an event. NotFound if there is no memory.

        `namespace`, `key`: its place. `ttl_seconds`: how long it still lives; by default forever.
        """
        return PendingWrite(self, principal, [Touch(namespace, key, ttl_seconds)], is_batch=False)

    @commits
    def batch(
        self,
        principal: Principal,
        operations: Sequence[BatchOperation | Mapping[str, object]],
        *,
        idempotency_key: str | None = None,
        after_cursor: AfterCursor | None = None,
        wait_for_index: bool = False,
    ) -> PendingWrite[Page[OperationResult]]:
        """Puts, gets, deletes and touches in one transaction, which reads its own writes: all or none.

        `operations`: records (`Put`, `Get`, `Delete`, `Touch`) or mappings with an `op`.
        `idempotency_key`: repeating the same request with the same key within a day has no further effect
        and gives the same answer.
        `after_cursor`: an answer with more than 4 MiB of gets ends early; the same call with its cursor
        returns the rest.
        `wait_for_index`: whether to wait until the puts can be found by meaning; `indexed` of each entry says
        whether it can.
        """
        return PendingWrite(
            self,
            principal,
            validation.parse_operations(operations),
            idempotency_key,
            after_cursor=after_cursor,
            wait_for_index=wait_for_index,
        )

    @commits
    def batch_in_session(
        self, principal: Principal, operations: Sequence[BatchOperation], location: SessionLocation
    ) -> PendingWrite[Page[OperationResult]]:
        """The same for a session, whose new messages also go into the session cache, if there is one."""
        return PendingWrite(self, principal, operations, location=location)

    def check(self, principal: Principal, operation: BatchOperation) -> None:
        """Raises the errors that this write would raise before any effect: wrong arguments, or a denial."""
        write = _Preparation(self._engine, self._vault, self._access.current(), principal)
        with self._access.counting_denials(principal):
            write.check([operation])

    # One write: submit, perhaps again, and finish

    def submit(self, write: PendingWrite[Any]) -> Submission:
        """Checks, seals and submits a write; it may wait for a data key that has to be made first."""
        for _ in range(_MAX_ATTEMPTS):
            version, config = self._access.loaded
            preparation = _Preparation(self._engine, self._vault, config, write.principal)
            try:
                preparation.check(write.operations, is_batch=write.is_batch)
            except AlcoveError as error:
                self._access.refuse(write.principal, error, version)
                continue
            user = write.principal.user_id
            once = None
            if write.token is not None:
                data_key = preparation.data_key(user_subject(user))
                once = idempotency.request(user, write.token, write.operations, data_key)
            return self._engine.submit(preparation.seal(), once, user, version)
        raise Unavailable("the rules of this store keep changing; try again later")

    def submit_again(self, write: PendingWrite[Any], reason: Exception) -> Submission:
        """Submits a write again because the rules changed, or a wipe destroyed a data key, since `submit`."""
        before_waiting()
        write.attempts += 1
        if write.attempts == _MAX_ATTEMPTS:
            raise Unavailable("this user is being wiped, or rules keep changing; try again later")
        if isinstance(reason, StaleDecision):
            self._access.current()
        else:
            self._vault.forget(user_subject(write.principal.user_id))
            for operation in write.operations:
                self._vault.forget(subject_of(Namespace.checked(operation.namespace)))
        return self.submit(write)

    def finish(self, write: PendingWrite[Any], outcome: Outcome) -> Page[OperationResult]:
        """Returns the results of a committed write."""
        principal, operations = write.principal, write.operations
        if isinstance(outcome, StoredAnswer):
            if self._engine.is_remote:
                before_long_work()
            assert write.token is not None
            outcome = idempotency.repeat(self._engine, self._vault, operations, write.token, outcome)
        imported = [each for each in operations if isinstance(each, records.ImportedPut)]
        is_recorded = principal.has_role and any(isinstance(each, records.Get) for each in operations)
        if imported or is_recorded or write.wait_for_index:
            before_waiting()  # for the audit log or the index; before anything below has an effect
        if self._session_cache and write.location:
            rows = zip(operations, outcome, strict=True)
            puts = [row for each, row in rows if row and isinstance(each, Put)]
            self._session_cache.update(write.location, puts)
        if self._indexer and any(isinstance(each, Put) and each.index for each in operations):
            self._indexer.wake()
        if imported:
            owners = [Namespace.checked(each.namespace).owner for each in imported]
            self._audit.imported(principal, owners)
        results = Page(
            entry(row) if row and isinstance(each, Put) else self._result(each, row)
            for each, row in zip(operations, outcome, strict=False)
        )
        if write.wait_for_index:
            self._wait_for_puts(operations, results)
        namespaces = [each.namespace for each in results if isinstance(each, records.Memory)]
        if namespaces:
            scope = namespaces[0] if len({*namespaces}) == 1 else Namespace()
            self._access.record_read(principal, "batch", scope, namespaces)
        if len(outcome) < len(operations):
            results.after_cursor = cursor.encode(write.answered + len(outcome))
        return results

    def _result(self, operation: BatchOperation, row: Row | None) -> OperationResult:
        if isinstance(operation, records.Get):
            with contextlib.suppress(KeyDestroyed):  # wiped since the commit
                return self._decoder.memory(row) if row else None
            return None
        if isinstance(operation, records.Delete):
            namespace, revision = Namespace.checked(operation.namespace), row.revision if row else None
            return Deletion(
                namespace=namespace, key=operation.key, deleted=row is not None, revision=revision
            )
        return entry(row) if row else None

    # The index

    def wait_for_index(self, entry: Entry, seconds: float) -> bool | None:
        """Waits until a new entry can be found by meaning; returns whether it can.

        None if it has no text, or is gone by now.
        """
        location = validation.parse_location(entry.namespace, entry.key, self._access.current().settings)
        row = self._engine.get(location.ns, location.key, now=self._engine.clock())
        if row is None or row.index_text is None:
            return None
        if self._indexer is not None:
            self._indexer.wait(row.seq, seconds)
        return not self._engine.index.pending_status(row.seq)[0]

    def _wait_for_puts(self, operations: Sequence[BatchOperation], results: Page[OperationResult]) -> None:
        """Waits until the puts can be found by meaning, and sets `indexed` of each entry."""
        deadline = time.monotonic() + self._index_wait_seconds
        for n, (put, written) in enumerate(zip(operations, results, strict=False)):
            if isinstance(put, Put) and put.index and isinstance(written, Entry):
                indexed = self.wait_for_index(written, deadline - time.monotonic())
                results[n] = structs.replace(written, indexed=bool(indexed))

    # Data that was collected for a user before a wipe must not be written after it

    def key_binding(self, user: str) -> KeyBinding:
        """Returns what a `DeferredPut` for a user is bound to; it does not wait for other writes."""
        data_key = self._vault.find_key(user_subject(user))
        return (data_key.id, 0) if data_key else (None, self._engine.erasure.generation())

    def lasting_key_binding(self, user: str) -> KeyBinding:
        """The same for work that takes long: makes the user's data key, so that wipes of others do not
        count."""
        return self._vault.key(user_subject(user)).id, 0

    def refuse_wiped(self, user: str, since: KeyBinding) -> None:
        """Raises Unavailable if the user was wiped since `key_binding` returned `since`."""
        self._vault.forget(user_subject(user))  # another process may have wiped them
        if self.key_binding(user)[0] != since[0]:
            raise Unavailable("this user's data was erased in the meantime; nothing was stored")


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
    imported_fields: Mapping[str, Author | int | None]
    """Fields of the row that an imported memory sets."""


class _Preparation:
    """Prepares the operations of one write by one version of the rules."""

    def __init__(self, engine: Engine, vault: Vault, config: ActiveConfig, principal: Principal) -> None:
        self._engine, self._vault = engine, vault
        self._policy, self._settings = config
        self._principal = principal
        self._author = Author(principal.user_id, principal.client_id, principal.agent)
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
        rows: list[RowOperation] = []
        for operation in self._operations:
            if not isinstance(operation, _AllowedPut):
                rows.append(operation)
                continue
            (_, ns, key), value, index_text, ttl, expected, room, attributes, data_key, imported = operation
            data_key = data_key or self.data_key(room.subject)
            id = new_id()
            sealed = data_key.seal(value, bound_to(id, ns, key))
            row = PutRow(id, ns, key, room.owner, self._author, data_key.id, sealed, attributes,
                         index_text, ttl, expected)  # fmt: skip
            rows.append(row._replace(**imported) if imported else row)  # type: ignore[arg-type]
        return rows

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
                return EvictRow(ns, key, self._author, operation.most)
            case records.Get():
                policy.authorise(principal, "read", namespace, operation.key)
                return GetRow(ns, key)
            case records.Delete():
                expected = validation.parse_revision(operation.expected_revision)
                policy.authorise(principal, "delete", namespace, operation.key)
                return DeleteRow(ns, key, self._author, expected)
            case records.Touch():
                ttl = None if operation.ttl_seconds is None else validation.parse_ttl(operation.ttl_seconds)
                if operation.refresh and ttl is not None:
                    raise InvalidRequest("refresh", "not to be combined with ttl_seconds")
                policy.authorise_write(principal, namespace, operation.key, b"null", None)
                return TouchRow(ns, key, ttl, operation.refresh is True)
            case _:
                raise InvalidRequest("op", "put, get, delete or touch")

    def _deferred_key(self, bound: records.KeyBinding, subject: str) -> SubjectKey:
        """The key for a deferred put; KeyDestroyed if the owner of its room was wiped since it was made."""
        self._vault.forget(subject)  # another process may have wiped them, which the next call must see
        key_id, wipes = bound
        if key_id is not None:
            return self._vault.key_by_id(key_id)
        data_key = self._vault.key(subject, wipes=wipes)
        if self._engine.erasure.generation() > wipes:  # a key from before the wipe, or a newer one
            raise KeyDestroyed("a user was wiped since then")
        return data_key

    def _imported_fields(self, put: records.ImportedPut) -> dict[str, Author | int | None]:
        """The times of an imported memory and, if an admin imports it, its author."""
        author = self._author
        if put.written_by and self._principal.is_admin:
            author = Author(put.written_by.user, put.written_by.client, put.written_by.agent)
        return {
            "writer": author,
            "until": parse_moment(put.expires_at, "expires_at"),
            "original_at": parse_moment(put.created_at, "created_at"),
            "added_at": parse_moment(put.added_at, "added_at"),
        }


def _answered_count(after_cursor: str, operations: Sequence[BatchOperation]) -> int:
    """How many operations of a batch an earlier answer had; only gets can follow them."""
    count = cursor.decode(after_cursor)
    if count >= len(operations) or not all(isinstance(each, records.Get) for each in operations[count:]):
        raise InvalidRequest("after_cursor", "a cursor of this batch, after which only gets are left")
    return count
