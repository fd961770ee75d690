"""Searches and lists memories: by a query, by a filter, among chosen ones, now or at a past moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import dropwhile, islice
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias, get_args

from msgspec import Meta, structs

from alcove.core import cursor, validation
from alcove.core.clock import SECOND, parse_moment
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
from alcove.engine.engine import Engine
from alcove.engine.rows import Row, Scope
from alcove.search import SearchOptions
from alcove.search.indexer import Indexer
from alcove.store import row_decoder
from alcove.store.access import Access
from alcove.store.field_value_cache import FieldValueCache
from alcove.store.reader import MAX_OFFSET, check_retained
from alcove.store.row_decoder import RowDecoder, retry_if_wiped

if TYPE_CHECKING:
    from alcove.search.hybrid_search import HybridSearch, SearchResult
    from alcove.search.query import ParsedQuery

List: TypeAlias = list  # inside the class, `list` is the method

MODES = get_args(SearchMode)
MAX_COUNTED, MAX_EXAMINED = 1_000, 10_000
"""Memories without index text that a search counts, and those that it examines to find them."""


class LiveEntry(NamedTuple):
    """Where a live memory is, without its value: enough to choose it, and to read it later."""

    seq: int
    namespace: Namespace
    key: str
    revision: int
    written_at: int


class Searcher:
    """Searches and lists what a principal may see."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        decoder: RowDecoder,
        field_values: FieldValueCache,
        indexer: Indexer | None,
        make_search: Callable[[], HybridSearch],
        *,
        index_wait_seconds: float,
    ) -> None:
        """`index_wait_seconds`: how long a call with `wait_for_index` waits."""
        self._engine, self._clock, self._access, self._decoder = engine, engine.clock, access, decoder
        self._field_values, self._indexer, self._make_search = field_values, indexer, make_search
        self._index_wait_seconds = index_wait_seconds

    @cached_property
    def _hybrid_search(self) -> HybridSearch:
        """Made for the first query, because it loads numpy."""
        return self._make_search()

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
        """Memories below a prefix that match a filter: the best for a query, or by namespace and key.

        `prefix`: where to look; by default everywhere you may.
        `query`, `mode`: what to look for: by meaning and words (`hybrid`), or by one of them.
        `min_relevance`: leaves out memories with a lower `relevance`: less likely to answer the query.
        `min_score`: the older name of `min_relevance`.
        `filter`: conditions on fields, such as `{"n": {"gte": 2}}`.
        `limit`, `offset`: at most how many, after how many.
        `as_of`: a moment in the past, to search what was there then.
        `explain`: whether each memory says what each signal added to its rank.
        `exact`: whether to look only in the namespace itself, and not below it.
        `similarity`: whether each memory also has its cosine, which may be negative.
        `unranked`: whether memories without index text, which a query cannot rank, come after all others.
        `unindexed`: only memories without index text; not with a query.
        `wait_for_index`: whether to wait until everything can be found by meaning; `degraded` says how many
        memories cannot when the wait is over.
        `after_cursor`: without a query, where an earlier answer ended; unlike an offset, it stays correct
        while others write.
        """
        limit = validation.check_integer(limit, "limit", 1, 100)
        if mode not in MODES:
            raise InvalidRequest("mode", f"one of {', '.join(MODES)}")
        if query is not None:
            validation.check_query(query)
        if after_cursor is not None and (query is not None or offset):
            raise InvalidRequest("after_cursor", "neither a query nor an offset together with it")
        least = validation.parse_min_relevance(min_relevance, min_score)
        if least and query is None:
            name = "min_relevance" if min_relevance else "min_score"
            raise InvalidRequest(name, "a query together with it: relevance is relevance to a query")
        if unindexed and query is not None:
            raise InvalidRequest(
                "unindexed", "no query together with it: memories without index text cannot be ranked"
            )
        after = None if after_cursor is None else cursor.decode_place(after_cursor)
        offset = validation.check_integer(offset, "offset", 0, MAX_OFFSET)
        moment = parse_moment(as_of, "as_of")
        below = Namespace.checked(prefix, "prefix")
        scope = replace(self._access.scope(principal, below, filter, exact=exact), unindexed=unindexed)
        if query is None:
            results = retry_if_wiped(lambda: self._first_by_key(scope, moment, after, offset, limit))
            namespaces = [each.namespace for each in results]
        else:
            if wait_for_index and moment is None:  # first: a call that would wait starts again from the top
                matches = partial(self._matches, scope.filter)
                self._wait_for_index(self._hybrid_search.without_vectors(scope, row_matches=matches))
            parsed_query = self._hybrid_search.parse_query(query, mode)
            unranked = unranked and not least
            options = SearchOptions(limit, mode, offset, explain, min_relevance=least, unranked=unranked)
            results, namespaces = retry_if_wiped(
                lambda: self._rank(scope, parsed_query, moment, options, similarity=similarity)
            )
        searched = Namespace.decode(scope.low)
        results.namespace_prefix = None if searched == below else searched
        self._access.record_read(principal, "search", below, namespaces)
        return results

    def _first_by_key(
        self, scope: Scope, moment: int | None, after: tuple[bytes, bytes] | None, offset: int, limit: int
    ) -> SearchResults:
        rows, more = take_page(islice(self._scan(scope, moment, after), offset, None), limit)
        results = SearchResults(map(self._decoder.memory, rows))
        if more:
            results.next_offset = offset + len(results) if len(results) < limit and not after else None
            results.after_cursor = cursor.encode_place(rows[-1].ns, rows[-1].key)
        if moment is not None:
            check_retained(self._engine, moment)
        return results

    def parse_query(self, query: str) -> ParsedQuery:
        """Parses and embeds a query once, for several calls of `search_parsed`."""
        validation.check_query(query)
        return self._hybrid_search.parse_query(query, "hybrid")

    def search_parsed(
        self,
        principal: Principal,
        prefix: NamespaceLike,
        query: ParsedQuery,
        *,
        limit: int,
        filter: Mapping[str, object] | None = None,
        exact: bool = False,
        calibrated: bool = False,
    ) -> SearchResults:
        """Searches for a parsed query; `calibrated`: orders hits by `relevance`, not by their fused rank."""
        below = Namespace.checked(prefix, "prefix")
        scope = self._access.scope(principal, below, filter, exact=exact)
        options = SearchOptions(limit, calibrated=calibrated)
        results, namespaces = retry_if_wiped(lambda: self._rank(scope, query, None, options))
        self._access.record_read(principal, "search", below, namespaces)
        return results

    def _rank(
        self,
        scope: Scope,
        query: ParsedQuery,
        moment: int | None,
        options: SearchOptions,
        *,
        similarity: bool = False,
    ) -> tuple[SearchResults, List[Namespace]]:
        """Searches a scope, now or at a moment.

        Returns also the namespace of each memory about whose content the answer says something.
        """
        matches = partial(self._matches, scope.filter)
        if moment is None:
            best = self._hybrid_search.search(scope, query, options, row_matches=matches)
        else:
            rows = self._scan(scope, moment)
            best = self._hybrid_search.search_past(scope, rows, query, options, moment=moment)
        results = self._to_results(best, similarity=similarity)
        without_text: List[Namespace] = []
        if best.next_offset is None and len(results) < options.limit:
            if options.unranked:
                first = max(0, options.offset - best.ranked_count)
                rows = islice(self._scan(replace(scope, unindexed=True), moment), first, None)
                self._append_unranked(results, rows, options.offset, options.limit)
            else:
                if moment is not None:
                    rows = self._scan(replace(scope, unindexed=True), moment)
                else:  # bounded, because it is only a hint
                    rows = self._engine.index.rows_without_text(
                        scope, text_count=best.text_count, max_rows=MAX_EXAMINED, now=self._clock()
                    )
                    if scope.filter.conditions:
                        rows = filter(matches, rows)
                without_text = [Namespace.decode(row.ns) for row in islice(rows, MAX_COUNTED)]
                results.unindexed = len(without_text) or None
        if moment is not None:
            check_retained(self._engine, moment)
        namespaces = [each.namespace for each in results]
        if scope.filter.conditions:  # with a filter, the counts say something about content
            without_vectors = {*best.unembedded}.difference(row.seq for row, _ in best.hits)
            namespaces += [*without_text, *self._engine.index.namespaces_of([*without_vectors])]
        return results, namespaces

    def _to_results(self, best: SearchResult, *, similarity: bool = False) -> SearchResults:
        results = SearchResults(
            structs.replace(
                self._decoder.memory(row),
                score=hit.score,
                relevance=hit.relevance,
                explain=dict(hit.signals) or None,
                similarity=hit.similarity if similarity else None,
            )
            for row, hit in best.hits
        )
        results.degraded, results.next_offset = best.degraded, best.next_offset
        return results

    def _append_unranked(self, results: SearchResults, rows: Iterable[Row], offset: int, limit: int) -> None:
        """Appends memories without index text, up to the limit."""
        page, more = take_page(rows, limit - len(results))
        results += map(self._decoder.memory, page)
        if more and len(results) < limit:
            results.next_offset = offset + len(results)

    # Among chosen memories

    def list_user_entries(
        self,
        principal: Principal,
        prefix: NamespaceLike,
        *,
        authors: tuple[str | None, ...],
        except_room: Namespace,
    ) -> List[LiveEntry]:
        """Lists the memories below a prefix that are the user's own, in no order and without values.

        These are in rooms that belong to the principal's user, without `except_room`, and in rooms without
        an owner if one of `authors` wrote them. The cost depends on these memories only.
        """
        scope, now = self._access.scope(principal, prefix), self._clock()
        keys = self._engine.owned_keys(
            scope, principal.user_id, except_namespace=except_room.encode(), now=now
        )
        if (visible := scope.unowned_written_by) is not None:
            authors = tuple(author for author in authors if author in visible)
        unowned = replace(scope, unowned=True, unowned_written_by=authors)
        if None in authors:  # the index by author lacks memories without one
            keys += self._engine.keys(unowned, now=now)
        else:
            for author in filter(None, authors):
                keys += self._engine.authored_keys(unowned, author, now=now)
        return [
            LiveEntry(seq, Namespace.decode(ns), key.decode(), revision, written_at)
            for seq, ns, key, revision, written_at in keys
        ]

    def open_entries(
        self, principal: Principal, prefix: NamespaceLike, entries: Iterable[LiveEntry]
    ) -> Iterator[Memory]:
        """Reads the memories of some entries, in their order; leaves out those that are gone by now."""
        scope = self._access.scope(principal, prefix)
        rows = self._engine.index.load_rows(scope, [each.seq for each in entries], now=self._clock())
        return self._decoder.existing(rows, self._decoder.memory)

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
        """Searches among some entries only: all of them, or as many as fit into memory.

        `unranked`: whether entries without index text come after all others, in their own order.
        """
        parsed_query, seqs = self.parse_query(query), [each.seq for each in entries]
        scope = self._access.scope(principal, prefix)
        options = SearchOptions(limit, min_relevance=min_relevance or 0.0)

        def search() -> SearchResults:
            best = self._hybrid_search.search_versions(scope, seqs, parsed_query, options)
            results = self._to_results(best)
            if unranked and not min_relevance and best.next_offset is None and len(results) < limit:
                unindexed = replace(scope, unindexed=True)
                rows = self._engine.index.load_rows(unindexed, seqs, now=self._clock())
                self._append_unranked(results, rows, 0, limit)
            return results

        return retry_if_wiped(search)

    # The index

    def _wait_for_index(self, seqs: Sequence[int]) -> None:
        """Waits until versions have vectors or cannot get any, at most `index_wait_seconds`."""
        deadline = time.monotonic() + self._index_wait_seconds
        for seq in seqs if self._indexer else ():
            self._indexer.wait(seq, deadline - time.monotonic())  # type: ignore[union-attr]

    def index_lag(self) -> tuple[int, float]:
        """How many texts wait to be indexed, and for how many seconds the oldest has waited."""
        status = self._engine.index.status(self._engine.index.serving_embedder() or "")
        return status.pending, 0.0 if status.oldest_at is None else (
            self._clock() - status.oldest_at
        ) / SECOND

    # Lists

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
        """Lists memories below a prefix by namespace and key; their values are not decrypted.

        `prefix`: where to look; by default everywhere you may.
        `filter`: conditions on fields. `limit`, `offset`: at most how many, after how many.
        `as_of`: a moment in the past, to list what was there then.
        `exact`: whether to look only in the namespace itself, and not below it.
        `unindexed`: only memories without index text, which no query finds.
        """
        limit = validation.check_integer(limit, "limit", 1, 1000)
        offset = validation.check_integer(offset, "offset", 0, MAX_OFFSET)
        moment = parse_moment(as_of, "as_of")
        below = Namespace.checked(prefix, "prefix")
        scope = replace(self._access.scope(principal, below, filter, exact=exact), unindexed=unindexed)

        def read() -> List[Entry]:
            rows = islice(self._scan(scope, moment), offset, offset + limit)
            entries = [*map(row_decoder.entry, rows)]
            if moment is not None:
                check_retained(self._engine, moment)
            return entries

        entries = retry_if_wiped(read)
        self._access.record_read(principal, "list", below, (each.namespace for each in entries))
        return entries

    def _scan(
        self, scope: Scope, moment: int | None, after: tuple[bytes, bytes] | None = None
    ) -> Iterator[Row]:
        """Every row of a scope, in order; decides here about fields that only the encrypted value has.

        `after`: only rows behind this namespace and key.
        """
        range = replace(scope, low=max(scope.low, after[0])) if after else scope
        if excluded := self._field_values.cached.exclude(scope.filter):
            range = replace(range, filter=Filter())  # `_matches` decides about the few others
        rows = self._engine.scan(range, now=self._clock(), as_of=moment, skip=excluded)
        if after:
            rows = dropwhile(lambda row: (row.ns, row.key) <= after, rows)
        return (row for row in rows if self._matches(scope.filter, row)) if scope.filter.conditions else rows

    def _matches(self, filter: Filter, row: Row) -> bool:
        cached = self._field_values.cached
        if (is_match := cached.matches(filter, row.seq)) is not None:
            return is_match

        @cache
        def value() -> dict[str, JSON]:
            return self._decoder.value(row)

        def read_field(name: str) -> FieldValue:
            return field_of(name, row_decoder.attributes(row), row.index_texts, value)

        return filter.holds(lambda name: cached.get(name, row.seq, read_field), value)
