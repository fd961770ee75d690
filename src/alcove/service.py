"""The one road into the data.

Everything that reads or writes a memory comes through `Memories`, which does, in this order:
validate, authorise, derive attributes, seal, one transaction in the engine. No other module touches
an engine, so no other module can forget the policy.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar, get_args

from alcove import checks, cursor, rows
from alcove.admin import Admin
from alcove.audit import Audit
from alcove.clock import DAY, Clock, checked_moment, to_datetime
from alcove.engine.base import (
    DataKeyGone,
    DeleteRow,
    Engine,
    GetRow,
    Pending,
    PutRow,
    Row,
    RowOperation,
    Scope,
    TouchRow,
    Writer,
)
from alcove.errors import AlcoveError, InvalidRequest, KeyDestroyed, Unavailable
from alcove.filters import Filter
from alcove.namespace import Namespace
from alcove.principal import Principal
from alcove.records import (
    KINDS,
    Delete,
    Deletion,
    Entry,
    EventPage,
    Exported,
    Get,
    Imported,
    Kind,
    Memory,
    Operation,
    Put,
    Result,
    Swept,
    Touch,
    Version,
    new_id,
)
from alcove.records import Memories as Found
from alcove.replay import Replays
from alcove.search.indexer import Indexer
from alcove.search.ranking import Mode
from alcove.search.recall import Recall
from alcove.standing import InForce, Standing
from alcove.vault import Vault, subject_of, user_subject

log = logging.getLogger("alcove")
T = TypeVar("T")

Address = Sequence[str] | str
"""A namespace as a caller may give it: its segments, or their spelling."""
Moment = datetime | str
"""A time as a caller may give it: an aware datetime, or RFC 3339 text."""

List: TypeAlias = list  # inside the class, `list` is the method

MODES = get_args(Mode)
_SWEEP_BATCH = 500
_MOST_RESEALS = 10
_MOST_OFFSET = 10**9
_EXPORT_PAGE = 200


class Memories:
    """Memories of every principal; each call says who asks."""

    def __init__(
        self,
        *,
        engine: Engine,
        vault: Vault,
        standing: Standing,
        audit: Audit,
        admin: Admin,
        recall: Recall,
        indexer: Indexer | None,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._vault = vault
        self._standing = standing
        self._audit = audit
        self._clock = clock
        self.admin = admin
        self._recall = recall
        self._indexer = indexer
        self._opener = rows.Opener(vault)
        self._replays = Replays(vault)

    # Writing

    def put(
        self,
        principal: Principal,
        put: Put,
        *,
        idempotency_key: str | None = None,
        wait_for_index: bool = False,
    ) -> Entry:
        """Stores a value at a key, whatever was there, and answers without echoing it."""
        result = self._write_one(principal, put, idempotency_key)
        assert isinstance(result, Entry)
        if wait_for_index:
            self.wait_for_index(result)
        return result

    def wait_for_index(self, entry: Entry, seconds: float = 30.0) -> bool:
        """Waits until an entry that was just written can be found by meaning, if it ever can."""
        place = checks.address(entry.namespace, entry.key, self._standing.current().settings)
        row = self._engine.get(place.ns, place.key, now=self._clock())
        return row is not None and self._indexer is not None and self._indexer.wait(row.seq, seconds)

    def delete(self, principal: Principal, delete: Delete, *, idempotency_key: str | None = None) -> Deletion:
        """Deletes what is at a key; nothing there is not an error."""
        result = self._write_one(principal, delete, idempotency_key)
        assert isinstance(result, Deletion)
        return result

    def touch(self, principal: Principal, touch: Touch) -> Entry:
        """Changes when a memory expires, without a version or an event."""
        result = self._write_one(principal, touch, None)
        assert isinstance(result, Entry)
        return result

    def batch(
        self, principal: Principal, operations: Sequence[Operation], *, idempotency_key: str | None = None
    ) -> List[Result]:
        """Many operations in one transaction, which reads its own writes: all of them or none."""
        most = self._standing.current().settings.max_batch
        if len(operations) > most:
            raise InvalidRequest("operations", f"at most {most}, not {len(operations)}")
        return self._write(principal, operations, idempotency_key)

    def _write_one(self, principal: Principal, operation: Operation, idempotency_key: str | None) -> Result:
        try:
            return self._write(principal, [operation], idempotency_key)[0]
        except AlcoveError as error:
            error.details.pop("operation", None)
            raise

    def _write(
        self, principal: Principal, operations: Sequence[Operation], idempotency_key: str | None
    ) -> List[Result]:
        steps = self.write_steps(principal, operations, idempotency_key)
        while True:
            try:
                next(steps).wait()
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    def write_steps(
        self, principal: Principal, operations: Sequence[Operation], idempotency_key: str | None = None
    ) -> Generator[Pending, None, List[Result]]:
        """A write that leaves the waiting to its caller: each yielded commit has to be waited for.

        A thread blocks, an event loop awaits; the road is the same.
        """
        for _ in range(_MOST_RESEALS):
            standing = self._standing.current()
            prepared = [self._prepare(standing, principal, op, n) for n, op in enumerate(operations)]
            replay = self._replays.request(principal, operations, idempotency_key)
            pending = self._engine.submit(prepared, replay)
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
            return [self._result(op, row) for op, row in zip(operations, stored, strict=True)]
        raise Unavailable("this user is being wiped again and again; try later")

    def _prepare(
        self, standing: InForce, principal: Principal, operation: Operation, position: int
    ) -> RowOperation:
        """Validates, authorises and seals one operation; an error says which of a batch it is."""
        try:
            policy, settings = standing
            place = checks.address(operation.namespace, operation.key, settings)
            writer = Writer(principal.user_id, principal.client_id, principal.agent)
            match operation:
                case Put():
                    return self._prepare_put(standing, principal, operation, place, writer)
                case Get():
                    if not (isinstance(operation, Exported) and principal.is_admin):
                        policy.authorise(principal, "read", place.namespace, operation.key)
                    return GetRow(place.ns, place.key)
                case Delete():
                    expected = checks.revision(operation.expected_revision)
                    policy.authorise(principal, "delete", place.namespace, operation.key)
                    return DeleteRow(place.ns, place.key, writer, expected)
                case Touch():
                    ttl = checks.ttl(operation.ttl_seconds)
                    policy.authorise_write(principal, place.namespace, operation.key, b"null", None)
                    return TouchRow(place.ns, place.key, ttl)
                case _:
                    raise InvalidRequest("op", "put, get, delete or touch")
        except AlcoveError as error:
            error.details["operation"] = position
            raise

    def _prepare_put(
        self, standing: InForce, principal: Principal, put: Put, place: checks.Address, writer: Writer
    ) -> PutRow:
        policy, settings = standing
        value = checks.value(put.value, settings)
        index = checks.index(put.index, settings)
        ttl = checks.ttl(put.ttl_seconds)
        expected = checks.revision(put.expected_revision, create_only=put.create_only)
        if not (isinstance(put, Imported) and principal.is_admin):  # an admin may move what they may see
            policy.authorise_write(principal, place.namespace, put.key, value, index)
        attributes = policy.attributes(principal, place.namespace, put.key, value, index)
        id, owner = new_id(), place.namespace.owner
        data_key = self._vault.key(subject_of(place.namespace))
        sealed = data_key.seal(value, rows.bound_to(id, place.ns, place.key))
        index_text = index.decode() if index else None
        until = None
        if isinstance(put, Imported):
            until = checked_moment(put.expires_at, "expires_at")
            if put.written_by and principal.is_admin:
                writer = Writer(put.written_by.user, put.written_by.client, put.written_by.agent)
        return PutRow(id, place.ns, place.key, owner, writer, data_key.id, sealed, attributes.decode(),
                      index_text, ttl, expected, until)  # fmt: skip

    def _result(self, operation: Operation, row: Row | None) -> Result:
        match operation:
            case Delete():
                return rows.deletion(Namespace.checked(operation.namespace), operation.key, row)
            case Get():
                with contextlib.suppress(KeyDestroyed):  # wiped since the commit
                    return self._opener.memory(row) if row else None
                return None
            case _:
                assert row is not None
                return rows.entry(row)

    # Reading

    def get(
        self, principal: Principal, namespace: Address, key: str, *, as_of: Moment | None = None
    ) -> Memory | None:
        """The memory at a key, or None; at a past moment with `as_of`."""
        policy, settings = self._standing.current()
        place = checks.address(namespace, key, settings)
        at = checked_moment(as_of, "as_of")
        policy.authorise(principal, "read", place.namespace, key)
        try:
            return self._read(place, at)
        except KeyDestroyed:
            return rows.undisturbed(partial(self._read, place, at))

    def _read(self, place: checks.Address, at: int | None) -> Memory | None:
        row = self._engine.get(place.ns, place.key, now=self._clock(), at=at)
        self._refuse_forgotten(at)
        return self._opener.memory(row) if row else None

    def history(self, principal: Principal, namespace: Address, key: str) -> List[Version]:
        """Every retained version of one key, newest first."""
        policy, settings = self._standing.current()
        place = checks.address(namespace, key, settings)
        policy.authorise(principal, "read", place.namespace, key)
        return rows.undisturbed(
            lambda: [self._opener.version(row) for row in self._engine.history(place.ns, place.key)]
        )

    def search(
        self,
        principal: Principal,
        namespace_prefix: Address = (),
        *,
        query: str | None = None,
        mode: Mode = "hybrid",
        filter: Mapping[str, object] | None = None,
        limit: int = 10,
        offset: int = 0,
        as_of: Moment | None = None,
        explain: bool = False,
    ) -> Found:
        """Memories below a prefix that fit a filter: the best for a query, or by namespace and key."""
        limit = checks.whole(limit, "limit", 1, 100)
        if query is None:
            find = partial(self._matching, principal, namespace_prefix, filter, limit, offset, as_of)
            return Found(rows.undisturbed(lambda: [self._opener.memory(row) for row in find()]))
        if mode not in MODES:
            raise InvalidRequest("mode", f"one of {', '.join(MODES)}")
        if not checks.text(query, "query").strip():
            raise InvalidRequest("query", "something to look for")
        offset = checks.whole(offset, "offset", 0, _MOST_OFFSET)
        at = checked_moment(as_of, "as_of")
        scope = self._scope(principal, Namespace.checked(namespace_prefix, "namespace_prefix"), filter)
        how: dict[str, Any] = {"mode": mode, "limit": limit, "offset": offset, "explain": explain}

        def find_best() -> Found:
            if at is None:
                best = self._recall.search(scope, query, fits=partial(self._fits, scope.filter), **how)
            else:
                then = [*self._scanned(scope, at)]
                self._refuse_forgotten(at)
                best = self._recall.search_past(scope, then, query, **how)
            found = Found(self._opener.hit(row, hit) for row, hit in best.hits)
            found.degraded = best.degraded
            return found

        return rows.undisturbed(find_best)

    def list(
        self,
        principal: Principal,
        namespace_prefix: Address = (),
        *,
        filter: Mapping[str, object] | None = None,
        limit: int = 100,
        offset: int = 0,
        as_of: Moment | None = None,
    ) -> List[Entry]:
        """The same as `search`, without opening the values."""
        limit = checks.whole(limit, "limit", 1, 1000)
        find = partial(self._matching, principal, namespace_prefix, filter, limit, offset, as_of)
        return [rows.entry(row) for row in rows.undisturbed(find)]

    def _matching(
        self,
        principal: Principal,
        prefix: Address,
        filter: Mapping[str, object] | None,
        limit: int,
        offset: int,
        as_of: Moment | None,
    ) -> List[Row]:
        offset = checks.whole(offset, "offset", 0, _MOST_OFFSET)
        at = checked_moment(as_of, "as_of")
        scope = self._scope(principal, Namespace.checked(prefix, "namespace_prefix"), filter)
        matching = [*islice(self._scanned(scope, at), offset, offset + limit)]
        self._refuse_forgotten(at)
        return matching

    def _scanned(self, scope: Scope, at: int | None) -> Iterator[Row]:
        """Everything in a scope, in order; a field that only the value has is decided here and not in SQL."""
        found = self._engine.scan(scope, now=self._clock(), at=at)
        return (row for row in found if self._fits(scope.filter, row)) if scope.filter.conditions else found

    def _fits(self, filter: Filter, row: Row) -> bool:
        return filter.matches(rows.attributes(row), rows.index(row), lambda: self._opener.value(row))

    def namespaces(
        self,
        principal: Principal,
        prefix: Address = (),
        *,
        suffix: Address = (),
        max_depth: int | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> List[Namespace]:
        """The distinct namespaces with something live in them, cut to a depth, sorted."""
        ending = Namespace.checked(suffix, "suffix")
        depth = None if max_depth is None else checks.whole(max_depth, "max_depth", 1, 2**31)
        offset = checks.whole(offset, "offset", 0, _MOST_OFFSET)
        stop = None if limit is None else offset + checks.whole(limit, "limit", 1, _MOST_OFFSET)
        scope = self._scope(principal, Namespace.checked(prefix, "prefix"), None)
        found = map(Namespace.decode, self._engine.namespaces(scope, now=self._clock()))
        cut = (Namespace(ns[:depth]) for ns in found if ns[len(ns) - len(ending) :] == ending)
        return [*islice(dict.fromkeys(cut), offset, stop)]

    def export(self, principal: Principal, prefix: Address = ()) -> Iterator[Memory]:
        """Every memory below a prefix that the caller may see, page by page, so that nothing is held up.

        What is written meanwhile may or may not be among them; what is not written meanwhile is, once.
        """
        scope = self._scope(principal, Namespace.checked(prefix, "prefix"), None)
        return self._pages(scope)

    def _pages(self, scope: Scope) -> Iterator[Memory]:
        after = None
        while page := self._engine.scan_page(scope, after=after, now=self._clock(), limit=_EXPORT_PAGE):
            for row in page:
                with contextlib.suppress(KeyDestroyed):  # wiped since the page was read
                    yield self._opener.memory(row)
            after = page[-1].ns, page[-1].key

    def last_event(self) -> int:
        """The position of the newest event, whoever may see it."""
        return self._engine.last_seq()

    def end_of_events(self) -> str:
        """The cursor after everything that has happened."""
        return cursor.encode(self.last_event())

    def events(
        self,
        principal: Principal,
        prefix: Address = (),
        *,
        kinds: Sequence[Kind] | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        after_cursor: str | None = None,
        limit: int = 50,
    ) -> EventPage:
        """A page of the timeline below a prefix, oldest first, and the cursor to go on from."""
        chosen = KINDS if kinds is None else kinds
        if not isinstance(chosen, List | tuple) or not chosen or not all(k in KINDS for k in chosen):
            raise InvalidRequest("kinds", f"a list of some of {', '.join(KINDS)}")
        position = 0 if after_cursor is None else cursor.decode(after_cursor)
        scope = self._scope(principal, Namespace.checked(prefix, "prefix"), None)
        since, until = checked_moment(after, "after"), checked_moment(before, "before")
        limit = checks.whole(limit, "limit", 1, 200)

        def read() -> EventPage:
            found = self._engine.events(
                scope, position=position, kinds=chosen, after=since, before=until, limit=limit
            )
            earliest, purged = self._engine.horizon()
            return EventPage(
                events=[self._opener.event(row) for row in found],
                after_cursor=cursor.encode(found[-1].seq if found else position),
                truncated_before=to_datetime(earliest) if after_cursor and position < purged else None,
            )

        return rows.undisturbed(read)

    def _scope(self, principal: Principal, prefix: Namespace, filter: Mapping[str, object] | None) -> Scope:
        """What the caller asked for, inside what the policy lets them see."""
        wanted = Filter.parse(filter)
        narrowed = self._standing.current().policy.narrow(principal, prefix, filter)
        low, high = narrowed.prefix.subtree()
        return Scope(low, high, policy=narrowed.conditions, owner=narrowed.owner, filter=wanted)

    def _refuse_forgotten(self, at: int | None) -> None:
        """Asked after reading: what retention removed meanwhile must not look as if it never was."""
        if at is not None and at < (earliest := self._engine.horizon()[0]):
            raise InvalidRequest("as_of", f"a moment not before the earliest kept, {to_datetime(earliest)}")

    # Living and dying

    def sweep(self) -> Swept:
        """Records what has expired, drops what retention no longer keeps, finishes scrubs."""
        now, engine, batch = self._clock(), self._engine, _SWEEP_BATCH
        settings = self._standing.current().settings
        expired = _until_none_left(lambda: engine.expire(now=now, limit=batch))
        aged = 0
        for root, days in settings.retention_max_age.items():
            oldest, (low, high) = max(0, now - int(days * DAY)), Namespace((root,)).subtree()
            # Each step looks through the whole root again, so it may take more at a time.
            step = partial(engine.expire_older, low, high, than=oldest, limit=10 * batch)
            aged += _until_none_left(step)
        kept_from = max(0, now - int(settings.retention_days * DAY))
        purged = _until_none_left(lambda: engine.purge(before=kept_from, limit=batch))
        engine.purge_replays(before=now - DAY)
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
            "policy": self._standing.current().policy.check,
        }

    def close(self) -> None:
        """Closes the store; nothing acknowledged is lost, with or without it."""
        if self._indexer:
            self._indexer.stop()
        with contextlib.suppress(AlcoveError):
            self._audit.flush()
        self._engine.close()


def _until_none_left(step: Callable[[], int]) -> int:
    """Repeats a bounded step, so that writers get their turn between two of them; what it did in all."""
    done = 0
    while count := step():
        done += count
    return done
