"""The timeline: what happened to memories, in the order of commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated

from msgspec import Meta

from alcove.core import cancellation, cursor, validation
from alcove.core.clock import parse_moment, to_datetime
from alcove.core.cursor import MAX_PAGE_BYTES
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import KINDS, Event, EventKind, EventPage, NamespaceLike, TimeLike
from alcove.engine.engine import Engine
from alcove.store.access import Access
from alcove.store.row_decoder import RowDecoder, retry_if_wiped

_FOLLOW_PAGE = 100
_POLL_SECONDS = 0.05


class Timeline:
    """Reads the events that a principal may see."""

    def __init__(self, engine: Engine, access: Access, decoder: RowDecoder) -> None:
        self._engine, self._access, self._decoder = engine, access, decoder
        self.last_event: Callable[[], int] = engine.last_seq
        """Returns the position of the newest event, even if the caller may not see it."""
        self.on_commit: Callable[[Callable[[], None]], bool] = engine.on_commit
        """Has a function called soon after each write of any process; returns whether the store can."""

    def end(self) -> str:
        """The cursor after the newest event."""
        return cursor.encode(self.last_event())

    def events(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        kinds: Sequence[EventKind] | None = None,
        after: TimeLike | None = None,
        before: TimeLike | None = None,
        after_cursor: str | None = None,
        limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    ) -> EventPage:
        """A page of the events below a prefix, oldest first, and the cursor of the next page.

        `prefix`: where to look; by default everywhere you may. `kinds`: only these kinds of events.
        `after`, `before`: only events between these moments.
        `after_cursor`: where an earlier page ended. `limit`: at most how many.
        """
        between = parse_moment(after, "after"), parse_moment(before, "before")
        return self.event_page(principal, prefix, operation="events", kinds=kinds, between=between,
                               after_cursor=after_cursor, limit=limit)  # fmt: skip

    def event_page(
        self,
        principal: Principal,
        prefix: NamespaceLike,
        *,
        operation: str = "follow",
        kinds: Sequence[EventKind] | None,
        between: tuple[int | None, int | None] = (None, None),
        after_cursor: str | None,
        limit: int,
        max_bytes: int = MAX_PAGE_BYTES,
    ) -> EventPage:
        """The same with a bound in bytes; `operation` is the name of the read in the audit log."""
        chosen_kinds = validation.parse_kinds(kinds) or KINDS
        position = 0 if after_cursor is None else cursor.decode(after_cursor)
        below = Namespace.checked(prefix, "prefix")
        scope = self._access.scope(principal, below)
        limit = validation.check_integer(limit, "limit", 1, 200)

        def read() -> EventPage:
            rows, more = self._engine.events(
                scope,
                position=position,
                kinds=chosen_kinds,
                between=between,
                limit=limit,
                max_bytes=max_bytes,
            )
            earliest, purged = self._engine.horizon()
            return EventPage(
                events=[self._decoder.event(row) for row in rows],
                after_cursor=cursor.encode(rows[-1].seq if rows else position),
                truncated_before=to_datetime(earliest) if after_cursor and position < purged else None,
                more=more,
            )

        page = retry_if_wiped(read)
        self._access.record_read(principal, operation, below, (each.namespace for each in page.events))
        return page

    def follow(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        kinds: Sequence[EventKind] | None = None,
        after_cursor: str | None = None,
    ) -> Iterator[Event]:
        """Each event below a prefix as it happens, without end; at a URL, a lost connection is made again.

        `prefix`: where to look; by default everywhere you may. `kinds`: only these kinds of events.
        `after_cursor`: where to start; by default at the events to come.
        """
        read_page = partial(self.event_page, principal, prefix, kinds=kinds, limit=_FOLLOW_PAGE)
        return self._follow(read_page, read_page(after_cursor=after_cursor or self.end()))

    def _follow(self, read_page: Callable[..., EventPage], page: EventPage) -> Iterator[Event]:
        last = 0
        while True:
            yield from page.events
            position = cursor.decode(page.after_cursor)
            if not page.more:
                position = max(position, last)  # the caller may not see the events up to here
                while self.last_event() == last:
                    cancellation.check()
                    time.sleep(_POLL_SECONDS)
            last = self.last_event()
            page = read_page(after_cursor=cursor.encode(position))
