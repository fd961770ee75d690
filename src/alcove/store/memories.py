"""The one road into the data.

Everything that reads or writes a memory comes through `Memories`, which does, in this order:
validate, authorise, derive attributes, seal, one transaction in the engine. No other module touches
an engine, so no other module can forget the policy.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from alcove.core import cancellation, cursor
from alcove.core.clock import DAY, Clock, checked_moment
from alcove.core.cursor import Portion
from alcove.core.errors import AlcoveError, InvalidRequest, KeyDestroyed, Unavailable
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import (
    Address,
    AfterCursor,
    Deferred,
    Delete,
    Deletion,
    Entry,
    Evict,
    Get,
    Imported,
    Key,
    Memory,
    Operation,
    Put,
    Result,
    Revision,
    Seconds,
    Swept,
    Touch,
    new_id,
)
from alcove.core.settings import Settings
from alcove.engine.base import Engine
from alcove.engine.commit import Step
from alcove.engine.rows import (
    DataKeyGone,
    DeleteRow,
    EvictRow,
    GetRow,
    PutRow,
    Row,
    RowOperation,
    TouchRow,
    Writer,
)
from alcove.policy import Policy
from alcove.search.indexer import Indexer
from alcove.store import decoding, validation
from alcove.store.admin import Admin
from alcove.store.audit import Audit
from alcove.store.batches import parse
from alcove.store.configuration import Configuration
from alcove.store.idempotency import IdempotentRequests
from alcove.store.reading import Reading
from alcove.store.steps import Steps, Work, stepwise
from alcove.vault import SubjectKey, Vault, subject_of, user_subject

if TYPE_CHECKING:
    from alcove.search.searcher import Searcher

log = logging.getLogger("alcove")
_SWEEP_BATCH = 500
_MOST_RESEALS = 10


class _Write(NamedTuple):
    """What the operations of one write have in common."""

    policy: Policy
    settings: Settings
    principal: Principal
    writer: Writer
    missing: set[str]
    """Subjects that have no data key yet."""


class Memories(Reading):
    """Memories of every principal; each call says who asks."""

    def __init__(
        self,
        *,
        engine: Engine,
        vault: Vault,
        configuration: Configuration,
        audit: Audit,
        admin: Admin,
        recall: Callable[[], Searcher],
        indexer: Indexer | None,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._vault = vault
        self._configuration = configuration
        self._audit = audit
        self._clock = clock
        self.admin = admin
        self._make_recall = recall
        self._indexer = indexer
        self._opener = decoding.Opener(vault)
        self._replays = IdempotentRequests(vault, engine.versions)
        self.index_patience = 30.0
        """Seconds that a put waits to be indexed, if it is asked to."""

    # Writing

    @stepwise
    def put(
        self,
        principal: Principal,
        namespace: Address,
        key: Key,
        value: Mapping[str, object],
        *,
        index: Mapping[str, str] | None = None,
        ttl_seconds: Seconds | None = None,
        expected_revision: Revision | None = None,
        create_only: bool = False,
        idempotency_key: str | None = None,
        wait_for_index: bool = False,
    ) -> Steps[Entry]:
        """Stores a JSON object at a key, replacing what was there; the answer does not echo the value.

        `namespace`, `key`: where; a namespace is a sequence of segments, or its spelling (`user:alice`).
        `value`: the object. `index`: texts by which it is to be found, by field.
        `ttl_seconds`: how long it lives; for ever without.
        `expected_revision`: refuses with Conflict if what is there has another; 0 is nothing.
        `create_only`: refuses with Conflict if anything is there.
        `idempotency_key`: the same key with the same request is done once, and answered again for a day.
        `wait_for_index`: answers when the memory can be found by meaning, too.
        """
        put = Put(
            namespace=namespace,
            key=key,
            value=value,
            index=index,
            ttl_seconds=ttl_seconds,
            expected_revision=expected_revision,
            create_only=create_only,
        )
        entry = yield from self._write_one(principal, put, idempotency_key)
        assert isinstance(entry, Entry)
        if wait_for_index and index:
            yield from self.index_pauses(entry, self.index_patience)
        return entry

    @stepwise
    def put_record(self, principal: Principal, put: Put) -> Steps[Entry]:
        """Stores what a record says."""
        entry = yield from self._write_one(principal, put, None)
        assert isinstance(entry, Entry)
        return entry

    @stepwise
    def wait_for_index(self, entry: Entry, seconds: float) -> Steps[bool]:
        """Waits until an entry that was just written can be found by meaning; whether it still waits."""
        return (yield from self.index_pauses(entry, seconds))

    def index_pauses(self, entry: Entry, seconds: float) -> Generator[float, None, bool]:
        """The same for who must not block: yields how long to pause before asking for the next pause."""
        place = validation.address(entry.namespace, entry.key, self._configuration.current().settings)
        row = self._engine.get(place.ns, place.key, now=self._clock())
        if row is not None and self._indexer is not None:
            yield from self._indexer.pauses(row.seq, seconds)
        return row is not None and self._engine.index.waits(row.seq)[0]

    @stepwise
    def delete(
        self,
        principal: Principal,
        namespace: Address,
        key: Key,
        *,
        expected_revision: Revision | None = None,
        idempotency_key: str | None = None,
    ) -> Steps[Deletion]:
        """Deletes what is at a key; nothing there is not an error.

        `namespace`, `key`: where.
        `expected_revision`: refuses with Conflict if what is there has another.
        `idempotency_key`: the same key with the same request is done once, and answered again for a day.
        """
        delete = Delete(namespace=namespace, key=key, expected_revision=expected_revision)
        deletion = yield from self._write_one(principal, delete, idempotency_key)
        assert isinstance(deletion, Deletion)
        return deletion

    @stepwise
    def touch(
        self, principal: Principal, namespace: Address, key: Key, *, ttl_seconds: Seconds | None = None
    ) -> Steps[Entry]:
        """Changes when a memory expires; no version, no event. NotFound where there is none.

        `namespace`, `key`: where. `ttl_seconds`: how long it lives from now on; for ever without.
        """
        touch = Touch(namespace=namespace, key=key, ttl_seconds=ttl_seconds)
        entry = yield from self._write_one(principal, touch, None)
        assert isinstance(entry, Entry)
        return entry

    @stepwise
    def batch(
        self,
        principal: Principal,
        operations: Sequence[Operation | Mapping[str, object]],
        *,
        idempotency_key: str | None = None,
        after_cursor: AfterCursor | None = None,
    ) -> Steps[Portion[Result]]:
        """Puts, gets, deletes and touches in one transaction, which reads its own writes: all or none.

        `operations`: records (`Put`, `Get`, `Delete`, `Touch`) or mappings with an `op`.
        `idempotency_key`: the same key with the same request is done once, and answered again for a day.
        `after_cursor`: gets of more than 4 MiB in all end early; the same call with their cursor goes on.
        """
        yield Work.LARGE
        return (yield from self._write(principal, parse(operations), idempotency_key, after_cursor))

    def check(self, principal: Principal, operation: Operation) -> None:
        """Raises what this write would raise before it has any effect: wrong arguments, or a policy's no."""
        try:
            self._prepare(self._begun(principal), operation, 0)
        except AlcoveError as error:
            error.details.pop("operation", None)
            raise

    def present(self, principal: Principal, put: Imported) -> Memory | None:
        """What an import would replace; the policy is asked as for the import itself."""
        policy, settings = self._configuration.current()
        place = validation.address(put.namespace, put.key, settings)
        value, index = validation.value(put.value, settings), validation.index(put.index, settings)
        policy.authorise_write(principal, place.namespace, put.key, value, index, "import")
        look = partial(self._engine.get, place.ns, place.key, now=self._clock())
        return decoding.undisturbed(lambda: (found := look()) and self._opener.memory(found))

    def bound(self, user: str) -> tuple[int | None, int]:
        """What a `Deferred` put for a user is bound to; waits for no other write."""
        known = self._vault.known(user_subject(user))
        return (known.id, 0) if known else (None, self._engine.erasure.wipes())

    def _write_one(
        self, principal: Principal, operation: Operation, idempotency_key: str | None
    ) -> Steps[Result]:
        try:
            (result,) = yield from self._write(principal, [operation], idempotency_key)
        except AlcoveError as error:
            error.details.pop("operation", None)
            raise
        return result

    def _write(
        self,
        principal: Principal,
        operations: Sequence[Operation],
        idempotency_key: str | None = None,
        after_cursor: str | None = None,
    ) -> Steps[Portion[Result]]:
        """A write; no part of it waits for the write lock but in what it yields."""
        done = _position(after_cursor, operations)
        if done:  # nothing is written, so nothing can be written twice
            operations, idempotency_key = operations[done:], None
        for _ in range(_MOST_RESEALS):
            write = self._begun(principal)
            if len(operations) > (most := write.settings.max_batch):
                raise InvalidRequest("operations", f"at most {most}, not {len(operations)}")
            prepared = [self._prepare(write, op, n) for n, op in enumerate(operations)]
            replay = self._replays.request(principal, operations, idempotency_key, write.missing)
            if write.missing:  # of newcomers, to whom all of it is allowed
                made = Step(lambda subjects=write.missing: [*map(self._vault.key, subjects)])  # type: ignore[misc]
                yield made
                made.result()
                continue
            pending = self._engine.submit([row for row in prepared if row], replay, principal.user_id)
            yield pending
            try:
                outcome = pending.result()
            except DataKeyGone:  # a wipe came between sealing and the commit: seal under a new key
                self._vault.forget(user_subject(principal.user_id))
                for operation in operations:
                    self._vault.forget(subject_of(Namespace.checked(operation.namespace)))
                continue
            stored = self._replays.answer(principal, operations, idempotency_key, outcome)
            if self._indexer and any(isinstance(op, Put) and op.index for op in operations):
                self._indexer.wake()
            owners = [Namespace.checked(op.namespace).owner for op in operations if isinstance(op, Imported)]
            if owners:
                self._audit.imported(principal, owners)
            results = Portion(self._result(op, row) for op, row in zip(operations, stored, strict=False))
            if len(stored) < len(operations):
                results.after_cursor = cursor.encode(done + len(stored))
            return results
        raise Unavailable("this user is being wiped again and again; try later")

    def _begun(self, principal: Principal) -> _Write:
        writer = Writer(principal.user_id, principal.client_id, principal.agent)
        return _Write(*self._configuration.current(), principal, writer, set())

    def _prepare(self, write: _Write, operation: Operation, position: int) -> RowOperation | None:
        """Validates, authorises and seals one operation; an error says which of a batch it is.

        None where there is no data key to seal it with; its subject is then `missing`.
        """
        cancellation.check()
        policy, settings, principal, writer, _ = write
        try:
            place = validation.address(operation.namespace, operation.key, settings)
            match operation:
                case Put():
                    return self._prepare_put(write, operation, place)
                case Evict():
                    policy.authorise(principal, "delete", place.namespace, "*")
                    return EvictRow(place.ns, place.key, writer, operation.most)
                case Get():
                    policy.authorise(principal, "read", place.namespace, operation.key)
                    return GetRow(place.ns, place.key)
                case Delete():
                    expected = validation.revision(operation.expected_revision)
                    policy.authorise(principal, "delete", place.namespace, operation.key)
                    return DeleteRow(place.ns, place.key, writer, expected)
                case Touch():
                    ttl = validation.ttl(operation.ttl_seconds)
                    policy.authorise_write(principal, place.namespace, operation.key, b"null", None)
                    return TouchRow(place.ns, place.key, ttl)
                case _:
                    raise InvalidRequest("op", "put, get, delete or touch")
        except AlcoveError as error:
            error.details["operation"] = position
            raise

    def _prepare_put(self, write: _Write, put: Put, place: validation.Address) -> PutRow | None:
        policy, settings, principal, writer, missing = write
        value = validation.value(put.value, settings)
        index = validation.index(put.index, settings)
        ttl = validation.ttl(put.ttl_seconds)
        expected = validation.revision(put.expected_revision, create_only=put.create_only)
        asked: Literal["write", "import"] = "import" if isinstance(put, Imported) else "write"
        policy.authorise_write(principal, place.namespace, put.key, value, index, asked)
        attributes = policy.attributes(principal, place.namespace, put.key, value, index)
        id, owner = new_id(), place.namespace.owner
        if isinstance(put, Deferred):
            data_key = self._deferred_key(put, subject_of(place.namespace))
        elif known := self._vault.known(subject := subject_of(place.namespace)):
            data_key = known
        else:
            missing.add(subject)
            return None
        sealed = data_key.seal(value, decoding.bound_to(id, place.ns, place.key))
        index_text = index.decode() if index else None
        until = original_at = None
        if isinstance(put, Imported):
            until = checked_moment(put.expires_at, "expires_at")
            original_at = checked_moment(put.created_at, "created_at")
            if put.written_by and principal.is_admin:
                writer = Writer(put.written_by.user, put.written_by.client, put.written_by.agent)
        return PutRow(id, place.ns, place.key, owner, writer, data_key.id, sealed, attributes.decode(),
                      index_text, ttl, expected, until, original_at)  # fmt: skip

    def _deferred_key(self, put: Deferred, subject: str) -> SubjectKey:
        """What seals a put that waited, unless its room's owner was wiped meanwhile; then KeyDestroyed."""
        self._vault.forget(subject)  # another process may have wiped them: the next call is to see that
        if put.data_key is not None:
            return self._vault.existing(put.data_key)
        data_key = self._vault.key(subject, wipes=put.wipes)
        if self._engine.erasure.wipes() > put.wipes:  # it is of another time, or gone when it is looked for
            raise KeyDestroyed("somebody was wiped since")
        return data_key

    def _result(self, operation: Operation, row: Row | None) -> Result:
        match operation:
            case Delete():
                return decoding.deletion(Namespace.checked(operation.namespace), operation.key, row)
            case Get():
                with contextlib.suppress(KeyDestroyed):  # wiped since the commit
                    return self._opener.memory(row) if row else None
                return None
            case _:
                assert row is not None
                return decoding.entry(row)

    # Living and dying

    def clear(self, principal: Principal, namespace: Address) -> int:
        """Takes everything out of one namespace and leaves no trace of it: no history, no tombstones."""
        policy, settings = self._configuration.current()
        place = validation.address(namespace, "*", settings)
        policy.authorise(principal, "delete", place.namespace, "*")
        return self._engine.erasure.clear(place.ns)

    def sweep(self) -> Swept:
        """Records what has expired, drops what retention no longer keeps, finishes scrubs."""
        now, engine, batch = self._clock(), self._engine, _SWEEP_BATCH
        settings = self._configuration.current().settings
        expired = _until_none_left(lambda: engine.expire(now=now, limit=batch))
        aged = 0
        for root, days in settings.retention_max_age.items():
            oldest, (low, high) = max(0, now - int(days * DAY)), Namespace((root,)).subtree()
            # Each step looks through the whole root again, so it may take more at a time.
            step = partial(engine.expire_older, low, high, than=oldest, limit=10 * batch)
            aged += _until_none_left(step)
        kept_from = max(0, now - int(settings.retention_days * DAY))
        purged = _until_none_left(lambda: engine.purge(before=kept_from, limit=batch))
        engine.purge_kept_answers(before=now - DAY)
        engine.admin.purge_audit(before=max(0, now - int(settings.audit_days * DAY)))
        self._audit.flush()
        self.admin.scrub()
        if expired or aged or purged:
            log.info("sweep: %d expired, %d past their age, %d old versions removed", expired, aged, purged)
        return Swept(expired=expired, aged=aged, purged=purged)

    def readiness(self) -> dict[str, Callable[[], object]]:
        """What must work for any call to work, by name; each raises if it does not."""
        return {
            "engine": self._engine.horizon,
            "keys": self._vault.check,
            "policy": self._check_policy,
        }

    def _check_policy(self) -> None:
        self._configuration.current().policy.check()

    def close(self) -> None:
        """Closes the store; nothing acknowledged is lost, with or without it."""
        if self._indexer:
            self._indexer.stop()
        with contextlib.suppress(AlcoveError):
            self._audit.flush()
        self._engine.close()


def _position(after_cursor: str | None, operations: Sequence[Operation]) -> int:
    """How many operations of a batch were answered before, which can only be followed by gets."""
    if after_cursor is None:
        return 0
    done = cursor.decode(after_cursor)
    if done >= len(operations) or not all(isinstance(each, Get) for each in operations[done:]):
        raise InvalidRequest("after_cursor", "a cursor of this batch, after which only gets are left")
    return done


def _until_none_left(step: Callable[[], int]) -> int:
    """Repeats a bounded step, so that writers get their turn between two of them; what it did in all."""
    done = 0
    while count := step():
        done += count
    return done
