"""Reads memories by their key, their history, and everything below a namespace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from typing import Annotated

from msgspec import Meta

from alcove.core import cursor, validation
from alcove.core.clock import parse_moment, to_datetime
from alcove.core.cursor import Page, take_page
from alcove.core.errors import AlcoveError, InvalidRequest, KeyDestroyed
from alcove.core.filters import Filter
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import (
    AfterCursor,
    ImportedPut,
    Key,
    Memory,
    NamespaceLike,
    Offset,
    TimeLike,
    Version,
)
from alcove.core.threads import before_long_work
from alcove.engine.engine import Engine
from alcove.engine.rows import MAX_INT64, Row, Scope
from alcove.policy.rego import ReadScope
from alcove.store.access import Access, View
from alcove.store.row_decoder import RowDecoder, retry_if_wiped
from alcove.store.session_cache import CachedReader, MemoryReader, SessionCache, SessionLocation

MAX_OFFSET = 10**9
_FIRST_PAGE, _EXPORT_PAGE = 25, 200
"""Memories that a scan reads at a time; the first page is small because many callers want only a few."""
SMALL_BYTES = 16 * 1024
"""A value up to this size is decrypted and encoded faster than it is handed to another thread."""
_MAX_ALIKE = 16
"""Namespaces with the same beginning after which seeking the next beginning is faster than reading on."""


class Reader:
    """Reads what a principal may see."""

    def __init__(
        self, engine: Engine, access: Access, decoder: RowDecoder, session_cache: SessionCache | None
    ) -> None:
        self._engine, self._access, self._decoder = engine, access, decoder
        self._session_cache = session_cache

    def get(
        self, principal: Principal, namespace: NamespaceLike, key: Key, *, as_of: TimeLike | None = None
    ) -> Memory | None:
        """The memory at a key, or None.

        `namespace`, `key`: its place. `as_of`: a moment in the past, to read what was there then.
        """
        if self._engine.is_remote:
            before_long_work()
        row = self._read_row(principal, namespace, key, as_of)
        if row is not None and len(row.sealed or b"") + len(row.index_text or "") > SMALL_BYTES:
            before_long_work()
        try:
            memory = row and self._decoder.memory(row)
        except KeyDestroyed:  # wiped since the row was read
            before_long_work()
            read = partial(self._read_row, principal, namespace, key, as_of)
            memory = retry_if_wiped(lambda: (row := read()) and self._decoder.memory(row))
        if memory is not None and memory.namespace.owner != principal.user_id:
            self._access.record_read(principal, "get", memory.namespace, (memory.namespace,))
        return memory

    def _read_row(
        self, principal: Principal, namespace: NamespaceLike, key: str, as_of: TimeLike | None
    ) -> Row | None:
        """The row at a key, if the policy allows reading it.

        One statement returns both the row and the version of the rules. If that is a newer version than the
        loaded one, the decision is made again.
        """
        if as_of is not None:
            location = validation.parse_location(namespace, key, self._access.current().settings)
            moment = parse_moment(as_of, "as_of")
            self._access.authorise(principal, "read", location.namespace, key)
            row = self._engine.get(location.ns, location.key, now=self._engine.clock(), as_of=moment)
            if moment is not None:
                check_retained(self._engine, moment)
            return row
        while True:
            version, (policy, settings) = self._access.loaded
            try:
                location = validation.parse_location(namespace, key, settings)
                policy.authorise(principal, "read", location.namespace, key)
            except AlcoveError as error:
                self._access.refuse(principal, error, version)
                continue
            newest, row = self._engine.read(location.ns, location.key, now=self._engine.clock())
            if newest == version:
                return row
            self._access.current()

    def get_replaced(self, principal: Principal, put: ImportedPut) -> Memory | None:
        """The memory that an import would replace, if the policy allows the import.

        Record the read with `Access.record_read`: the importer of a guess learns whether it is right.
        """
        policy, settings = self._access.current()
        namespace, ns, key = validation.parse_location(put.namespace, put.key, settings)
        value = validation.encode_value(put.value, settings)
        index = validation.encode_index(put.index, settings, put.value)
        with self._access.counting_denials(principal):
            policy.authorise_write(principal, namespace, put.key, value, index, "import")
        read = partial(self._engine.get, ns, key, now=self._engine.clock())
        return retry_if_wiped(lambda: (row := read()) and self._decoder.memory(row))

    def history(
        self,
        principal: Principal,
        namespace: NamespaceLike,
        key: Key,
        *,
        after_cursor: AfterCursor | None = None,
    ) -> Page[Version]:
        """Every retained version of one key, newest first; at most 4 MiB at once.

        `namespace`, `key`: its place. `after_cursor`: where an earlier answer to the same call ended.
        """
        location = validation.parse_location(namespace, key, self._access.current().settings)
        below = MAX_INT64 if after_cursor is None else cursor.decode(after_cursor)
        self._access.authorise(principal, "read", location.namespace, key)

        def read() -> Page[Version]:
            rows, more = take_page(self._engine.history(location.ns, location.key, below=below), MAX_INT64)
            versions = Page(map(self._decoder.version, rows))
            versions.after_cursor = cursor.encode(rows[-1].revision) if more else None
            return versions

        versions = retry_if_wiped(read)
        namespaces = (each.namespace for each in versions)
        self._access.record_read(principal, "history", location.namespace, namespaces)
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
    ) -> list[Namespace]:
        """The distinct namespaces that hold memories, sorted.

        `prefix`, `suffix`: only those that begin and end with these segments.
        `max_depth`: cuts namespaces to this many segments.
        `limit`, `offset`: at most how many, after how many.
        """
        ending = Namespace.checked(suffix, "suffix")
        depth = None if max_depth is None else validation.check_integer(max_depth, "max_depth", 1, 2**31)
        offset = validation.check_integer(offset, "offset", 0, MAX_OFFSET)
        stop = None if limit is None else offset + validation.check_integer(limit, "limit", 1, MAX_OFFSET)
        scope = self._access.scope(principal, prefix)
        namespaces = self._namespaces_in(scope, None if ending else depth)
        ancestors = (Namespace(ns[:depth]) for ns in namespaces if ns[len(ns) - len(ending) :] == ending)
        return [*islice((ns for ns, _ in groupby(ancestors)), offset, stop)]

    def namespaces_of(self, principal: Principal, prefix: NamespaceLike, owner: str) -> list[Namespace]:
        """The namespaces below a prefix that end with a user's own segments, `u:<owner>`; sorted.

        Its cost depends on the namespaces of this user only.
        """
        scope = self._access.scope(principal, prefix)
        encoded = self._engine.namespaces(scope, now=self._engine.clock(), owner=owner)
        return [ns for ns in map(Namespace.decode, encoded) if ns[-2:] == ("u", owner)]

    def _namespaces_in(self, scope: Scope, depth: int | None) -> Iterator[Namespace]:
        """The namespaces of a scope; skips most of those that are alike in their first `depth` segments."""
        encoded, last, alike = self._engine.namespaces(scope, now=self._engine.clock()), None, 0
        while (each := next(encoded, None)) is not None:
            yield (ns := Namespace.decode(each))
            alike, last = (alike + 1 if ns[:depth] == last else 0), ns[:depth]
            if depth and alike == _MAX_ALIKE:
                scope = replace(scope, low=Namespace(last).subtree()[1])
                encoded = self._engine.namespaces(scope, now=self._engine.clock())

    def count(self, principal: Principal, prefix: NamespaceLike = (), *, exact: bool = False) -> int:
        """How many memories below a prefix the caller may see."""
        scope = self._access.scope(principal, prefix, exact=exact)
        return self._engine.count(scope, now=self._engine.clock())

    def export(self, principal: Principal, prefix: NamespaceLike = ()) -> Iterator[Memory]:
        """Every memory below a prefix that the caller may see, read page by page.

        Memories that are written during the export may be missing; all others are in it once.
        `prefix`: where to look; by default everywhere you may.
        """
        return self.scan(principal, prefix)

    def scan(
        self, principal: Principal, prefix: NamespaceLike, *, exact: bool = False, after: str | None = None
    ) -> Iterator[Memory]:
        """Every memory below a prefix, or of the namespace alone if `exact`, in the order of their keys.

        `after`: only memories behind this key of the namespace itself.
        """
        view = self._access.view(lambda: principal, prefix, exact=exact)
        below = Namespace.checked(prefix)
        start = None if after is None else (below.encode(), validation.encode_text(after, "after"))
        return self.scan_view(principal, below, view, start)

    def scan_view(
        self, principal: Principal, prefix: Namespace, view: View, after: tuple[bytes, bytes] | None = None
    ) -> Iterator[Memory]:
        """Every memory of a view, which is checked again before each page.

        `principal`, `prefix`: those that the view was made for. `after`: a namespace and key to start behind.
        """
        limit = _FIRST_PAGE
        while page := self._engine.scan_page(view(), after=after, now=self._engine.clock(), limit=limit):
            self._access.record_read(principal, "export", prefix, (Namespace.decode(row.ns) for row in page))
            yield from self._decoder.existing(page, self._decoder.memory)
            after, limit = (page[-1].ns, page[-1].key), _EXPORT_PAGE

    def for_session(self, principal: Principal, location: SessionLocation) -> MemoryReader:
        """The reader for the beginning of a context: the session cache if it can answer, else this one.

        It cannot if the policy shows the caller only some of the messages.
        """
        if self._session_cache is None:
            return self
        version, (policy, _) = self._access.loaded
        try:
            narrowed = policy.narrow(principal, location.messages)
        except AlcoveError:
            return self  # decides by the newest rules, and raises the error
        if narrowed not in [
            ReadScope(location.messages, Filter(), owner) for owner in (location.messages.owner, None)
        ]:
            return self
        copies = self._session_cache.read(location, version)
        return self if copies is None else CachedReader(self, self._access, self._decoder, location, copies)


def check_retained(engine: Engine, moment: int) -> None:
    """Refuses a moment before the retained history; call it after reading, because retention goes on."""
    if moment < (earliest := engine.horizon()[0]):
        raise InvalidRequest(
            "as_of", f"a moment since {to_datetime(earliest)}, because older history was removed"
        )
