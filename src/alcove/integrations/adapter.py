"""What the adapters share: a store for threads and event loops, bulk requests, and calls of agent handles."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, ParamSpec, Self, TypeVar, cast

from alcove.api.operation import AsyncHandle
from alcove.client import connect
from alcove.client.agent import AgentHandle, AsyncAgentHandle
from alcove.client.remote import MAX_CALLS
from alcove.client.store import Store
from alcove.core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from alcove.core.event_loop import CallThreads
from alcove.core.namespace import Namespace
from alcove.core.records import BatchOperation, Get, Memory, Put, SearchResults

P = ParamSpec("P")
R = TypeVar("R")
StoreLocation = Store | str | os.PathLike[str]
"""An open store, or the path of a file, or a URL."""
PAGE_SIZE, MAX_BATCH = 100, 1000
"""The number of memories in one page of a search, and of operations in one batch."""
CORRECTABLE_ERRORS = (InvalidRequest, NotFound, Conflict)
"""Errors that a model can correct: wrong arguments, a missing key, a memory that has changed since."""


class StoreAdapter:
    """Owns a store, and threads that call it for event loops."""

    def __init__(self, at: StoreLocation, options: dict[str, Any]) -> None:
        """`options`: the arguments of `alcove.connect` besides the path or URL."""
        if not isinstance(at, Store | str | os.PathLike):
            raise InvalidRequest("at", "the path of a file, a URL, or a store that `alcove.connect` opened")
        self._store = at if isinstance(at, Store) else connect(at, **options)
        self._threads = CallThreads(MAX_CALLS, "alcove-adapter")
        self._user: str | None = None

    def _caller(self) -> str:
        """The user of the store; asks the server once if the store is at a URL."""
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


def check_handle(handle: object) -> None:
    """Raises InvalidRequest unless this is the handle of an agent."""
    if not isinstance(handle, AgentHandle | AsyncAgentHandle):
        raise InvalidRequest("handle", 'an agent of a store: store.agent("helper")')


async def call_handle(
    method: Callable[P, R] | Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Calls a method of a handle: awaits it, or runs it in a thread if it blocks."""
    if isinstance(getattr(method, "__self__", None), AsyncHandle | AsyncAgentHandle):
        return await cast("Callable[P, Coroutine[Any, Any, R]]", method)(*args, **kwargs)
    return cast(R, await asyncio.to_thread(method, *args, **kwargs))


def write_all(
    store: Store, operations: Sequence[BatchOperation], *, conditions: Sequence[BatchOperation] = ()
) -> None:
    """Writes in one transaction, or in several if there is too much for one.

    `conditions`: operations that are added to each transaction, so that it fails if one of them does.
    """
    if not operations:
        return
    size = MAX_BATCH - len(conditions)
    if len(operations) > size:
        for start in range(0, len(operations), size):
            write_all(store, operations[start : start + size], conditions=conditions)
        return
    try:
        match [*conditions, *operations]:
            case [Put() as put]:  # faster than a batch of one
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
        half = len(operations) // 2  # too many bytes for one request
        write_all(store, operations[:half], conditions=conditions)
        write_all(store, operations[half:], conditions=conditions)


def read_all(store: Store, gets: Sequence[Get]) -> list[Memory | None]:
    """The memories at these keys, in as many requests as necessary."""
    memories: list[Any] = []
    for start in range(0, len(gets), MAX_BATCH):
        batch, cursor = gets[start : start + MAX_BATCH], None
        while True:
            page = store.batch(batch, after_cursor=cursor)
            memories += page
            if (cursor := page.after_cursor) is None:
                break
    return memories


def search_all(
    store: Store, prefix: tuple[str, ...], *, limit: float = math.inf, **options: Any
) -> Iterator[Memory]:
    """All hits of a search below a prefix, page by page.

    Raises PermissionDenied if a policy redirects the search elsewhere: an adapter may delete the hits.
    """
    offset, count, cursor = options.pop("offset", 0), 0, None
    while count < limit:
        start = {"offset": offset + count} if cursor is None else {"after_cursor": cursor}
        page_size = int(min(PAGE_SIZE, limit - count))
        page: SearchResults = store.search(prefix, limit=page_size, **start, **options)
        if page.namespace_prefix is not None and page.namespace_prefix[: len(prefix)] != prefix:
            raise PermissionDenied(f"the policy does not let you look below {str(Namespace(prefix))!r}")
        yield from (memory for memory in page if memory.namespace[: len(prefix)] == prefix)
        count, cursor = count + len(page), page.after_cursor
        has_query = options.get("query") is not None
        is_ranked = has_query and (len(page) == page_size or page.next_offset is not None)
        if cursor is None and not is_ranked:
            return
