"""What happened to memories, for who may see it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated

from msgspec import Meta

from alcove.core import cancellation, cursor, validation
from alcove.core.clock import parse_moment, to_datetime
from alcove.core.cursor import MAX_PAGE_BYTES
from alcove.core.filters import Filter, filter_to_json
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import KINDS, Event, EventKind, EventPage, NamespaceLike, TimeLike
from alcove.engine.rows import Scope
from alcove.store import row_decoding
from alcove.store.common import Service

_FOLLOWED = 100
_POLL_SECONDS = 0.05


class Timeline(Service):
    """Reads events for every principal; each call says who asks."""

    def last_event(self) -> int:
        """The position of the newest event, whoever may see it."""
        return self._engine.last_seq()

    def when_told(self, call: Callable[[], None]) -> bool:
        """Has something called soon after each write, wherever it was made; False where nobody tells."""
        return self._engine.on_commit(call)

    def end_of_events(self) -> str:
        """The cursor after everything that has happened."""
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
        """A page of what happened below a prefix, oldest first, and the cursor to go on from.

        `prefix`: where; everywhere the caller may look, without. `kinds`: only these.
        `after`, `before`: only what happened between these moments.
        `after_cursor`: where an earlier page ended. `limit`: how many at most.
        """
        return self.event_page(
            principal,
            prefix,
            operation="events",
            kinds=kinds,
            after=after,
            before=before,
            after_cursor=after_cursor,
            limit=limit,
        )

    def event_page(
        self,
        principal: Principal,
        prefix: NamespaceLike,
        *,
        operation: str = "follow",
        kinds: Sequence[EventKind] | None,
        after: TimeLike | None = None,
        before: TimeLike | None = None,
        after_cursor: str | None,
        limit: int,
        most_bytes: int = MAX_PAGE_BYTES,
    ) -> EventPage:
        """The same, bounded in bytes as the caller says; the audit log says `operation`."""
        chosen = validation.parse_kinds(kinds) or KINDS
        position = 0 if after_cursor is None else cursor.decode(after_cursor)
        below = Namespace.checked(prefix, "prefix")
        scope = self._scope(principal, below, None)
        since, until = parse_moment(after, "after"), parse_moment(before, "before")
        limit = validation.check_integer(limit, "limit", 1, 200)

        def read() -> EventPage:
            found, more = self._engine.events(
                scope,
                position=position,
                kinds=chosen,
                between=(since, until),
                limit=limit,
                max_bytes=most_bytes,
            )
            earliest, purged = self._engine.horizon()
            return EventPage(
                events=[self._opener.event(row) for row in found],
                after_cursor=cursor.encode(found[-1].seq if found else position),
                truncated_before=to_datetime(earliest) if after_cursor and position < purged else None,
                more=more,
            )

        page = row_decoding.retry_if_wiped(read)
        self._record_read(principal, operation, below, (each.namespace for each in page.events))
        return page

    def follow(
        self,
        principal: Principal,
        prefix: NamespaceLike = (),
        *,
        kinds: Sequence[EventKind] | None = None,
        after_cursor: str | None = None,
    ) -> Iterator[Event]:
        """Each event below a prefix as it happens, for ever; at a URL, a lost connection is made again.

        `prefix`: where; everywhere the caller may look, without. `kinds`: only these.
        `after_cursor`: from where on; from now on, without.
        """
        position = after_cursor or self.end_of_events()
        page_after = partial(self.event_page, principal, prefix, kinds=kinds, limit=_FOLLOWED)
        return self._followed(page_after, page_after(after_cursor=position))

    def _followed(self, page_after: Callable[..., EventPage], page: EventPage) -> Iterator[Event]:
        seen = 0
        while True:
            yield from page.events
            position = cursor.decode(page.after_cursor)
            if not page.more:
                position = max(position, seen)  # what came before it was not for this reader
                while self.last_event() == seen:
                    cancellation.check()
                    time.sleep(_POLL_SECONDS)
            seen = self.last_event()
            page = page_after(after_cursor=cursor.encode(position))

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
        narrowed = self._configuration.current().policy.narrow(principal, prefix, filter_to_json(filter))
        low, high = narrowed.prefix.alone() if exact else narrowed.prefix.subtree()
        return Scope(low, high, policy=narrowed.conditions, owner=narrowed.owner, filter=wanted,
                     written_by=narrowed.written_by,
                     unowned_written_by=narrowed.unowned_written_by)  # fmt: skip
