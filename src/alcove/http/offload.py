"""Waiting without blocking the event loop: a bounded pool for long calls, and a thread that commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from alcove.engine.base import Waited
from alcove.errors import Unavailable
from alcove.records import Result

T = TypeVar("T")


class Offload:
    """Runs calls in a few threads; when too many wait already, it says so instead of queueing more."""

    def __init__(self, *, threads: int, most_waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="alcove-http")
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="alcove-commit")
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
        self._committer.shutdown(wait=True)

    async def settled(self, steps: Generator[Waited, None, list[Result]]) -> list[Result]:
        """What a write answers once a thread has put it on the disk; the loop serves others meanwhile."""
        while True:
            try:
                pending = next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            await _Commit(pending, self._committer)


class _Commit:
    """Awaits one commit."""

    __slots__ = ("_committer", "_done", "_loop", "_pending")

    def __init__(self, pending: Waited, committer: ThreadPoolExecutor) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        self._pending = pending
        self._committer = committer
        pending.attend(self._signal)

    def __await__(self) -> Generator[object, None, None]:
        return self._done.__await__()

    def _signal(self) -> None:
        """Called whenever there is something to do or to know, from any thread."""
        if self._pending.done:
            self._loop.call_soon_threadsafe(self._finish)
        else:
            self._committer.submit(self._lead)

    def _lead(self) -> None:
        if self._pending.settle():
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
