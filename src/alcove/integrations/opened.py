"""The store under an adapter, which threads and event loops use alike."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

from alcove.client import connect
from alcove.client.remote import MAX_CALLS
from alcove.client.store import Store
from alcove.core.errors import InvalidRequest, PermissionDenied
from alcove.core.event_loop import CallThreads
from alcove.core.namespace import Namespace
from alcove.core.records import BatchOperation, Get, Memory, Put, SearchResults

At = Store | str | os.PathLike[str]
"""An open store, or the path of a file, or a URL."""
PAGE, MOST_OPERATIONS = 100, 1000
"""What one search gives, and one batch takes."""


class Opened:
    """Has a store, and threads that call it for event loops; closes both."""

    def __init__(self, at: At, opening: dict[str, Any]) -> None:
        """`opening`: what `alcove.connect` takes besides a path or a URL."""
        if not isinstance(at, Store | str | os.PathLike):
            raise InvalidRequest("at", "the path of a file, a URL, or a store that `alcove.connect` opened")
        self._store = at if isinstance(at, Store) else connect(at, **opening)
        self._threads = CallThreads(MAX_CALLS, "alcove-adapter")
        self._user: str | None = None

    def _caller(self) -> str:
        """The user whose rooms these are; at a URL, the server says."""
        if self._user is None:
            self._user = self._store.whoami().user
        return self._user

    def close(self) -> None:
        """Closes the store."""
        self._store.close()

    async def aclose(self) -> None:
        """Waits for calls in progress, and closes the store."""
        await self._threads.close()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def write_all(
    store: Store, operations: Sequence[BatchOperation], *, always: Sequence[BatchOperation] = ()
) -> None:
    """Writes in one transaction, or in several if they are too many or too large for one.

    `always`: what goes into each of them.
    """
    if not operations:
        return
    limit = MOST_OPERATIONS - len(always)
    if len(operations) > limit:
        for n in range(0, len(operations), limit):
            write_all(store, operations[n : n + limit], always=always)
        return
    try:
        match [*always, *operations]:
            case [Put() as put]:  # which takes less time than a batch of one
                store.put(
                    put.namespace,
                    put.key,
                    put.value,
                    index=put.index,
                    ttl_seconds=put.ttl_seconds,
                    expected_revision=put.expected_revision,
                )
            case batch:
                store.batch(batch)
    except InvalidRequest as error:
        if len(operations) == 1 or error.field not in ("body", "operations"):
            raise
        half = len(operations) // 2
        write_all(store, operations[:half], always=always)
        write_all(store, operations[half:], always=always)


def read_all(store: Store, gets: Sequence[Get]) -> list[Memory | None]:
    """The memories at some keys, in as many requests as it takes."""
    memories: list[Any] = []
    for n in range(0, len(gets), MOST_OPERATIONS):
        some = gets[n : n + MOST_OPERATIONS]
        page = store.batch(some)
        memories += page
        while page.after_cursor is not None:
            page = store.batch(some, after_cursor=page.after_cursor)
            memories += page
    return memories


def search_all(
    store: Store, prefix: tuple[str, ...], *, limit: float = math.inf, **options: Any
) -> Iterator[Memory]:
    """All that a search finds below the prefix, page by page.

    A policy may redirect a search elsewhere, which is refused here: an adapter may delete what it finds.
    """
    offset, count, last = options.pop("offset", 0), 0, None
    while count < limit:
        start = {"offset": offset + count} if last is None else {"after_cursor": last}
        page_size = int(min(PAGE, limit - count))
        page: SearchResults = store.search(prefix, limit=page_size, **start, **options)
        if page.namespace_prefix is not None and page.namespace_prefix[: len(prefix)] != prefix:
            raise PermissionDenied(f"the policy does not let you look below {str(Namespace(prefix))!r}")
        for memory in page:
            if memory.namespace[: len(prefix)] == prefix:
                yield memory
        count, last = count + len(page), page.after_cursor
        has_query = options.get("query") is not None
        is_ranked = has_query and (len(page) == page_size or page.next_offset is not None)
        if last is None and not is_ranked:
            return
