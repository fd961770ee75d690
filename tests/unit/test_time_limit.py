"""One timer bounds how long each of many requests takes."""

from __future__ import annotations

import asyncio
import time

import pytest

from alcove.server.limits import TimeLimit


async def slept(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def fails() -> None:
    await asyncio.sleep(0)
    raise KeyError("mine")


def test_what_is_done_in_time_gives_its_answer_or_its_error() -> None:
    async def main() -> None:
        limit = TimeLimit(30)
        assert await limit(slept(0)) == 0
        with pytest.raises(KeyError, match="mine"):
            await limit(fails())
        assert not limit._deadlines

    asyncio.run(main())


def test_what_takes_longer_is_cancelled_each_in_its_own_time() -> None:
    async def timed(limit: TimeLimit, seconds: float) -> tuple[bool, float]:
        started = time.monotonic()
        try:
            await limit(slept(seconds))
        except TimeoutError:
            return False, time.monotonic() - started
        return True, time.monotonic() - started

    async def main() -> None:
        limit, asked = TimeLimit(0.3), []
        for seconds in (60, 0, 60, 0.1, 60):
            asked.append(asyncio.create_task(timed(limit, seconds)))
            await asyncio.sleep(0.05)
        ended = await asyncio.gather(*asked)
        assert [in_time for in_time, _ in ended] == [False, True, False, True, False]
        assert all(took >= 0.29 for in_time, took in ended if not in_time)
        assert not limit._deadlines
        assert await timed(limit, 60) >= (False, 0.29)  # a timer that had nothing left to do starts again

    asyncio.run(main())


def test_a_task_goes_on_after_its_time_was_over() -> None:
    async def main() -> float:
        limit = TimeLimit(0.01)
        with pytest.raises(TimeoutError):
            await limit(slept(60))
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return await slept(0.01)

    assert asyncio.run(main()) == 0.01


def test_who_is_cancelled_by_somebody_else_stays_cancelled() -> None:
    async def main() -> None:
        limit = TimeLimit(30)
        task = asyncio.create_task(limit(slept(60)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not limit._deadlines

    asyncio.run(main())


def test_it_serves_another_event_loop_once_the_first_is_gone() -> None:
    limit = TimeLimit(0.05)

    async def late() -> None:
        with pytest.raises(TimeoutError):
            await limit(slept(60))

    asyncio.run(limit(slept(0)))  # it ends before its timer
    asyncio.run(late())
