"""Runs blocking calls and iterators in threads, for event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import Generic, TypeVar

from alcove.core import cancellation
from alcove.core.cancellation import Cancellation
from alcove.core.errors import Unavailable

T = TypeVar("T")
MAX_ITEMS_AHEAD = 16
"""Items that an iterator's thread produces before they are taken."""


class ThreadIterator(Generic[T]):
    """Iterates in a thread for an event loop, which takes the items.

    The thread produces at most `max_ahead` items before they are taken. It is cancelled when the consumer
    stops iterating.
    """

    def __init__(self, make: Callable[[], Iterator[T]], *, max_ahead: int = MAX_ITEMS_AHEAD) -> None:
        """`make`: makes the iterator; the thread calls it, and takes every step of the iterator."""
        self._make = make
        self._work = Cancellation()
        self._loop = asyncio.get_running_loop()
        self._items = deque[T]()
        self._room = threading.Semaphore(max_ahead)
        self._news = asyncio.Event()
        self._is_waiting = self._has_ended = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Produces the items; the thread's work."""
        try:
            self._work.run(self._produce)
        except BaseException as error:
            self._error = error
        self._has_ended = True
        self._notify()

    def _produce(self) -> None:
        items = self._make()
        try:
            with cancellation.on_cancel(self._room.release):
                for item in items:
                    self._room.acquire()
                    cancellation.check()
                    self._items.append(item)
                    if self._is_waiting:
                        self._notify()
        finally:
            if isinstance(items, Generator):
                items.close()

    def _notify(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(self._news.set)

    async def items(self) -> AsyncGenerator[T, None]:
        """Yields the items as they come; raises what the iterator raised."""
        try:
            while True:
                self._news.clear()
                self._is_waiting = True
                has_ended = self._has_ended
                while self._items:
                    self._is_waiting = False
                    yield self._items.popleft()
                    self._room.release()
                if has_ended:
                    break
                if self._is_waiting:
                    await self._news.wait()
        finally:
            self._work.cancel()
        if self._error:
            raise self._error


class CallThreads:
    """Runs blocking calls for event loops, a limited number at once; several loops may share it."""

    def __init__(self, max_calls: int, name: str) -> None:
        self._name = name
        self._threads = ThreadPoolExecutor(max_calls, thread_name_prefix=name)

    async def run(self, call: Callable[[], T]) -> T:
        """Runs a call in a thread; cancels it if the caller is cancelled."""
        work = Cancellation()
        try:
            result = asyncio.get_running_loop().run_in_executor(self._threads, work.run, call)
        except RuntimeError:  # the threads are shut down
            raise Unavailable("the store has been closed") from None
        try:
            return await result
        except asyncio.CancelledError:
            work.cancel()
            raise

    async def iterate(self, make: Callable[[], Iterator[T]]) -> AsyncGenerator[T, None]:
        """Yields the items of an iterator, which has a thread of its own: it may wait for other calls."""
        iterator = ThreadIterator(make)
        threading.Thread(target=iterator.run, name=f"{self._name}-stream", daemon=True).start()
        async with aclosing(iterator.items()) as items:
            async for item in items:
                yield item

    async def close(self) -> None:
        """Waits for calls in progress; later ones raise Unavailable."""
        await asyncio.to_thread(self._threads.shutdown)
