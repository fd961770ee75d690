"""What one request, one user and the whole server may take: places, bytes, threads, requests a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
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

_MOST_BUCKETS = 100_000
_ASKING_AT_ONCE = 4
_WAITING_THREADS = 64
"""Threads of each pool for calls that wait for a writer or for the index: they sleep most of the time."""

T = TypeVar("T")
TakeRequest = Callable[[Principal, float], bool | None]
current_user: ContextVar[str | None] = ContextVar("current_user", default=None)
"""The user whose request the running task answers; None where nobody has said who they are."""


class Reservations(list[tuple[Shares, str | None, int]]):
    """The places that one request holds, of whatever is shared."""

    def take(self, shares: Shares, user: str | None, places: int = 1) -> None:
        """Takes places for this request, or refuses it."""
        if not shares.take(user, places):
            raise Unavailable("more is under way than you or the server may have; try again in a moment")
        self.append((shares, user, places))

    def give_back(self) -> None:
        while self:
            shares, user, places = self.pop()
            shares.give(user, places)


class RateLimiter:
    """A bucket of requests for each principal, filled at the rate.

    All workers and nodes share it where there is a session store; while that is away, each has its own.
    """

    def __init__(self, per_second: float, shared: TakeRequest | None) -> None:
        """`shared`: takes one from what is shared; None where that is not to be had now."""
        self._per_second, self._shared = per_second, shared
        self._asking = ThreadPoolExecutor(_ASKING_AT_ONCE, thread_name_prefix="alcove-rate")
        self._buckets: dict[tuple[str, str | None], tuple[float, float]] = {}

    async def take(self, principal: Principal) -> None:
        """Takes one request out of the principal's bucket, or refuses it."""
        allowed = None
        if self._shared:
            asked = partial(self._shared, principal, self._per_second)
            allowed = await asyncio.get_running_loop().run_in_executor(self._asking, asked)
        if not (self._take_own(principal) if allowed is None else allowed):
            raise RateLimited(f"more than {self._per_second:g} requests a second")

    def _take_own(self, principal: Principal) -> bool:
        now, most = time.monotonic(), max(1.0, self._per_second)
        who = principal.user_id, principal.client_id
        left, since = self._buckets.get(who, (most, now))
        left = min(most, left + (now - since) * self._per_second)
        if left < 1:
            return False
        if len(self._buckets) >= _MOST_BUCKETS:
            self._buckets.clear()
        self._buckets[who] = left - 1, now
        return True


class TimeLimit:
    """Bounds how long each of many takes, with one timer for all: one for each is a tenth of a get."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends: dict[asyncio.Task[Any], float] = {}
        """When each must be done, the next first."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, work: Awaitable[T]) -> T:
        """What the work gives; it is cancelled where it takes longer, and a `TimeoutError` says so."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._ends[task] = loop.time() + self._seconds
        if self._loop is not loop:
            self._loop = loop
            self._cancel_late(loop)
        try:
            return await work
        except asyncio.CancelledError:
            if task in self._ends or task.uncancel():  # somebody else has cancelled it, too
                raise
            raise TimeoutError from None
        finally:
            self._ends.pop(task, None)

    def _cancel_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancels what should have been done by now, and comes back when the next should."""
        while self._ends:
            task, end = next(iter(self._ends.items()))
            if end > loop.time():
                loop.call_at(end, self._cancel_late, loop)
                return
            del self._ends[task]
            task.cancel()
        self._loop = None


class Queue:
    """Places for tasks, of which no user ever has all; users who wait for one get it in turn."""

    def __init__(self, places: int) -> None:
        self._queue = FairQueue[asyncio.Future[None]](places)

    async def take(self, user: str | None) -> None:
        """Waits until this user may have a place."""
        turn = asyncio.get_running_loop().create_future()
        if not self._queue.enter(user, turn):
            try:
                await turn
            except asyncio.CancelledError:
                self._leave(user, turn)
                raise

    def give(self, user: str | None) -> None:
        """Gives a place back, and lets the next user in."""
        self._leave(user)

    def _leave(self, user: str | None, turn: asyncio.Future[None] | None = None) -> None:
        next_turn = self._queue.leave(user, turn)
        if next_turn and not next_turn.done():  # a cancelled task gives its place back itself
            next_turn.set_result(None)

    async def __aenter__(self) -> None:
        await self.take(current_user.get())

    async def __aexit__(self, *_: object) -> None:
        self.give(current_user.get())


class ThreadPool:
    """Runs calls in a few threads, of which no user ever has all.

    A call whose caller is gone keeps its thread until it ends. With `stops` it is cancelled, and ends at its
    next step; without, it is finished.
    """

    def __init__(self, *, threads: int, stops: bool, patience: float | None = None) -> None:
        """`patience`: seconds that a call waits for a thread before it is refused; None for no limit."""
        self._patience = patience
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="alcove-http")
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="alcove-commit")
        self._threads = Queue(threads)
        self._stops = stops
        self._waiters = ThreadPoolExecutor(_WAITING_THREADS, thread_name_prefix="alcove-waiting")
        self._waiting = Queue(_WAITING_THREADS)

    async def __call__(self, call: Callable[[], T]) -> T:
        return await self._in_thread(self._pool, self._threads, call)

    async def run(self, call: Callable[[], T], *, quick: bool = False) -> T:
        """Runs a call that raises `WouldBlock` before it has any effect, and so can be made again.

        A `quick` one is tried on the event loop first. One that would wait for a writer or for the index is
        made again in a thread from which it keeps nobody.
        """
        try:
            if quick:
                with suppress(WouldTakeLong):
                    return on_event_loop(call)
            return await self(partial(without_waiting, call))
        except WouldWait:
            return await self._in_thread(self._waiters, self._waiting, call)

    async def iterate(self, make: Callable[[], Iterator[T]]) -> AsyncGenerator[T, None]:
        """Gives the items of an iterator that runs in a thread; it is cancelled when the taker leaves."""
        iterator = ThreadIterator(make)
        await self._submit(self._pool, self._threads, iterator.run)
        return iterator.items()

    async def _in_thread(self, pool: ThreadPoolExecutor, places: Queue, call: Callable[[], T]) -> T:
        work = Cancellation()
        running = await self._submit(pool, places, partial(work.run, call))
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if self._stops:
                work.cancel()
            raise

    async def _submit(self, pool: ThreadPoolExecutor, places: Queue, call: Callable[[], T]) -> Future[T]:
        """Starts a call as soon as the user may have a thread."""
        user, loop = current_user.get(), asyncio.get_running_loop()
        if self._patience is None:
            await places.take(user)
        else:
            try:
                async with asyncio.timeout(self._patience):
                    await places.take(user)
            except TimeoutError:
                raise Unavailable("too many calls are in progress; try again in a moment") from None

        def ended(_: Future[T]) -> None:
            """Gives the thread to the next, which may be later than its caller left."""
            with suppress(RuntimeError):  # the server has stopped meanwhile
                loop.call_soon_threadsafe(places.give, user)

        running = pool.submit(call)
        running.add_done_callback(ended)
        return running

    async def committed(self, pending: Submission) -> None:
        """Waits for a commit, in which the committing thread takes the lead where nobody else does."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def lead() -> None:
            if pending.try_commit():
                loop.call_soon_threadsafe(_set, done)

        def signal() -> None:
            """Called from any thread, whenever the commit is done or somebody must lead."""
            if pending.outcome is not None:
                loop.call_soon_threadsafe(_set, done)
            else:
                self._committer.submit(lead)

        pending.watch(signal)
        await done

    def close(self) -> None:
        for pool in (self._pool, self._waiters, self._committer):
            pool.shutdown(wait=True)


def _set(done: asyncio.Future[None]) -> None:
    """Ends the waiting for something, unless it was told before or nobody waits any more."""
    if not done.done():
        done.set_result(None)
