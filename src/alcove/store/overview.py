"""What a person looks at: what lies where and how much, what is new, what happened by day, and a map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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
from alcove.engine.rows import MAX_INT64, Row, Scope
from alcove.store.access import Access
from alcove.store.row_decoder import RowDecoder, retry_if_wiped

MOST_POINTS = 10_000
MOST_DAYS = 366
BUSIEST = 8
"""Rooms whose growth is told."""
OPENED_BYTES = 64 * 1024 * 1024
"""Of values that are opened to see of which type they are; those after that are of none."""
SHOWN = 200
"""Characters of a text on a map."""
_EPOCH = date(1970, 1, 1)


class Branch(Struct, frozen=True, kw_only=True):
    """What lies right below a namespace: `here` in it alone, `memories` with all that is below it."""

    namespace: Namespace
    here: int
    memories: int


class DayOfEvents(Struct, frozen=True, kw_only=True):
    """How often something of a kind happened on a day."""

    day: date
    kind: EventKind
    count: int


class Growth(Struct, frozen=True, kw_only=True):
    """By how many memories a room has grown on a day, or shrunk."""

    namespace: Namespace
    day: date
    by: int


class Activity(Struct, frozen=True, kw_only=True):
    """What happened below a namespace, by days of UTC; types are of the newest memories with one."""

    since: date
    events: list[DayOfEvents]
    growth: list[Growth]
    types: dict[str, int]


class MapPoint(Struct, frozen=True, kw_only=True):
    """A memory on a map, both ways between 0 and 1; what lies close together means something alike."""

    namespace: Namespace
    key: str
    text: str
    type: str | None
    x: float
    y: float


class Map(Struct, frozen=True, kw_only=True):
    """The newest memories by meaning; `unplaced` of those that were looked at have no vectors."""

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
        """What lies right below a namespace, with counts, in order.

        `prefix`: of which; the roots, without. `limit`: how many. `after`: only what follows this segment.
        """
        limit, below = validation.check_integer(limit, "limit", 1, 1000), Namespace.checked(prefix, "prefix")
        scope = self._access.scope(principal, below)
        low = max(scope.low, Namespace((*below, after)).subtree()[1]) if after else scope.low
        counts = self._engine.counts(replace(scope, low=low), now=self._engine.clock())
        depth = len(below) + 1
        deeper = ((Namespace.decode(ns), count) for ns, count in counts)
        branches = groupby(((ns, n) for ns, n in deeper if len(ns) >= depth), lambda each: each[0][:depth])
        return [_branch(Namespace(ns), dict(rooms)) for ns, rooms in islice(branches, limit)]

    def newest(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        exact: bool = False,
        limit: Annotated[int, Meta(ge=1, le=100)] = 20,
        after_cursor: AfterCursor | None = None,
    ) -> Page[Memory]:
        """Memories below a prefix, those first that were written last.

        `prefix`: where. `exact`: whether to look only in the namespace itself. `limit`: how many.
        `after_cursor`: where an earlier answer ended.
        """
        limit = validation.check_integer(limit, "limit", 1, 100)
        before = MAX_INT64 if after_cursor is None else cursor.decode(after_cursor)
        below = Namespace.checked(prefix, "prefix")
        scope = self._access.scope(principal, below, exact=exact)

        def read() -> Page[Memory]:
            found = self._engine.newest(scope, now=self._engine.clock(), limit=limit + 1, before=before)
            rows, more = take_page((row for row, _ in found), limit)
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
        """What happened below a prefix in the last days, as numbers to plot.

        `prefix`: where. `days`: how many, today among them.
        """
        days, now = validation.check_integer(days, "days", 1, MOST_DAYS), self._engine.clock()
        below = Namespace.checked(prefix, "prefix")
        scope = self._access.scope(principal, below)
        since = (now // DAY - days + 1) * DAY
        events, growth = self._engine.activity(scope, since=since, rooms=BUSIEST)
        types = self._types(scope)  # texts out of values; all else here is figures
        self._access.record_read(principal, "activity", below, (namespace for namespace, _ in types))
        return Activity(
            since=to_datetime(since).date(),
            events=[DayOfEvents(day=_date(day), kind=kind, count=n) for day, kind, n in events],
            growth=[Growth(namespace=Namespace.decode(ns), day=_date(day), by=n) for ns, day, n in growth],
            types=dict(Counter(type for _, type in types).most_common()),
        )

    def _types(self, scope: Scope) -> list[tuple[Namespace, str]]:
        """The types of the newest memories that name one, each with where its memory is."""
        found = self._engine.newest(scope, now=self._engine.clock(), limit=MOST_POINTS)
        typed = self._typed(row for row, _ in found)
        return [(Namespace.decode(row.ns), type) for row, type in typed if type is not None]

    def map(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        limit: Annotated[int, Meta(ge=1, le=MOST_POINTS)] = MOST_POINTS,
    ) -> Map:
        """The newest memories below a prefix, laid out so that what means something alike lies close.

        `prefix`: where. `limit`: how many are looked at.
        """
        from alcove.search import map_layout  # noqa: PLC0415  it brings numpy along

        limit = validation.check_integer(limit, "limit", 1, MOST_POINTS)
        below = Namespace.checked(prefix, "prefix")
        scope = self._access.scope(principal, below)
        embedder = self._engine.index.serving() or ""
        found = [*self._engine.newest(scope, now=self._engine.clock(), limit=limit + 1, embedder=embedder)]
        placed = [(row, body) for row, body in found[:limit] if body]
        positions = map_layout.positions([body for _, body in placed])
        points = [
            MapPoint(
                namespace=Namespace.decode(row.ns),
                key=row.key.decode(),
                text=" · ".join(row.index_texts.values())[:SHOWN],
                type=type,
                x=x,
                y=y,
            )
            for (row, type), (x, y) in zip(self._typed(row for row, _ in placed), positions, strict=True)
        ]
        self._access.record_read(principal, "map", below, (point.namespace for point in points))
        return Map(points=points, unplaced=min(len(found), limit) - len(placed), more=len(found) > limit)

    def _typed(self, rows: Iterator[Row]) -> Iterator[tuple[Row, str | None]]:
        """Each with the type that its value names, as long as opening them is no great matter."""
        left = OPENED_BYTES
        for row in rows:
            left -= len(row.sealed or b"")
            yield row, self._type(row) if left >= 0 else None

    def _type(self, row: Row) -> str | None:
        try:
            found: JSON = self._decoder.value(row).get("type")
        except KeyDestroyed:  # wiped since it was read
            return None
        return found if isinstance(found, str) else None


def _branch(namespace: Namespace, rooms: dict[Namespace, int]) -> Branch:
    return Branch(namespace=namespace, here=rooms.get(namespace, 0), memories=sum(rooms.values()))


def _date(day: int) -> date:
    return _EPOCH + timedelta(days=day)
