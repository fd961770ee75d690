"""Every way to have a store, as one: in a file and at a URL, called and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from alcove import Alcove, AsyncAlcove, Store
from alcove.client.remote import Remote
from tests.support.concurrent_workers import QUIET

WAYS = ("file", "url", "async file", "async url")


class Awaited:
    """A handle whose methods are awaited, called as if they were not: each call runs the loop to its end."""

    def __init__(self, handle: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = handle
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._handle, name)
        if name in ("admin", "principal"):
            return Awaited(found, self._loop) if name == "admin" else found

        def call(*args: Any, **named: Any) -> Any:
            result = found(*args, **named)
            if isinstance(result, Coroutine):
                return self._loop.run_until_complete(result)
            if isinstance(result, AsyncIterator):
                return self._pieces(result)
            return Awaited(result, self._loop)

        return call

    def _pieces(self, pieces: AsyncIterator[Any]) -> Iterator[Any]:
        end = object()
        try:
            while (piece := self._loop.run_until_complete(anext(pieces, end))) is not end:
                yield piece
        finally:
            self._loop.run_until_complete(pieces.aclose())  # type: ignore[attr-defined]


def opened(way: str, path: Path, url: Callable[[], str], **options: Any) -> Store:
    """A store, had in this way; options are those of a URL."""
    at = str(path) if way.endswith("file") else url()
    if way == "file":
        return Alcove(at, settings=QUIET)
    if way == "url":
        return Remote(at, **options)
    loop = asyncio.new_event_loop()
    handle = AsyncAlcove(at, settings=QUIET, **options)
    return Awaited(handle, loop)  # type: ignore[return-value]  # it stands for one, awaited


def closed(store: Store) -> None:
    """Ends a store, and the loop that it was awaited on."""
    store.close()
    if isinstance(store, Awaited):
        store._loop.close()
