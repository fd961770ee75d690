"""The store under an adapter, which threads and event loops use alike."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from alcove.client import connect
from alcove.client.asynchronous import AsyncAlcove
from alcove.client.store import Store

T = TypeVar("T")
At = Store | str | os.PathLike[str]
"""An open store, or the path of a file, or a URL."""


class Opened:
    """Has a store and its twins for event loops; closes them."""

    def __init__(self, at: At, opening: dict[str, Any]) -> None:
        """`opening`: what `alcove.connect` takes beside a path or a URL."""
        self._store = at if isinstance(at, Store) else connect(at, **opening)
        self._awaited: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncAlcove] = WeakKeyDictionary()
        self._user: str | None = None

    def _twin(self) -> AsyncAlcove:
        """The store for the event loop that runs."""
        loop = asyncio.get_running_loop()
        if loop not in self._awaited:
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


async def given(answer: Coroutine[Any, Any, T] | T) -> T:
    """What a store answers, awaited where it is one for event loops."""
    return await answer if isinstance(answer, Coroutine) else answer
