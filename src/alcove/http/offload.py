"""Waiting without blocking the event loop: a bounded pool for long calls, and commits that call back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from alcove.engine.base import Pending
from alcove.errors import Unavailable
from alcove.records import Result

T = TypeVar("T")


class Offload:
    """Runs calls in a few threads; when too many wait already, it says so instead of queueing more."""

    def __init__(self, *, threads: int, most_waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="alcove-http")
        self._room = threads + most_waiting

    async def __call__(self, call: Callable[[], T]) -> T:
        if self._room == 0:
            raise Unavailable("too many requests wait already; try again in a moment")
        self._room -= 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        finally:
            self._room += 1

    def close(self) -> None:
        self._pool.shutdown(wait=True)


async def settled(steps: Generator[Pending, None, list[Result]]) -> list[Result]:
    """What a write answers once it is on the disk.

    The loop itself commits what waits, in its next round, so that every request that came meanwhile
    shares the commit. Only where a thread leads already does it wait to be called.
    """
    while True:
        try:
            pending = next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        await _Commit(pending)


class _Commit:
    """Awaits one commit."""

    __slots__ = ("_done", "_loop", "_pending", "_thread")

    def __init__(self, pending: Pending) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._done = self._loop.create_future()
        self._pending = pending
        pending.attend(self._signal)

    def __await__(self) -> Generator[object, None, None]:
        return self._done.__await__()

    def _signal(self) -> None:
        """Called by whoever led, from any thread."""
        here = threading.get_ident() == self._thread
        (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(self._look)

    def _look(self) -> None:
        if self._pending.settle() and not self._done.done():
            self._done.set_result(None)
