"""Limits of one request, of one user and of the whole server: places, bytes, threads, requests per second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from alcove.core.cancellation import Cancellation
from alcove.core.errors import RateLimited, Unavailable
from alcove.core.event_loop import ThreadIterator
from alcove.core.fair_shares import FairQueue, Shares
from alcove.core.principal import Principal
from alcove.core.threads import WouldTakeLong, WouldWait, on_event_loop, without_waiting
from alcove.engine.commit import Submission

_MAX_BUCKETS = 100_000
_MAX_SHARED_CALLS = 4
"""Calls to the shared counter of requests at the same time."""
_WAITING_THREADS = 64
"""Threads of each pool for calls that wait for a writer or for the index; such threads mostly sleep."""

T = TypeVar("T")
TakeRequest = Callable[[Principal, float], bool | None]
current_user: ContextVar[str | None] = ContextVar("current_user", default=None)
"""The user whose request the running task answers; None before authentication and for public operations."""


class Reservations(list[tuple[Shares, str | None, int]]):
    """The places that one request holds, of any shares."""

    def take(self, shares: Shares, user: str | None, places: int = 1) -> None:
        """Takes places for this request; raises `Unavailable` if the user may not have them now."""
        if not shares.take(user, places):
            raise Unavailable("you or the server have too many requests in progress; try again in a moment")
        self.append((shares, user, places))

    def give_back(self) -> None:
        """Gives every place back."""
        while self:
            shares, user, places = self.pop()
            shares.give(user, places)


class RateLimiter:
    """Limits the requests per second of each principal, with one token bucket each.

    All workers and nodes share the buckets if there is a session store; while that is away, each has its own.
    """

    def __init__(self, per_second: float, take_shared: TakeRequest | None) -> None:
        """`take_shared` takes a request from the shared bucket; it returns None if that is out of reach."""
        self._per_second, self._take_shared = per_second, take_shared
        self._threads = ThreadPoolExecutor(_MAX_SHARED_CALLS, thread_name_prefix="alcove-rate")
        self._buckets: dict[tuple[str, str | None], tuple[float, float]] = {}
        """By principal: the requests left, and when they were counted."""

    async def take(self, principal: Principal) -> None:
        """Takes one request out of the principal's bucket; raises `RateLimited` if it is empty."""
        is_allowed = None
        if self._take_shared:
            is_allowed = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._take_shared, principal, self._per_second
            )
        if not (self._take_local(principal) if is_allowed is None else is_allowed):
            raise RateLimited(f"more than {self._per_second:g} requests a second")

    def _take_local(self, principal: Principal) -> bool:
        now, capacity = time.monotonic(), max(1.0, self._per_second)
        key = principal.user_id, principal.client_id
        tokens, counted_at = self._buckets.get(key, (capacity, now))
        tokens = min(capacity, tokens + (now - counted_at) * self._per_second)
        if tokens < 1:
            return False
        if len(self._buckets) >= _MAX_BUCKETS:
            self._buckets.clear()
        self._buckets[key] = tokens - 1, now
        return True


class TimeLimit:
    """Limits the time of many tasks with one timer: a timer for each would cost a tenth of a GET."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadlines: dict[asyncio.Task[Any], float] = {}
        """By task, the earliest first."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop whose timer is set."""

    async def __call__(self, work: Awaitable[T]) -> T:
        """Awaits the work and returns its result; cancels it and raises `TimeoutError` if it takes longer."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._deadlines[task] = loop.time() + self._seconds
        if self._loop is not loop:
            self._loop = loop
            self._cancel_late(loop)
        try:
            return await work
        except asyncio.CancelledError:
            if task in self._deadlines or task.uncancel():  # somebody else has cancelled it, too
                raise
            raise TimeoutError from None
        finally:
            self._deadlines.pop(task, None)

    def _cancel_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancels every task whose deadline has passed, and sets the timer to the next deadline."""
        while self._deadlines:
            task, deadline = next(iter(self._deadlines.items()))
            if deadline > loop.time():
                loop.call_at(deadline, self._cancel_late, loop)
                return
            del self._deadlines[task]
            task.cancel()
        self._loop = None


class Queue:
    """Places for tasks, of which no user ever has all; users who wait for one take turns."""

    def __init__(self, places: int) -> None:
        self._queue = FairQueue[asyncio.Future[None]](places)

    async def take(self, user: str | None) -> None:
        """Waits until this user may have a place."""
        turn = asyncio.get_running_loop().create_future()
        if not self._queue.enter(user, turn):
            try:
                await turn
            except asyncio.CancelledError:
                self.give(user, turn)
                raise

    def give(self, user: str | None, turn: asyncio.Future[None] | None = None) -> None:
        """Gives a place back, or a turn that still waits for one, and lets the next user in."""
        next_turn = self._queue.leave(user, turn)
        if next_turn and not next_turn.done():  # a cancelled task gives its place back itself
            next_turn.set_result(None)


class ThreadPool:
    """Runs calls in a few threads, of which no user ever has all.

    A call whose caller is gone keeps its thread until it ends. With `stops` it is cancelled, and ends at its
    next check for that; without, it is finished.
    """

    def __init__(self, *, threads: int, stops: bool, max_wait_seconds: float | None = None) -> None:
        """`max_wait_seconds`: how long a call waits for a thread before it is refused; None for no limit."""
        self._max_wait_seconds = max_wait_seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="alcove-http")
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="alcove-commit")
        self._threads = Queue(threads)
        self._stops = stops
        self._waiting_pool = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix="alcove-waiting")
        self._waiting_threads = Queue(_WAITING_THREADS)

    async def __call__(self, call: Callable[[], T], *, waits: bool = False) -> T:
        """Runs a call in a thread; `waits`: in one of those that may wait for a writer or for the index."""
        work = Cancellation()
        running = await self._submit(partial(work.run, call), waits=waits)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if self._stops:
                work.cancel()
            raise

    async def run(self, call: Callable[[], T], *, quick: bool = False) -> T:
        """Runs a call that raises `WouldBlock` before it has any effect, and so can be made again.

        A `quick` call is first tried on the event loop. A call that would wait for a writer or for the index
        is made again in a thread that nobody else needs.
        """
        try:
            if quick:
                with suppress(WouldTakeLong):
                    return on_event_loop(call)
            return await self(partial(without_waiting, call))
        except WouldWait:
            return await self(call, waits=True)

    async def iterate(self, make: Callable[[], Iterator[T]]) -> AsyncGenerator[T, None]:
        """Yields the items of an iterator that runs in a thread; it is cancelled when the taker leaves."""
        iterator = ThreadIterator(make)
        await self._submit(iterator.run)
        async with aclosing(iterator.items()) as items:
            async for item in items:
                yield item

    async def _submit(self, call: Callable[[], T], *, waits: bool = False) -> Future[T]:
        """Starts a call as soon as the user may have a thread."""
        pool = self._waiting_pool if waits else self._pool
        threads = self._waiting_threads if waits else self._threads
        user, loop = current_user.get(), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._max_wait_seconds):
                await threads.take(user)
        except TimeoutError:
            raise Unavailable("too many calls are in progress; try again in a moment") from None

        def release(_: Future[T]) -> None:
            """Gives the thread to the next call, which may be long after the caller of this one left."""
            with suppress(RuntimeError):  # the event loop is closed, so nobody waits
                loop.call_soon_threadsafe(threads.give, user)

        running = pool.submit(call)
        running.add_done_callback(release)
        return running

    async def committed(self, pending: Submission) -> None:
        """Waits for a commit; the pool's committing thread leads it if no other writer does."""
        loop, is_done = asyncio.get_running_loop(), asyncio.Event()
        wake = partial(loop.call_soon_threadsafe, is_done.set)

        def signal() -> None:
            """Any thread calls this when the commit is done, and when somebody has to lead it."""
            if pending.outcome is not None:
                wake()
            else:
                self._committer.submit(lambda: pending.try_commit() and wake())

        pending.watch(signal)
        await is_done.wait()

    def close(self) -> None:
        for pool in (self._pool, self._waiting_pool, self._committer):
            pool.shutdown(wait=True)
