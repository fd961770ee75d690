"""The reading half of the one road: what a principal may see, opened for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args

from alcove.core import cursor
from alcove.core.clock import Clock, checked_moment, to_datetime
from alcove.core.cursor import MOST_BYTES, Portion, portion
from alcove.core.errors import InvalidRequest, KeyDestroyed, PermissionDenied
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import (
    KINDS,
    Entry,
    EventPage,
    FoundMemories,
    Kind,
    Memory,
    Mode,
    Version,
)
from alcove.core.settings import Settings
from alcove.engine.base import Engine
from alcove.engine.rows import FOR_EVER, Row, Scope
from alcove.store import decoding, validation
from alcove.store.configuration import Standing
from alcove.store.filters import Filter

if TYPE_CHECKING:
    from alcove.search.searcher import Searcher

T = TypeVar("T")

Address = Sequence[str] | str
"""A namespace as a caller may give it: its segments, or their spelling."""
Moment = datetime | str
"""A time as a caller may give it: an aware datetime, or RFC 3339 text."""

View = Callable[[], Scope]
"""What somebody was let see when it began; raises once they may no longer see just that."""

List: TypeAlias = list  # inside the class, `list` is the method

MODES = get_args(Mode)
_MOST_OFFSET = 10**9
_EXPORT_PAGE = 200
_ALIKE = 16
"""Namespaces after which it is cheaper to look for the next that differs than to read on."""


class Reading:
    """Reads for every principal; each call says who asks. `service.Memories` adds the writing."""

    _engine: Engine
    _standing: Standing
    _make_recall: Callable[[], Searcher]
    _opener: decoding.Opener
    _clock: Clock

    @cached_property
    def _recall(self) -> Searcher:
        """Made by the first search: it brings numpy along."""
        return self._make_recall()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._standing.current().settings

    def get(
        self, principal: Principal, namespace: Address, key: str, *, as_of: Moment | None = None
    ) -> Memory | None:
        """The memory at a key, or None; at a past moment with `as_of`."""
        return self.locate(principal, namespace, key, as_of=as_of)[1]()

    def locate(
        self, principal: Principal, namespace: Address, key: str, *, as_of: Moment | None = None
    ) -> tuple[int, Callable[[], Memory | None]]:
        """How many bytes lie at a key, and what opens them: that takes the longer the more they are."""
        policy, settings = self._standing.current()
        place = validation.address(namespace, key, settings)
        at = checked_moment(as_of, "as_of")
        policy.authorise(principal, "read", place.namespace, key)
        row = self._row(place, at)

        def opened() -> Memory | None:
            try:
                return self._opener.memory(row) if row else None
            except KeyDestroyed:
                return decoding.undisturbed(partial(self._read, place, at))

        return row.size if row else 0, opened

    def _read(self, place: validation.Address, at: int | None) -> Memory | None:
        row = self._row(place, at)
        return self._opener.memory(row) if row else None

    def _row(self, place: validation.Address, at: int | None) -> Row | None:
        row = self._engine.get(place.ns, place.key, now=self._clock(), at=at)
        self._refuse_forgotten(at)
        return row

    def history(
        self, principal: Principal, namespace: Address, key: str, *, after_cursor: str | None = None
    ) -> Portion[Version]:
        """Every retained version of one key, newest first."""
        policy, settings = self._standing.current()
        place = validation.address(namespace, key, settings)
        below = FOR_EVER if after_cursor is None else cursor.decode(after_cursor)
        policy.authorise(principal, "read", place.namespace, key)

        def read() -> Portion[Version]:
            found, more = portion(self._engine.history(place.ns, place.key, below=below), FOR_EVER)
            versions = Portion(map(self._opener.version, found))
            versions.after_cursor = cursor.encode(found[-1].revision) if more else None
            return versions

        return decoding.undisturbed(read)

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
        exact: bool = False,
    ) -> FoundMemories:
        """Memories below a prefix that fit a filter: the best for a query, or by namespace and key.

        With `exact`, only what lies in the namespace itself.
        """
        limit = validation.whole(limit, "limit", 1, 100)
        if query is None:
            find = partial(self._matching, principal, namespace_prefix, filter, offset, as_of, exact)

            def find_first() -> FoundMemories:
                matching, more = find(lambda every: portion(every, limit))
                found = FoundMemories(map(self._opener.memory, matching))
                found.next_offset = offset + len(found) if more and len(found) < limit else None
                return found

            return decoding.undisturbed(find_first)
        if mode not in MODES:
            raise InvalidRequest("mode", f"one of {', '.join(MODES)}")
        validation.query(query)
        offset = validation.whole(offset, "offset", 0, _MOST_OFFSET)
        at = checked_moment(as_of, "as_of")
        prefix = Namespace.checked(namespace_prefix, "namespace_prefix")
        scope = self._scope(principal, prefix, filter, exact=exact)
        how: dict[str, Any] = {"mode": mode, "limit": limit, "offset": offset, "explain": explain}

        def find_best() -> FoundMemories:
            if at is None:
                best = self._recall.search(scope, query, fits=partial(self._fits, scope.filter), **how)
            else:
                best = self._recall.search_past(scope, self._scanned(scope, at), query, at=at, **how)
                self._refuse_forgotten(at)
            found = FoundMemories(self._opener.hit(row, hit) for row, hit in best.hits)
            found.degraded, found.next_offset = best.degraded, best.next_offset
            return found

        return decoding.undisturbed(find_best)

    def list(
        self,
        principal: Principal,
        namespace_prefix: Address = (),
        *,
        filter: Mapping[str, object] | None = None,
        limit: int = 100,
        offset: int = 0,
        as_of: Moment | None = None,
        exact: bool = False,
    ) -> List[Entry]:
        """The same as `search`, without opening the values."""
        limit = validation.whole(limit, "limit", 1, 1000)
        find = partial(self._matching, principal, namespace_prefix, filter, offset, as_of, exact)
        return decoding.undisturbed(lambda: find(lambda every: [*map(decoding.entry, islice(every, limit))]))

    def _matching(
        self,
        principal: Principal,
        prefix: Address,
        filter: Mapping[str, object] | None,
        offset: int,
        as_of: Moment | None,
        exact: bool,
        taken: Callable[[Iterator[Row]], T],
    ) -> T:
        """What is taken of the rows that fit a filter, read one by one after the first so many."""
        offset = validation.whole(offset, "offset", 0, _MOST_OFFSET)
        at = checked_moment(as_of, "as_of")
        scope = self._scope(principal, Namespace.checked(prefix, "namespace_prefix"), filter, exact=exact)
        matching = taken(islice(self._scanned(scope, at), offset, None))
        self._refuse_forgotten(at)
        return matching

    def _scanned(self, scope: Scope, at: int | None) -> Iterator[Row]:
        """Everything in a scope, in order; a field that only the value has is decided here and not in SQL."""
        found = self._engine.scan(scope, now=self._clock(), at=at)
        return (row for row in found if self._fits(scope.filter, row)) if scope.filter.conditions else found

    def _fits(self, filter: Filter, row: Row) -> bool:
        return filter.matches(decoding.attributes(row), decoding.index(row), lambda: self._opener.value(row))

    def namespaces(
        self,
        principal: Principal,
        prefix: Address = (),
        *,
        suffix: Address = (),
        max_depth: int | None = None,
        limit: int | None = None,
        offset: int = 0,
        owner: str | None = None,
    ) -> List[Namespace]:
        """The distinct namespaces with something live in them, cut to a depth, sorted.

        With an owner, only those that belong to this user, at the cost of those.
        """
        ending = Namespace.checked(suffix, "suffix")
        depth = None if max_depth is None else validation.whole(max_depth, "max_depth", 1, 2**31)
        offset = validation.whole(offset, "offset", 0, _MOST_OFFSET)
        stop = None if limit is None else offset + validation.whole(limit, "limit", 1, _MOST_OFFSET)
        scope = self._scope(principal, Namespace.checked(prefix, "prefix"), None)
        found = self._below(scope, None if ending else depth, owner)
        cut = (Namespace(ns[:depth]) for ns in found if ns[len(ns) - len(ending) :] == ending)
        return [*islice((ns for ns, _ in groupby(cut)), offset, stop)]

    def _below(self, scope: Scope, depth: int | None, owner: str | None) -> Iterator[Namespace]:
        """The namespaces of a scope; of many that are alike down to a depth, the rest is passed over."""
        found, last, alike = self._engine.namespaces(scope, now=self._clock(), owner=owner), None, 0
        while (encoded := next(found, None)) is not None:
            yield (ns := Namespace.decode(encoded))
            alike, last = (alike + 1 if ns[:depth] == last else 0), ns[:depth]
            if depth and alike == _ALIKE:
                scope = replace(scope, low=Namespace(last).subtree()[1])
                found = self._engine.namespaces(scope, now=self._clock(), owner=owner)

    def export(
        self, principal: Principal, prefix: Address = (), *, exact: bool = False, unowned: bool = False
    ) -> Iterator[Memory]:
        """Every memory below a prefix that the caller may see, page by page, so that nothing is held up.

        What is written meanwhile may or may not be among them; what is not written meanwhile is, once.
        With `unowned`, only rooms that are nobody's.
        """
        return self.seen(self.view(lambda: principal, prefix, exact=exact, unowned=unowned))

    def view(
        self,
        who: Callable[[], Principal],
        prefix: Address,
        *,
        exact: bool = False,
        unowned: bool = False,
    ) -> View:
        """What a caller may see below a prefix, as it is now: the view raises once that is otherwise."""
        below = Namespace.checked(prefix, "prefix")

        def scope() -> Scope:
            return replace(self._scope(who(), below, None, exact=exact), unowned=unowned)

        begun = scope()

        def view() -> Scope:
            if scope() != begun:
                raise PermissionDenied("what this caller may see has changed since this was opened")
            return begun

        return view

    def seen(self, view: View) -> Iterator[Memory]:
        """Everything in a view, which is looked through anew before each page."""
        after = None
        while page := self._engine.scan_page(view(), after=after, now=self._clock(), limit=_EXPORT_PAGE):
            for row in page:
                with contextlib.suppress(KeyDestroyed):  # wiped since the page was read
                    yield self._opener.memory(row)
            after = page[-1].ns, page[-1].key

    def count(self, principal: Principal, prefix: Address = (), *, exact: bool = False) -> int:
        """How many memories below a prefix the caller may see."""
        scope = self._scope(principal, Namespace.checked(prefix, "prefix"), None, exact=exact)
        return self._engine.count(scope, now=self._clock())

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
        most_bytes: int = MOST_BYTES,
    ) -> EventPage:
        """A page of the timeline below a prefix, oldest first, and the cursor to go on from."""
        chosen = KINDS if kinds is None else kinds
        if not isinstance(chosen, List | tuple) or not chosen or not all(k in KINDS for k in chosen):
            raise InvalidRequest("kinds", f"a list of some of {', '.join(KINDS)}")
        position = 0 if after_cursor is None else cursor.decode(after_cursor)
        scope = self._scope(principal, Namespace.checked(prefix, "prefix"), None)
        since, until = checked_moment(after, "after"), checked_moment(before, "before")
        limit = validation.whole(limit, "limit", 1, 200)

        def read() -> EventPage:
            found, more = self._engine.events(
                scope,
                position=position,
                kinds=chosen,
                between=(since, until),
                limit=limit,
                most=most_bytes,
            )
            earliest, purged = self._engine.horizon()
            return EventPage(
                events=[self._opener.event(row) for row in found],
                after_cursor=cursor.encode(found[-1].seq if found else position),
                truncated_before=to_datetime(earliest) if after_cursor and position < purged else None,
                more=more,
            )

        return decoding.undisturbed(read)

    def _scope(
        self,
        principal: Principal,
        prefix: Namespace,
        filter: Mapping[str, object] | None,
        *,
        exact: bool = False,
    ) -> Scope:
        """What the caller asked for, inside what the policy lets them see."""
        wanted = Filter.parse(filter)
        narrowed = self._standing.current().policy.narrow(principal, prefix, filter)
        low, high = narrowed.prefix.alone() if exact else narrowed.prefix.subtree()
        return Scope(low, high, policy=narrowed.conditions, owner=narrowed.owner, filter=wanted,
                     written_by=narrowed.written_by)  # fmt: skip

    def _refuse_forgotten(self, at: int | None) -> None:
        """Asked after reading: what retention removed meanwhile must not look as if it never was."""
        if at is not None and at < (earliest := self._engine.horizon()[0]):
            raise InvalidRequest("as_of", f"a moment not before the earliest kept, {to_datetime(earliest)}")
