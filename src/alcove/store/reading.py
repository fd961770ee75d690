"""The reading half of the one road: what a principal may see, opened for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from typing import Annotated, TypeAlias, TypeVar

from msgspec import Meta

from alcove.core import cursor, validation
from alcove.core.clock import parse_moment
from alcove.core.cursor import Page, take_page
from alcove.core.errors import AlcoveError, KeyDestroyed, PermissionDenied
from alcove.core.filters import Filter
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import (
    AfterCursor,
    Key,
    Memory,
    NamespaceLike,
    Offset,
    TimeLike,
    Version,
)
from alcove.core.settings import Settings
from alcove.core.threads import before_long_work
from alcove.engine.rows import MAX_INT64, Row, Scope
from alcove.policy.rego import Narrowed
from alcove.store import row_decoding
from alcove.store.finding import MOST_OFFSET, Finding
from alcove.store.session_cache import CachedReader, MemoryReader, SessionLocation

T = TypeVar("T")

View = Callable[[], Scope]
"""What somebody was let see when it began; raises once they may no longer see just that."""

List: TypeAlias = list  # inside the class, `list` is the method

_FIRST_PAGE, _EXPORT_PAGE = 25, 200
"""Many who begin to read want a few."""
SMALL_BYTES = 16 * 1024
"""What can be opened and told in less time than it takes to hand it to another thread."""
_ALIKE = 16
"""Namespaces after which it is cheaper to look for the next that differs than to read on."""


class Reading(Finding):
    """Reads for every principal; each call says who asks. `memories.Memories` adds the writing."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._configuration.current().settings

    def get(
        self, principal: Principal, namespace: NamespaceLike, key: Key, *, as_of: TimeLike | None = None
    ) -> Memory | None:
        """The memory at a key, or None.

        `namespace`, `key`: where. `as_of`: a past moment, of which to tell what was there.
        """
        if self._engine.is_remote:
            before_long_work()
        row = self._row(principal, namespace, key, as_of)
        if row is not None and len(row.sealed or b"") + len(row.index_text or "") > SMALL_BYTES:
            before_long_work()
        try:
            memory = row and self._opener.memory(row)
        except KeyDestroyed:  # wiped since it was read
            before_long_work()
            find = partial(self._row, principal, namespace, key, as_of)
            memory = row_decoding.retry_if_wiped(lambda: (found := find()) and self._opener.memory(found))
        if memory is not None and memory.namespace.owner != principal.user_id:
            self._record_read(principal, "get", memory.namespace, (memory.namespace,))
        return memory

    def _row(
        self, principal: Principal, namespace: NamespaceLike, key: str, as_of: TimeLike | None
    ) -> Row | None:
        """What is or was at a key, if the policy of that moment lets it be read.

        One statement asks for what is there and for the version of the configuration; where that has moved,
        it is decided anew.
        """
        if as_of is not None:
            return self._past(principal, namespace, key, as_of)
        while True:
            version, (policy, settings) = self._configuration.loaded
            try:
                place = validation.parse_location(namespace, key, settings)
                policy.authorise(principal, "read", place.namespace, key)
            except AlcoveError:
                if self._configuration.is_newest(version):
                    raise
                continue
            newest, row = self._engine.read(place.ns, place.key, now=self._clock())
            if newest == version:
                return row
            self._configuration.current()

    def _past(self, principal: Principal, namespace: NamespaceLike, key: str, as_of: TimeLike) -> Row | None:
        policy, settings = self._configuration.current()
        place, at = validation.parse_location(namespace, key, settings), parse_moment(as_of, "as_of")
        policy.authorise(principal, "read", place.namespace, key)
        row = self._engine.get(place.ns, place.key, now=self._clock(), as_of=at)
        self._refuse_forgotten(at)
        return row

    def history(
        self,
        principal: Principal,
        namespace: NamespaceLike,
        key: Key,
        *,
        after_cursor: AfterCursor | None = None,
    ) -> Page[Version]:
        """Every retained version of one key, newest first; at most 4 MiB at once.

        `namespace`, `key`: where. `after_cursor`: where an earlier answer to the same call ended.
        """
        policy, settings = self._configuration.current()
        place = validation.parse_location(namespace, key, settings)
        below = MAX_INT64 if after_cursor is None else cursor.decode(after_cursor)
        policy.authorise(principal, "read", place.namespace, key)

        def read() -> Page[Version]:
            found, more = take_page(self._engine.history(place.ns, place.key, below=below), MAX_INT64)
            versions = Page(map(self._opener.version, found))
            versions.after_cursor = cursor.encode(found[-1].revision) if more else None
            return versions

        versions = row_decoding.retry_if_wiped(read)
        shown = (each.namespace for each in versions)
        self._record_read(principal, "history", place.namespace, shown)
        return versions

    def namespaces(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        suffix: NamespaceLike = (),
        max_depth: Annotated[int, Meta(ge=1)] | None = None,
        limit: Annotated[int, Meta(ge=1)] | None = None,
        offset: Offset = 0,
    ) -> List[Namespace]:
        """The distinct namespaces that hold something live, sorted.

        `prefix`, `suffix`: what they begin and end with. `max_depth`: how many segments to cut them to.
        `limit`, `offset`: how many, after how many.
        """
        return self.namespaces_of(
            principal, prefix, None, suffix=suffix, max_depth=max_depth, limit=limit, offset=offset
        )

    def namespaces_of(
        self,
        principal: Principal,
        prefix: NamespaceLike,
        owner: str | None,
        *,
        suffix: NamespaceLike = (),
        max_depth: int | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> List[Namespace]:
        """The same; with an owner, only those that belong to this user, at the cost of those."""
        ending = Namespace.checked(suffix, "suffix")
        depth = None if max_depth is None else validation.check_integer(max_depth, "max_depth", 1, 2**31)
        offset = validation.check_integer(offset, "offset", 0, MOST_OFFSET)
        stop = None if limit is None else offset + validation.check_integer(limit, "limit", 1, MOST_OFFSET)
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

    def export(self, principal: Principal, prefix: NamespaceLike = ()) -> Iterator[Memory]:
        """Every memory below a prefix that the caller may see, page by page, so that nothing is held up.

        What is written meanwhile may or may not be among them; what is not written meanwhile is, once.
        `prefix`: where; everywhere the caller may look, without.
        """
        return self.scan(principal, prefix)

    def scan(
        self,
        principal: Principal,
        prefix: NamespaceLike,
        *,
        exact: bool = False,
        after: str | None = None,
    ) -> Iterator[Memory]:
        """The same; `exact` without what lies below.

        `after`: only what comes after this key of the namespace itself.
        """
        view = self.view(lambda: principal, prefix, exact=exact)
        below = Namespace.checked(prefix)
        start = None if after is None else (below.encode(), validation.encode_text(after, "after"))
        return self.read_view(principal, below, view, start)

    def view(self, who: Callable[[], Principal], prefix: NamespaceLike, *, exact: bool = False) -> View:
        """What a caller may see below a prefix, as it is now: the view raises once that is otherwise."""
        below = Namespace.checked(prefix, "prefix")

        def scope() -> Scope:
            return self._scope(who(), below, None, exact=exact)

        begun = scope()

        def view() -> Scope:
            if scope() != begun:
                raise PermissionDenied("what this caller may see has changed since this was opened")
            return begun

        return view

    def read_view(
        self, principal: Principal, prefix: Namespace, view: View, after: tuple[bytes, bytes] | None = None
    ) -> Iterator[Memory]:
        """Everything in a view, which is looked through anew before each page; `after`: behind this place.

        `principal`, `prefix`: who asked for the view, and where they look.
        """
        limit = _FIRST_PAGE
        while page := self._engine.scan_page(view(), after=after, now=self._clock(), limit=limit):
            self._record_read(principal, "export", prefix, (Namespace.decode(row.ns) for row in page))
            yield from self._opener.still_there(page, self._opener.memory)
            after, limit = (page[-1].ns, page[-1].key), _EXPORT_PAGE

    def cached_reader(self, principal: Principal, places: SessionLocation) -> MemoryReader:
        """What to read the beginning of a context with: the session store's copy, if it has a say in it.

        It has none where the policy shows some of the messages only.
        """
        if self._sessions is None:
            return self
        version, (policy, _) = self._configuration.loaded
        try:
            narrowed = policy.narrow(principal, places.messages)
        except AlcoveError:
            return self  # which decides by the newest rules, and says why
        if narrowed not in _unnarrowed(places.messages):
            return self
        copies = self._sessions.look(places, version)
        return self if copies is None else CachedReader(self, self._opener, policy, places, copies)

    def count(self, principal: Principal, prefix: NamespaceLike = (), *, exact: bool = False) -> int:
        """How many memories below a prefix the caller may see."""
        scope = self._scope(principal, Namespace.checked(prefix, "prefix"), None, exact=exact)
        return self._engine.count(scope, now=self._clock())


def _unnarrowed(namespace: Namespace) -> List[Narrowed]:
    """What a policy says of who sees all of somebody's own namespace."""
    return [Narrowed(namespace, Filter(), owner) for owner in (namespace.owner, None)]
