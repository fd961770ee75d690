"""Writes memories: each write is checked, sealed and committed in one transaction."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

from msgspec import structs

from alcove.core import cursor, records, validation
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
from alcove.engine.commit import Submission
from alcove.engine.engine import Engine
from alcove.engine.rows import DataKeyGone, Outcome, Row, StaleDecision, StoredAnswer
from alcove.search.indexer import Indexer
from alcove.store import idempotency
from alcove.store.access import Access
from alcove.store.audit import AuditLog
from alcove.store.row_decoder import RowDecoder, entry
from alcove.store.session_cache import SessionCache, SessionLocation
from alcove.store.write_preparation import WritePreparation
from alcove.vault import Vault, subject_of, user_subject

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

        `namespace`, `key`: its place. `ttl_seconds`: how long it lives from now on; by default forever.
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
        parsed = validation.parse_operations(operations)
        return PendingWrite(
            self,
            principal,
            parsed,
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
        """Raises what this write would raise before it has any effect: wrong arguments, or a denial."""
        write = WritePreparation(self._engine, self._vault, self._access.current(), principal)
        with self._access.counting_denials(principal):
            write.check([operation])

    # One write: submit, perhaps again, and finish

    def submit(self, write: PendingWrite[Any]) -> Submission:
        """Checks, seals and submits a write; it may wait for a data key that has to be made first."""
        for _ in range(_MAX_ATTEMPTS):
            version, config = self._access.loaded
            preparation = WritePreparation(self._engine, self._vault, config, write.principal)
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
            self._session_cache.wrote(write.location, puts)
        if self._indexer and any(isinstance(each, Put) and each.index for each in operations):
            self._indexer.wake()
        if imported:
            owners = [Namespace.checked(each.namespace).owner for each in imported]
            self._audit.imported(principal, owners)
        results = Page(map(self._result, operations, outcome))
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

    # What was gathered for a user before a wipe must not be written after it

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


def _answered_count(after_cursor: str, operations: Sequence[BatchOperation]) -> int:
    """How many operations of a batch an earlier answer had; only gets can follow them."""
    count = cursor.decode(after_cursor)
    if count >= len(operations) or not all(isinstance(each, records.Get) for each in operations[count:]):
        raise InvalidRequest("after_cursor", "a cursor of this batch, after which only gets are left")
    return count
