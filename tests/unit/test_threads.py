"""Threads that work for an event loop or for another thread: order, errors, backpressure and cancellation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from alcove.core import cancellation
from alcove.core.cancellation import Cancellation, Cancelled
from alcove.core.errors import Unavailable
from alcove.core.event_loop import CallThreads, ThreadIterator
from alcove.core.fair_shares import FairSemaphore
from alcove.core.threads import run_together
from tests.support.waiting import PATIENCE, until


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


# Several at once


def test_calls_begin_at_once_and_their_results_come_in_order() -> None:
    everybody = threading.Barrier(5)

    def call(n: int) -> int:
        everybody.wait(PATIENCE)
        return n

    assert run_together([partial(call, n) for n in range(5)]) == [0, 1, 2, 3, 4]
    assert run_together([]) == []


def test_an_error_of_one_call_is_raised_once_all_have_ended() -> None:
    ended = list[int]()

    def call(n: int) -> int:
        try:
            return 1 // n
        finally:
            ended.append(n)

    with pytest.raises(ZeroDivisionError):
        run_together([partial(call, n) for n in range(20)])
    assert sorted(ended) == [*range(20)]


def test_cancelling_the_caller_cancels_all_calls() -> None:
    work, sleeping = Cancellation(), threading.Barrier(4)

    def call() -> None:
        sleeping.wait(PATIENCE)
        cancellation.sleep(PATIENCE)

    def cancel() -> None:
        sleeping.wait(PATIENCE)
        work.cancel()

    in_thread(cancel)
    with pytest.raises(Cancelled):
        work.run(lambda: run_together([call] * 3))


# An iterator for an event loop


class Source:
    """An iterator that counts its items and notices when it is closed."""

    def __init__(self, number: int, error: Exception | None = None) -> None:
        self.made = 0
        self.closed = threading.Event()
        self._number, self._error = number, error

    def __call__(self) -> Iterator[int]:
        try:
            for n in range(self._number):
                self.made += 1
                yield n
            if self._error:
                raise self._error
        finally:
            self.closed.set()


async def take(source: Callable[[], Iterator[int]], number: int = 10**9, ahead: int = 16) -> list[int]:
    iterator = ThreadIterator(source, max_ahead=ahead)
    in_thread(iterator.run)
    items, taken = iterator.items(), list[int]()
    async for item in items:
        taken.append(item)
        if len(taken) == number:
            break
    await items.aclose()
    return taken


@pytest.mark.parametrize("ahead", [1, 2, 16])
def test_all_items_come_in_their_order(ahead: int) -> None:
    source = Source(1000)
    assert asyncio.run(take(source, ahead=ahead)) == [*range(1000)]
    assert source.closed.wait(PATIENCE)


def test_an_error_comes_after_the_items_before_it() -> None:
    source, taken = Source(3, KeyError("no")), list[int]()

    async def main() -> None:
        iterator = ThreadIterator(source)
        in_thread(iterator.run)
        async for item in iterator.items():
            taken.append(item)

    with pytest.raises(KeyError):
        asyncio.run(main())
    assert taken == [0, 1, 2]


def test_only_so_many_items_are_made_before_they_are_taken() -> None:
    source = Source(1000)

    async def main() -> None:
        iterator = ThreadIterator(source, max_ahead=4)
        in_thread(iterator.run)
        items = iterator.items()
        for taken in range(1, 20):
            await anext(items)
            await asyncio.to_thread(until, lambda taken=taken: source.made >= taken + 3)
            assert source.made <= taken + 5
        await items.aclose()
        assert await asyncio.to_thread(source.closed.wait, PATIENCE)

    asyncio.run(main())


def test_a_taker_that_leaves_ends_the_iterator_even_if_it_waits_to_hand_over() -> None:
    source = Source(10**9)
    assert asyncio.run(take(source, 1, ahead=1)) == [0]
    assert source.closed.wait(PATIENCE)


def test_a_taker_that_is_cancelled_wakes_an_iterator_that_sleeps() -> None:
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            yield 1
            cancellation.sleep(PATIENCE)
        finally:
            closed.set()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(take(source), 0.05)

    started = time.monotonic()
    asyncio.run(main())
    assert closed.wait(PATIENCE)
    assert time.monotonic() - started < PATIENCE / 2


# Calls for an event loop


def test_a_call_whose_caller_leaves_is_cancelled_and_later_ones_are_refused_once_closed() -> None:
    ended = threading.Event()

    def call() -> None:
        try:
            cancellation.sleep(PATIENCE)
        finally:
            ended.set()

    async def main() -> None:
        threads = CallThreads(1, "test")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(threads.run(call), 0.05)
        assert await threads.run(ended.is_set)  # the only thread is free again
        await threads.close()
        with pytest.raises(Unavailable, match="closed"):
            await threads.run(ended.is_set)

    asyncio.run(main())


# Places


def test_who_waits_for_a_place_is_let_in_user_by_user() -> None:
    semaphore, order, release = FairSemaphore(1), list[str](), threading.Semaphore(0)

    def call(name: str) -> None:
        with semaphore.place(name[:1], PATIENCE):
            order.append(name)
            release.acquire()

    threads = list[threading.Thread]()
    for number, name in enumerate(("a1", "a2", "a3", "b1", "c1", "b2")):
        threads.append(in_thread(partial(call, name)))
        until(
            partial(lambda n: sum(map(len, semaphore._queue._turns.values())) + len(order) == n, number + 1)
        )
    for _ in threads:
        release.release()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2"]


def test_a_place_that_does_not_come_in_time_or_for_a_cancelled_call_is_not_lost() -> None:
    semaphore, work = FairSemaphore(1), Cancellation()
    with semaphore.place("a", PATIENCE):
        with pytest.raises(Unavailable, match="too many calls"), semaphore.place("b", 0.01):
            raise AssertionError("two are inside")

        def call() -> None:
            with pytest.raises(Cancelled), semaphore.place("b", PATIENCE):
                raise AssertionError("two are inside")

        waiting = in_thread(lambda: work.run(call))
        until(lambda: bool(semaphore._queue._turns))
        work.cancel()
        waiting.join(PATIENCE)
        assert not semaphore._queue._turns
    with semaphore.place("b", 0.01):
        pass


def test_no_user_ever_has_all_places() -> None:
    semaphore = FairSemaphore(5)
    with semaphore.place("a", 0), semaphore.place("a", 0), semaphore.place("a", 0), semaphore.place("a", 0):
        with pytest.raises(Unavailable), semaphore.place("a", 0.01):
            raise AssertionError("one user has all")
        with semaphore.place("b", 0):
            pass


# Cancellation


def test_a_callback_is_called_by_who_cancels_and_never_after_its_block() -> None:
    work, called = Cancellation(), list[str]()

    def block() -> None:
        with cancellation.on_cancel(lambda: called.append("early")):
            pass
        with cancellation.on_cancel(lambda: called.append("now")):
            work.cancel()
        with cancellation.on_cancel(lambda: called.append("late")):
            pass

    work.run(block)
    assert called == ["now", "late"]
    with cancellation.on_cancel(lambda: called.append("nobody")):  # nobody can cancel this thread
        pass
    assert len(called) == 2
