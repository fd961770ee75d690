"""Finding memories: below a prefix, by a filter, by meaning and words, now or at a past moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import dropwhile, islice
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias, Unpack, get_args

from msgspec import Meta

from alcove.core import cursor, validation
from alcove.core.clock import parse_moment, to_datetime
from alcove.core.cursor import take_page
from alcove.core.errors import InvalidRequest
from alcove.core.filters import FieldValue, Filter, field_of
from alcove.core.namespace import Namespace
from alcove.core.principal import JSON, Principal
from alcove.core.records import (
    AfterCursor,
    Entry,
    Fraction,
    Memory,
    NamespaceLike,
    Offset,
    Query,
    SearchMode,
    SearchResults,
    TimeLike,
)
from alcove.engine.rows import Row, Scope
from alcove.store import row_decoding
from alcove.store.timeline import Timeline

if TYPE_CHECKING:
    from alcove.search.hybrid_search import HybridSearch, SearchOptions
    from alcove.search.query import ParsedQuery

List: TypeAlias = list  # inside the class, `list` is the method

MODES = get_args(SearchMode)
MOST_OFFSET = 10**9
MOST_COUNTED, LOOKED_AT = 1_000, 10_000
"""Memories without index text that a search counts, and those among which it looks for them."""


class LiveEntry(NamedTuple):
    """A memory without its content: enough to choose it by, and to open it later."""

    seq: int
    namespace: Namespace
    key: str
    revision: int
    written_at: int


class Finding(Timeline):
    """Searches and lists for every principal; each call says who asks."""

    _make_searcher: Callable[[], HybridSearch]
    index_patience = 30.0
    """Seconds for which a call waits for the index, if it is asked to."""

    @cached_property
    def _searcher(self) -> HybridSearch:
        """Made by the first search: it brings numpy along."""
        return self._make_searcher()

    def search(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        query: Query | None = None,
        mode: SearchMode = "hybrid",
        min_relevance: Fraction | None = None,
        min_score: Fraction | None = None,
        filter: Mapping[str, object] | None = None,
        limit: Annotated[int, Meta(ge=1, le=100)] = 10,
        offset: Offset = 0,
        as_of: TimeLike | None = None,
        explain: bool = False,
        exact: bool = False,
        similarity: bool = False,
        unranked: bool = False,
        unindexed: bool = False,
        wait_for_index: bool = False,
        after_cursor: AfterCursor | None = None,
    ) -> SearchResults:
        """Memories below a prefix that fit a filter: the best for a query, or by namespace and key.

        `prefix`: where to look; everywhere the caller may, without.
        `query`, `mode`: what to look for, and by what: meaning and words (`hybrid`), or either alone.
        `min_relevance`: leaves out what has less `relevance`, that is, is less likely to answer the query.
        `min_score`: the older name of `min_relevance`.
        `filter`: conditions on fields, such as `{"n": {"gte": 2}}`.
        `limit`, `offset`: how many, after how many.
        `as_of`: a past moment, of which to tell what was there.
        `explain`: whether each memory tells what each signal of its rank added.
        `exact`: whether to look only in the namespace itself, and not below it.
        `similarity`: whether each memory tells its cosine, which may be negative, beside its score.
        `unranked`: whether what a query cannot rank, because it has no index text, comes after all others.
        `unindexed`: only what has no index text, so that no query finds it; not beside a query.
        `wait_for_index`: looks when what is there can be found by meaning, too, or after having waited for
        that so long that `degraded` says how many cannot.
        `after_cursor`: without a query, where an earlier answer ended; unlike an offset, it stays right where
        others write meanwhile.
        """
        limit = validation.check_integer(limit, "limit", 1, 100)
        if mode not in MODES:
            raise InvalidRequest("mode", f"one of {', '.join(MODES)}")
        if query is not None:
            validation.check_query(query)
        if after_cursor is not None and (query is not None or offset):
            raise InvalidRequest("after_cursor", "neither a query nor an offset beside it")
        least = validation.parse_min_relevance(min_relevance, min_score)
        if least and query is None:
            name = "min_relevance" if min_relevance else "min_score"
            raise InvalidRequest(name, "a query beside it, by which relevance is told")
        if unindexed and query is not None:
            raise InvalidRequest("unindexed", "no query beside it: what has no index text cannot be ranked")
        after = None if after_cursor is None else cursor.decode_place(after_cursor)
        scope, offset, at = self._asked(principal, prefix, filter, offset, as_of, exact=exact)
        below = Namespace.checked(prefix, "prefix")
        scope = replace(scope, unindexed=unindexed)
        if query is not None:
            if wait_for_index and at is None:  # first: what would wait is done again from the start
                fits = partial(self._fits, scope.filter)
                self.wait_for_all(self._searcher.without_vectors(scope, row_matches=fits))
            question = self._searcher.parse_query(query, mode)
            how: SearchOptions = {
                "mode": mode,
                "limit": limit,
                "offset": offset,
                "explain": explain,
                "unranked": unranked and not least,
                "min_relevance": least,
            }
            best, shown = self._best(scope, question, at, similarity=similarity, **how)
            best.namespace_prefix = _narrowed_prefix(scope, below)
            self._record_read(principal, "search", below, shown)
            return best

        def find() -> SearchResults:
            matching, more = take_page(islice(self._scanned(scope, at, after), offset, None), limit)
            found = SearchResults(map(self._opener.memory, matching))
            if more:
                found.next_offset = offset + len(found) if len(found) < limit and not after else None
                found.after_cursor = cursor.encode_place(matching[-1].ns, matching[-1].key)
            self._refuse_forgotten(at)
            return found

        memories = row_decoding.retry_if_wiped(find)
        memories.namespace_prefix = _narrowed_prefix(scope, below)
        self._record_read(principal, "search", below, (each.namespace for each in memories))
        return memories

    def parse_query(self, query: str) -> ParsedQuery:
        """Reads and embeds a question once, for several searches that ask it."""
        validation.check_query(query)
        return self._searcher.parse_query(query, "hybrid")

    def search_parsed(
        self,
        principal: Principal,
        prefix: NamespaceLike,
        question: ParsedQuery,
        *,
        limit: int,
        filter: Mapping[str, object] | None = None,
        exact: bool = False,
        calibrated: bool = False,
    ) -> SearchResults:
        """What `search` finds for a question that was read before; `calibrated`: by `relevance`."""
        below = Namespace.checked(prefix, "prefix")
        scope = self._scope(principal, below, filter, exact=exact)
        how: SearchOptions = {
            "mode": "hybrid",
            "limit": limit,
            "offset": 0,
            "explain": False,
            "calibrated": calibrated,
        }
        memories, shown = self._best(scope, question, None, **how)
        self._record_read(principal, "search", below, shown)
        return memories

    def list_user_entries(
        self,
        principal: Principal,
        prefix: NamespaceLike,
        *,
        authors: tuple[str | None, ...],
        besides: Namespace,
    ) -> List[LiveEntry]:
        """A user's own memories below a prefix, without values, in no order.

        They are in rooms that belong to the principal's user, but for the room `besides`, and in rooms that
        belong to nobody if one of `authors` wrote them. The cost follows these, not all below the prefix.
        """
        scope, now = self._scope(principal, Namespace.checked(prefix, "prefix"), None), self._clock()
        found = self._engine.owned_keys(scope, principal.user_id, except_namespace=besides.encode(), now=now)
        if (allowed := scope.unowned_written_by) is not None:
            authors = tuple(author for author in authors if author in allowed)
        of_nobody = replace(scope, unowned=True, unowned_written_by=authors)
        if None in authors:  # what nobody wrote is not in the index by author
            found += self._engine.keys(of_nobody, now=now)
        else:
            for author in filter(None, authors):
                found += self._engine.authored_keys(of_nobody, author, now=now)
        return [
            LiveEntry(seq, Namespace.decode(ns), key.decode(), revision, written_at)
            for seq, ns, key, revision, written_at in found
        ]

    def open_entries(
        self, principal: Principal, prefix: NamespaceLike, entries: Iterable[LiveEntry]
    ) -> Iterator[Memory]:
        """The memories of some entries, in their order; without those that are gone by now."""
        scope = self._scope(principal, Namespace.checked(prefix, "prefix"), None)
        rows = self._engine.index.load_rows(scope, [each.seq for each in entries], now=self._clock())
        return self._opener.still_there(rows, self._opener.memory)

    def search_entries(
        self,
        principal: Principal,
        prefix: NamespaceLike,
        entries: Sequence[LiveEntry],
        *,
        query: str,
        limit: int,
        min_relevance: float | None = None,
        unranked: bool = False,
    ) -> SearchResults:
        """What `search` finds among some entries; where these are too large, among the first of them.

        `unranked`: whether entries without index text come after all others, in their own order.
        """
        validation.check_query(query)
        scope = self._scope(principal, Namespace.checked(prefix, "prefix"), None)
        question, seqs = self._searcher.parse_query(query, "hybrid"), [each.seq for each in entries]
        how: SearchOptions = {
            "mode": "hybrid",
            "limit": limit,
            "offset": 0,
            "explain": False,
            "min_relevance": min_relevance or 0.0,
        }

        def find() -> SearchResults:
            best = self._searcher.search_versions(scope, seqs, question, **how)
            found = SearchResults(self._opener.hit(row, hit, similarity=False) for row, hit in best.hits)
            found.degraded, found.next_offset = best.degraded, best.next_offset
            if unranked and not min_relevance and best.next_offset is None and len(found) < limit:
                rest = self._engine.index.load_rows(replace(scope, unindexed=True), seqs, now=self._clock())
                more, is_cut = take_page(rest, limit - len(found))
                found += map(self._opener.memory, more)
                found.next_offset = len(found) if is_cut and len(found) < limit else None
            return found

        return row_decoding.retry_if_wiped(find)

    def wait_for_all(self, seqs: Sequence[int]) -> None:
        """Waits until versions have their vectors or cannot have any, or the index's patience is over."""
        until = time.monotonic() + self.index_patience
        for seq in seqs if self._indexer else ():
            self._indexer.wait(seq, until - time.monotonic())  # type: ignore[union-attr]

    def _best(
        self,
        scope: Scope,
        question: ParsedQuery,
        at: int | None,
        *,
        similarity: bool = False,
        **how: Unpack[SearchOptions],
    ) -> tuple[SearchResults, List[Namespace]]:
        """The memories of a scope that answer a question best, now or at a moment.

        And the namespaces of all memories of which the answer tells something, one for each.
        """

        def find() -> tuple[SearchResults, List[Namespace]]:
            without_text: List[Namespace] = []
            if at is None:
                best = self._searcher.search(
                    scope, question, row_matches=partial(self._fits, scope.filter), **how
                )
            else:
                best = self._searcher.search_past(scope, self._scanned(scope, at), question, moment=at, **how)
            found = SearchResults(self._opener.hit(row, hit, similarity=similarity) for row, hit in best.hits)
            found.degraded, found.next_offset = best.degraded, best.next_offset
            if how.get("unranked") and best.next_offset is None and len(found) < how["limit"]:
                rest = self._scanned(replace(scope, unindexed=True), at)
                first = max(0, how["offset"] - best.ranked_count)
                more, left = take_page(islice(rest, first, None), how["limit"] - len(found))
                found += map(self._opener.memory, more)
                if left and len(found) < how["limit"]:
                    found.next_offset = how["offset"] + len(found)
            elif best.next_offset is None and len(found) < how["limit"]:
                without_text = self._unindexed(scope, best.text_count, at)
                found.unindexed = len(without_text) or None
            self._refuse_forgotten(at)
            # How many have no text or no vectors tells nothing of what they hold, unless a filter chose them.
            counted = List[Namespace]()
            if scope.filter.conditions:
                others = {*best.unembedded}.difference(row.seq for row, _ in best.hits)
                counted = [*without_text, *self._engine.index.namespaces_of([*others])]
            return found, [*(each.namespace for each in found), *counted]

        return row_decoding.retry_if_wiped(find)

    def _unindexed(self, scope: Scope, texts: int, at: int | None) -> List[Namespace]:
        """The namespaces of memories without text; `texts`: how many of the subtree are known to have one.

        It is beside the search, so it has bounds of its own.
        """
        if at is None:
            found = self._engine.index.rows_without_text(
                scope, texts=texts, most=LOOKED_AT, now=self._clock()
            )
            if scope.filter.conditions:
                found = filter(partial(self._fits, scope.filter), found)
        else:
            found = self._scanned(replace(scope, unindexed=True), at)
        return [Namespace.decode(row.ns) for row in islice(found, MOST_COUNTED)]

    def list(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        filter: Mapping[str, object] | None = None,
        limit: Annotated[int, Meta(ge=1, le=1000)] = 100,
        offset: Offset = 0,
        as_of: TimeLike | None = None,
        exact: bool = False,
        unindexed: bool = False,
    ) -> List[Entry]:
        """Memories below a prefix by namespace and key, without their values, which are not opened.

        `prefix`: where to look; everywhere the caller may, without.
        `filter`: conditions on fields. `limit`, `offset`: how many, after how many.
        `as_of`: a past moment, of which to tell what was there.
        `exact`: whether to look only in the namespace itself, and not below it.
        `unindexed`: only what has no index text, so that no query finds it.
        """
        limit = validation.check_integer(limit, "limit", 1, 1000)
        scope, offset, at = self._asked(principal, prefix, filter, offset, as_of, exact=exact)
        below = Namespace.checked(prefix, "prefix")
        if unindexed:
            scope = replace(scope, unindexed=True)

        def find() -> List[Entry]:
            entries = [*map(row_decoding.entry, islice(self._scanned(scope, at), offset, offset + limit))]
            self._refuse_forgotten(at)
            return entries

        entries = row_decoding.retry_if_wiped(find)
        self._record_read(principal, "list", below, (each.namespace for each in entries))
        return entries

    def _asked(
        self,
        principal: Principal,
        prefix: NamespaceLike,
        filter: Mapping[str, object] | None,
        offset: int,
        as_of: TimeLike | None,
        *,
        exact: bool,
    ) -> tuple[Scope, int, int | None]:
        """Where a search or a list looks, after how many it begins, and of which moment."""
        offset = validation.check_integer(offset, "offset", 0, MOST_OFFSET)
        at = parse_moment(as_of, "as_of")
        below = Namespace.checked(prefix, "prefix")
        return self._scope(principal, below, filter, exact=exact), offset, at

    def _scanned(
        self, scope: Scope, at: int | None, after: tuple[bytes, bytes] | None = None
    ) -> Iterator[Row]:
        """Everything in a scope, in order; a field that only the value has is decided here and not in SQL.

        `after`: only what comes after this namespace and key.
        """
        begun = replace(scope, low=max(scope.low, after[0])) if after else scope
        if ruled_out := self._fields.held.rules_out(scope.filter):
            begun = replace(begun, filter=Filter())  # `_fits` decides of the few that are left
        found = self._engine.scan(begun, now=self._clock(), as_of=at, skip=ruled_out)
        if after:
            found = dropwhile(lambda row: (row.ns, row.key) <= after, found)
        return (row for row in found if self._fits(scope.filter, row)) if scope.filter.conditions else found

    def _fits(self, filter: Filter, row: Row) -> bool:
        held = self._fields.held
        if (known := held.verdict(filter, row.seq)) is not None:
            return known
        opened: List[dict[str, JSON]] = []

        def value() -> dict[str, JSON]:
            if not opened:
                opened.append(self._opener.value(row))
            return opened[0]

        def look(name: str) -> FieldValue:
            return field_of(name, row_decoding.attributes(row), row.index_texts, value)

        return filter.holds(lambda name: held.look(name, row.seq, look), value)

    def _refuse_forgotten(self, at: int | None) -> None:
        """Asked after reading: what retention removed meanwhile must not look as if it never was."""
        if at is not None and at < (earliest := self._engine.horizon()[0]):
            raise InvalidRequest("as_of", f"a moment not before the earliest kept, {to_datetime(earliest)}")


def _narrowed_prefix(scope: Scope, prefix: Namespace) -> Namespace | None:
    """Where a search looks, if the policy put that in place of the caller's prefix."""
    searched = Namespace.decode(scope.low)
    return None if searched == prefix else searched
