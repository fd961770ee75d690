"""Overviews for people: counts of each room, newest memories, activity by day, and a map by meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta
from itertools import groupby, islice
from typing import Annotated

from msgspec import Meta, Struct

from alcove.core import cursor, validation
from alcove.core.clock import DAY, to_datetime
from alcove.core.cursor import Page, take_page
from alcove.core.errors import KeyDestroyed
from alcove.core.namespace import Namespace
from alcove.core.principal import JSON, Principal
from alcove.core.records import AfterCursor, EventKind, Limit, Memory, NamespaceLike
from alcove.engine.engine import Engine
from alcove.engine.rows import MAX_INT64, Row
from alcove.store.access import Access
from alcove.store.row_decoder import RowDecoder, retry_if_wiped

MOST_POINTS = 10_000
MOST_DAYS = 366
BUSIEST_ROOMS = 8
"""Rooms whose growth is reported."""
MAX_OPEN_BYTES = 64 * 1024 * 1024
"""Bytes of values that are decrypted to read their type; memories beyond that count as without a type."""
MAP_TEXT_LENGTH = 200
"""Characters of a text on a map."""
_EPOCH = date(1970, 1, 1)


class Branch(Struct, frozen=True, kw_only=True):
    """A child of a namespace: `here` counts the memories in it alone, `memories` also those below it."""

    namespace: Namespace
    here: int
    memories: int


class DayOfEvents(Struct, frozen=True, kw_only=True):
    """The count of events of one kind on a day."""

    day: date
    kind: EventKind
    count: int


class Growth(Struct, frozen=True, kw_only=True):
    """By how many memories a room grew on a day; negative if it shrank."""

    namespace: Namespace
    day: date
    by: int


class Activity(Struct, frozen=True, kw_only=True):
    """The events below a namespace by day in UTC, and the types of the newest memories."""

    since: date
    events: list[DayOfEvents]
    growth: list[Growth]
    types: dict[str, int]


class MapPoint(Struct, frozen=True, kw_only=True):
    """A memory on a map, with coordinates from 0 to 1; memories with similar meaning are close together."""

    namespace: Namespace
    key: str
    text: str
    type: str | None
    x: float
    y: float


class Map(Struct, frozen=True, kw_only=True):
    """The newest memories by meaning; `unplaced` counts those without vectors."""

    points: list[MapPoint]
    unplaced: int
    more: bool


class Overview:
    """Summarises what a principal may see."""

    def __init__(self, engine: Engine, access: Access, decoder: RowDecoder) -> None:
        self._engine, self._access, self._decoder = engine, access, decoder

    def tree(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        limit: Limit = 100,
        after: str | None = None,
    ) -> list[Branch]:
        """The namespaces one level below a prefix, with counts, in order.

        `prefix`: where; by default the roots. `limit`: at most how many.
        `after`: only those after this segment.
        """
        limit, below = validation.check_integer(limit, "limit", 1, 1000), Namespace.checked(prefix, "prefix")
        scope = self._access.scope(principal, below)
        low = max(scope.low, Namespace((*below, after)).subtree()[1]) if after else scope.low
        counts = self._engine.counts(replace(scope, low=low), now=self._engine.clock())
        depth = len(below) + 1
        deeper = ((Namespace.decode(ns), count) for ns, count in counts)
        branches = groupby(((ns, n) for ns, n in deeper if len(ns) >= depth), lambda each: each[0][:depth])
        children = [(Namespace(ns), dict(rooms)) for ns, rooms in islice(branches, limit)]
        return [
            Branch(namespace=ns, here=rooms.get(ns, 0), memories=sum(rooms.values()))
            for ns, rooms in children
        ]

    def newest(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        exact: bool = False,
        limit: Annotated[int, Meta(ge=1, le=100)] = 20,
        after_cursor: AfterCursor | None = None,
    ) -> Page[Memory]:
        """Memories below a prefix, the newest first.

        `prefix`: where. `exact`: whether to look only in the namespace itself. `limit`: at most how
        many. `after_cursor`: where an earlier answer ended.
        """
        limit = validation.check_integer(limit, "limit", 1, 100)
        before = MAX_INT64 if after_cursor is None else cursor.decode(after_cursor)
        below = Namespace.checked(prefix, "prefix")
        scope = self._access.scope(principal, below, exact=exact)

        def read() -> Page[Memory]:
            newest = self._engine.newest(scope, now=self._engine.clock(), limit=limit + 1, before=before)
            rows, more = take_page((row for row, _ in newest), limit)
            memories = Page(self._decoder.existing(rows, self._decoder.memory))
            memories.after_cursor = cursor.encode(rows[-1].seq) if more else None
            return memories

        memories = retry_if_wiped(read)
        self._access.record_read(principal, "newest", below, (each.namespace for each in memories))
        return memories

    def activity(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        days: Annotated[int, Meta(ge=1, le=MOST_DAYS)] = 30,
    ) -> Activity:
        """The events below a prefix in the last days, as numbers to plot.

        `prefix`: where. `days`: how many, including today.
        """
        days, now = validation.check_integer(days, "days", 1, MOST_DAYS), self._engine.clock()
        below = Namespace.checked(prefix, "prefix")
        scope = self._access.scope(principal, below)
        since = (now // DAY - days + 1) * DAY
        events, growth = self._engine.activity(scope, since=since, rooms=BUSIEST_ROOMS)
        newest = self._engine.newest(scope, now=self._engine.clock(), limit=MOST_POINTS)
        rows = self._typed(row for row, _ in newest)  # decrypts values; everything else here is counts
        types = [(Namespace.decode(row.ns), type) for row, type in rows if type is not None]
        self._access.record_read(principal, "activity", below, (namespace for namespace, _ in types))
        return Activity(
            since=to_datetime(since).date(),
            events=[DayOfEvents(day=_date(day), kind=kind, count=n) for day, kind, n in events],
            growth=[Growth(namespace=Namespace.decode(ns), day=_date(day), by=n) for ns, day, n in growth],
            types=dict(Counter(type for _, type in types).most_common()),
        )

    def map(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        limit: Annotated[int, Meta(ge=1, le=MOST_POINTS)] = MOST_POINTS,
    ) -> Map:
        """The newest memories below a prefix, laid out so that those with similar meaning are close together.

        `prefix`: where. `limit`: at most how many.
        """
        from alcove.search import map_layout  # noqa: PLC0415  it loads numpy

        limit = validation.check_integer(limit, "limit", 1, MOST_POINTS)
        below = Namespace.checked(prefix, "prefix")
        scope = self._access.scope(principal, below)
        embedder = self._engine.index.serving_embedder() or ""
        newest = [*self._engine.newest(scope, now=self._engine.clock(), limit=limit + 1, embedder=embedder)]
        embedded = [(row, body) for row, body in newest[:limit] if body]
        positions = map_layout.positions([body for _, body in embedded])
        points = [
            MapPoint(
                namespace=Namespace.decode(row.ns),
                key=row.key.decode(),
                text=" · ".join(row.index_texts.values())[:MAP_TEXT_LENGTH],
                type=type,
                x=x,
                y=y,
            )
            for (row, type), (x, y) in zip(self._typed(row for row, _ in embedded), positions, strict=True)
        ]
        self._access.record_read(principal, "map", below, (point.namespace for point in points))
        return Map(points=points, unplaced=min(len(newest), limit) - len(embedded), more=len(newest) > limit)

    def _typed(self, rows: Iterator[Row]) -> Iterator[tuple[Row, str | None]]:
        """Each row with the type in its value, up to `MAX_OPEN_BYTES`."""
        remaining = MAX_OPEN_BYTES
        for row in rows:
            remaining -= len(row.sealed or b"")
            type: JSON = None
            if remaining >= 0:
                with suppress(KeyDestroyed):  # wiped since it was read
                    type = self._decoder.value(row).get("type")
            yield row, type if isinstance(type, str) else None


def _date(day: int) -> date:
    return _EPOCH + timedelta(days=day)
