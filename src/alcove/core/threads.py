"""Threads that do blocking work for others: several calls at once, or calls and iterators for event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import aclosing, suppress
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVar

from alcove.core import cancellation
from alcove.core.cancellation import Cancellation
from alcove.core.errors import Unavailable

T = TypeVar("T")
AHEAD = 16
"""Items that an iterator's thread makes before somebody takes them."""


def run_together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Runs calls at once, each in a thread of its own, and returns their results in order.

    Cancelling the caller cancels all of them. An error of one is raised once all have ended.
    """
    results = [Future[T]() for _ in calls]
    for call, result in zip(calls, results, strict=True):  # no executor: the end of a process waits for those
        work = partial(copy_context().run, _complete, call, result)
        threading.Thread(target=work, name="alcove-together", daemon=True).start()
    wait(results)
    return [each.result() for each in results]


def _complete(call: Callable[[], T], result: Future[T]) -> None:
    try:
        result.set_result(call())
    except BaseException as error:
        result.set_exception(error)


class ThreadIterator(Generic[T]):
    """Iterates in a thread for an event loop, which takes the items.

    The thread makes at most `ahead` items before they are taken. It is cancelled when the taker leaves.
    """

    def __init__(self, make: Callable[[], Iterator[T]], *, ahead: int = AHEAD) -> None:
        """`make`: makes the iterator; it is called in the thread, and so is every step of it."""
        self._make = make
        self._work = Cancellation()
        self._loop = asyncio.get_running_loop()
        self._items = deque[T]()
        self._room = threading.Semaphore(ahead)
        self._news = asyncio.Event()
        self._is_waiting = self._has_ended = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Makes the items; the thread's work."""
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
        """The items as they come; raises what the iterator raised."""
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
    """Runs blocking calls for event loops, a number of them at once; threads and loops share it."""

    def __init__(self, number: int, name: str) -> None:
        self._name = name
        self._threads = ThreadPoolExecutor(number, thread_name_prefix=name)

    async def run(self, call: Callable[[], T]) -> T:
        """Runs a call in a thread; it is cancelled when its caller leaves."""
        work = Cancellation()
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, work.run, call)
        except RuntimeError:  # there are no threads any more
            raise Unavailable("the store has been closed") from None
        try:
            return await running
        except asyncio.CancelledError:
            work.cancel()
            raise

    async def iterate(self, make: Callable[[], Iterator[T]]) -> AsyncGenerator[T, None]:
        """Gives the items of an iterator, which has a thread of its own: it may wait for other calls."""
        iterator = ThreadIterator(make)
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"{self._name}-stream")
        thread.submit(iterator.run)
        thread.shutdown(wait=False)
        async with aclosing(iterator.items()) as items:
            async for item in items:
                yield item

    async def close(self) -> None:
        """Waits for calls in progress; later ones raise Unavailable."""
        await asyncio.to_thread(self._threads.shutdown)
