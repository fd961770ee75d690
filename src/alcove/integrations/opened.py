"""The store under an adapter, which threads and event loops use alike."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Self, TypeVar

from alcove.client import connect
from alcove.client.asynchronous import AsyncAlcove
from alcove.client.store import Store
from alcove.core.errors import InvalidRequest, PermissionDenied
from alcove.core.namespace import Namespace
from alcove.core.records import BatchOperation, Get, Memory, Put, SearchResults

T = TypeVar("T")
At = Store | str | os.PathLike[str]
"""An open store, or the path of a file, or a URL."""
PAGE, MOST_OPERATIONS = 100, 1000
"""What one search gives, and one batch takes."""


class Opened:
    """Has a store and its twins for event loops; closes them."""

    def __init__(self, at: At, opening: dict[str, Any]) -> None:
        """`opening`: what `alcove.connect` takes beside a path or a URL."""
        if not isinstance(at, Store | str | os.PathLike):
            raise InvalidRequest("at", "the path of a file, a URL, or a store that `alcove.connect` opened")
        self._store = at if isinstance(at, Store) else connect(at, **opening)
        self._awaited: dict[asyncio.AbstractEventLoop, AsyncAlcove] = {}
        self._twins = threading.Lock()
        self._user: str | None = None

    def _twin(self) -> AsyncAlcove:
        """The store for the event loop that runs; what was for loops that have ended is let go."""
        loop = asyncio.get_running_loop()
        with self._twins:
            if loop not in self._awaited:
                for ended in [each for each in [*self._awaited] if each.is_closed()]:
                    self._awaited.pop(ended, None)
                self._awaited[loop] = AsyncAlcove.over(self._store)
            return self._awaited[loop]

    async def _caller(self, alcove: Any) -> str:
        """The user whose rooms these are, which at a URL the server says."""
        if self._user is None:
            self._user = (await given(alcove.whoami())).user
        return self._user

    def close(self) -> None:
        """Closes the store."""
        self._store.close()

    async def aclose(self) -> None:
        """Closes what this event loop used, and the store."""
        if twin := self._awaited.pop(asyncio.get_running_loop(), None):
            await twin.close()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def written(
    alcove: Any, operations: Sequence[BatchOperation], *, beside: Sequence[BatchOperation] = ()
) -> None:
    """Writes in one transaction, or in several where they are too many or too large for one.

    `beside`: what goes into each of them.
    """
    if not operations:
        return
    most = MOST_OPERATIONS - len(beside)
    if len(operations) > most:
        for n in range(0, len(operations), most):
            await written(alcove, operations[n : n + most], beside=beside)
        return
    try:
        match [*beside, *operations]:
            case [Put() as put]:  # which takes less than a batch of one
                texts, ttl, revision = put.index, put.ttl_seconds, put.expected_revision
                options = {"index": texts, "ttl_seconds": ttl, "expected_revision": revision}
                await given(alcove.put(put.namespace, put.key, put.value, **options))
            case several:
                await given(alcove.batch(several))
    except InvalidRequest as error:
        if len(operations) == 1 or error.field not in ("body", "operations"):
            raise
        half = len(operations) // 2
        await written(alcove, operations[:half], beside=beside)
        await written(alcove, operations[half:], beside=beside)


async def got(alcove: Any, gets: Sequence[Get]) -> list[Memory | None]:
    """The memories at some keys, in as many requests as it takes."""
    found: list[Memory | None] = []
    for n in range(0, len(gets), MOST_OPERATIONS):
        page = await given(alcove.batch(some := gets[n : n + MOST_OPERATIONS]))
        found += page
        while page.after_cursor is not None:
            page = await given(alcove.batch(some, after_cursor=page.after_cursor))
            found += page
    return found


async def searched(
    alcove: Any, prefix: tuple[str, ...], *, limit: float = math.inf, **how: Any
) -> AsyncIterator[Memory]:
    """What a search finds, page by page, however much that is; nothing that is not below the prefix.

    A policy may lead a search elsewhere, which is refused here: what an adapter finds it may delete.
    """
    offset, count, last = how.pop("offset", 0), 0, None
    while count < limit:
        place = {"offset": offset + count} if last is None else {"after_cursor": last}
        asked = int(min(PAGE, limit - count))
        page: SearchResults = await given(alcove.search(prefix, limit=asked, **place, **how))
        if page.namespace_prefix is not None and page.namespace_prefix[: len(prefix)] != prefix:
            raise PermissionDenied(f"the policy does not let you look below {str(Namespace(prefix))!r}")
        for memory in page:
            if memory.namespace[: len(prefix)] == prefix:
                yield memory
        count, last = count + len(page), page.after_cursor
        ranked = how.get("query") is not None and (len(page) == asked or page.next_offset is not None)
        if last is None and not ranked:
            return


async def given(answer: Coroutine[Any, Any, T] | T) -> T:
    """What a store answers, awaited where it is one for event loops."""
    return await answer if isinstance(answer, Coroutine) else answer
