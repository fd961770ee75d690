"""The one road into the data.

Everything that reads or writes a memory comes through `Memories`, which does, in this order:
validate, authorise, derive attributes, seal, one transaction in the engine. No other module touches
an engine, so no other module can forget the policy.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from alcove.core import validation
from alcove.core.clock import DAY, to_datetime
from alcove.core.cursor import Page
from alcove.core.errors import AlcoveError, Unavailable
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import (
    AfterCursor,
    BatchOperation,
    Caller,
    Delete,
    Deletion,
    Entry,
    ImportedPut,
    IndexSpec,
    Key,
    KeyBinding,
    Memory,
    NamespaceLike,
    OperationResult,
    Put,
    Revision,
    Seconds,
    SweepResult,
    Touch,
)
from alcove.engine.rows import MAX_INT64
from alcove.store import row_decoding
from alcove.store.admin import Admin
from alcove.store.common import Parts
from alcove.store.overview import Overview
from alcove.store.pending_write import PendingWrite, commits
from alcove.store.session_cache import SessionLocation
from alcove.store.writing import Request, Writing
from alcove.vault import user_subject

if TYPE_CHECKING:
    from alcove.search.hybrid_search import HybridSearch

log = logging.getLogger("alcove")
_SWEEP_BATCH = 500


class Memories(Writing, Overview):
    """Memories of every principal; each call says who asks."""

    def __init__(self, parts: Parts, admin: Admin, make_searcher: Callable[[], HybridSearch]) -> None:
        super().__init__(parts)
        self.admin = admin
        self.process = os.getpid()
        """Where it was opened: after a fork, locks that other threads held are never let go."""
        self._make_searcher = make_searcher

    def whoami(self, principal: Principal) -> Caller:
        """Who the caller is here: whose rooms are theirs, and which roles they have."""
        return Caller(user=principal.user_id, client=principal.client_id, roles=principal.roles)

    # Writing

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
        """Stores a JSON object at a key, replacing what was there; the answer does not echo the value.

        `namespace`, `key`: where; a namespace is a sequence of segments, or its spelling (`user:alice`).
        `value`: the object.
        `index`: by what it is to be found, kept in plain text: true for every text of the value, a list of
        dotted paths to some of them (`["title", "turns.said"]`), or texts of your own by field.
        `ttl_seconds`: how long it lives; for ever without.
        `expected_revision`: refuses with Conflict if what is there has another; 0 is nothing.
        `create_only`: refuses with Conflict if anything is there.
        `idempotency_key`: the same key with the same request is done once, and answered again for a day.
        `wait_for_index`: answers when the memory can be found by meaning, too, or says in `indexed` that it
        cannot yet.
        """
        put = Put(namespace, key, value, index, ttl_seconds, expected_revision, create_only)
        return self._begin_one(principal, put, Entry, idempotency_key, wait_for_index=wait_for_index)

    @commits
    def put_record(self, principal: Principal, put: Put) -> PendingWrite[Entry]:
        """Stores what a record says."""
        return self._begin_one(principal, put, Entry)

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
        """Deletes what is at a key; nothing there is not an error.

        `namespace`, `key`: where.
        `expected_revision`: refuses with Conflict if what is there has another.
        `idempotency_key`: the same key with the same request is done once, and answered again for a day.
        """
        delete = Delete(namespace, key, expected_revision)
        return self._begin_one(principal, delete, Deletion, idempotency_key)

    @commits
    def touch(
        self, principal: Principal, namespace: NamespaceLike, key: Key, *, ttl_seconds: Seconds | None = None
    ) -> PendingWrite[Entry]:
        """Changes when a memory expires; no version, no event. NotFound where there is none.

        `namespace`, `key`: where. `ttl_seconds`: how long it lives from now on; for ever without.
        """
        touch = Touch(namespace, key, ttl_seconds)
        return self._begin_one(principal, touch, Entry)

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
        `idempotency_key`: the same key with the same request is done once, and answered again for a day.
        `after_cursor`: gets of more than 4 MiB in all end early; the same call with their cursor goes on.
        `wait_for_index`: answers when what was put can be found by meaning, too; each entry says in `indexed`
        whether it can.
        """
        parsed = validation.parse_operations(operations)
        request = Request(principal, parsed, idempotency_key, after_cursor, wait_for_index=wait_for_index)
        return self._begin(request)

    @commits
    def batch_in_session(
        self, principal: Principal, operations: Sequence[BatchOperation], places: SessionLocation
    ) -> PendingWrite[Page[OperationResult]]:
        """The same, and what it puts at a session's places goes into the session store, if there is one."""
        return self._begin(Request(principal, operations, places=places))

    def existing_memory(self, principal: Principal, put: ImportedPut) -> Memory | None:
        """What an import would replace; the policy is asked as for the import itself."""
        policy, settings = self._configuration.current()
        place = validation.parse_location(put.namespace, put.key, settings)
        value, index = (
            validation.encode_value(put.value, settings),
            validation.encode_index(put.index, settings, put.value),
        )
        policy.authorise_write(principal, place.namespace, put.key, value, index, "import")
        look = partial(self._engine.get, place.ns, place.key, now=self._clock())
        return row_decoding.retry_if_wiped(lambda: (found := look()) and self._opener.memory(found))

    def record_import_reads(self, principal: Principal, namespaces: Sequence[Namespace]) -> None:
        """Records what an import found as it was: whoever imports a guess learns that it is right."""
        self._record_read(principal, "import", Namespace(), namespaces)

    def key_binding(self, user: str) -> KeyBinding:
        """What a `Deferred` put for a user is bound to; waits for no other write."""
        known = self._vault.known(user_subject(user))
        return (known.id, 0) if known else (None, self._engine.erasure.generation())

    def derive_key(self, purpose: str) -> bytes:
        """A secret of this store for one purpose, the same in every process that has it open."""
        return self._vault.derive_key(purpose)

    def now(self) -> datetime:
        """The moment, by the clock of the store."""
        return to_datetime(self._clock())

    def try_lock(self, namespace: Namespace) -> bool:
        """Whether something may go on that does so once at a time for a namespace, in all processes."""
        return self._engine.locks.try_acquire(namespace.encode("namespace"))

    def unlock(self, namespace: Namespace) -> None:
        """Lets the next take its turn."""
        self._engine.locks.release(namespace.encode("namespace"))

    def lasting_key_binding(self, user: str) -> KeyBinding:
        """The same for what takes long: makes the user's data key, so that a wipe of anybody else is none."""
        return self._vault.key(user_subject(user)).id, 0

    def refuse_wiped(self, user: str, since: KeyBinding) -> None:
        """Raises Unavailable if the user was wiped since `key_binding` returned `since`."""
        self._vault.forget(user_subject(user))  # another process may have wiped them
        if self.key_binding(user)[0] != since[0]:
            raise Unavailable("what is kept of this user was erased in the meantime; nothing was stored")

    # Living and dying

    def clear(self, principal: Principal, namespace: NamespaceLike) -> int:
        """Takes everything out of one namespace and leaves no trace of it: no history, no tombstones."""
        policy, settings = self._configuration.current()
        place = validation.parse_location(namespace, "*", settings)
        policy.authorise(principal, "delete", place.namespace, "*")
        removed = self._engine.erasure.clear_namespace(place.ns)
        self._erased(place.namespace.owner)
        return removed

    def erase(self, principal: Principal, namespace: NamespaceLike, key: str) -> bool:
        """Takes what is at a key away with every version, in restored backups too; whether it was there."""
        policy, settings = self._configuration.current()
        place = validation.parse_location(namespace, key, settings)
        policy.authorise(principal, "delete", place.namespace, key)
        erased = 0
        while row := self._engine.get(place.ns, place.key, now=self._clock()):  # somebody may write meanwhile
            erased += self.admin.cleaned(principal, row)
        return erased > 0

    def sweep(self) -> SweepResult:
        """Records what has expired, drops what retention no longer keeps, finishes scrubs."""
        now, engine, batch = self._clock(), self._engine, _SWEEP_BATCH
        settings = self._configuration.current().settings
        expired = _until_none_left(lambda: engine.expire(now=now, limit=batch))
        aged = 0
        for root, days in settings.retention_max_age.items():
            oldest, (low, high) = max(-MAX_INT64, now - int(days * DAY)), Namespace((root,)).subtree()
            # Each step looks through the whole root again, so it may take more at a time.
            step = partial(engine.expire_older, low, high, than=oldest, limit=10 * batch)
            aged += _until_none_left(step)
        kept_from = max(0, now - int(settings.retention_days * DAY))
        purged = _until_none_left(lambda: engine.purge(before=kept_from, limit=batch))
        self._fields.keep_up(engine.erasure.count())
        engine.purge_stored_answers(before=now - DAY)
        self._audit.purge(now=now, days=settings.audit_days)
        self._audit.flush()
        self.admin.scrub()
        if expired or aged or purged:
            log.info("sweep: %d expired, %d past their age, %d old versions removed", expired, aged, purged)
        return SweepResult(expired=expired, aged=aged, purged=purged)

    def readiness(self) -> dict[str, Callable[[], object]]:
        """What must work for any call to work, by name; each raises if it does not."""
        checks: dict[str, Callable[[], object]] = {
            "engine": self._check_engine, "keys": self._vault.check, "policy": self._check_policy
        }  # fmt: skip
        return checks | ({"session_store": self._sessions.check} if self._sessions else {})

    def take_request(self, principal: Principal, per_second: float) -> bool | None:
        """Takes one request of a principal from what all nodes share; None where nothing is shared now."""
        return self._sessions.take_request(principal, per_second) if self._sessions else None

    def _check_engine(self) -> str | None:
        self._engine.horizon()
        return self._engine.index.problem

    def versions(self) -> dict[str, int]:
        """Of the policies and the settings that were put, which this process goes by."""
        return self._configuration.versions

    def _check_policy(self) -> None:
        self._configuration.current().policy.check()

    def close(self) -> None:
        """Closes the store; nothing acknowledged is lost, with or without it."""
        if self._indexer:
            self._indexer.stop()
        with contextlib.suppress(AlcoveError):
            self._audit.close()
        if self._sessions:
            self._sessions.close()
        self._engine.close()


def _until_none_left(step: Callable[[], int]) -> int:
    """Repeats a bounded step, so that writers get their turn between two of them; what it did in all."""
    done = 0
    while count := step():
        done += count
    return done
