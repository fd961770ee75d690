"""Code that waits, written once: blocked threads and an event loop come to the same."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

import httpx
import pytest

from alcove.core.errors import Unavailable
from alcove.core.waiting import Awaiting, Blocking, Waiting, at_once, blocks, blocks_in_turn, in_turn

R = TypeVar("R")
Run = Callable[[Callable[[Waiting], Coroutine[Any, Any, Any]]], Any]


def blocking(work: Callable[[Waiting], Coroutine[Any, Any, R]]) -> R:
    return at_once(work(Blocking()))


def awaited(work: Callable[[Waiting], Coroutine[Any, Any, R]]) -> R:
    return asyncio.run(work(Awaiting()))


both = pytest.mark.parametrize("run", [blocking, awaited])


class Steps:
    """An object with methods of either form."""

    def __init__(self, waiting: Waiting) -> None:
        self.waiting, self.ended = waiting, list[str]()

    @blocks
    async def added(self, one: int, *, other: int = 1) -> int:
        """Adds."""
        await self.waiting.sleep(0.0)
        return await self.waiting.run(lambda: one + other)

    @blocks_in_turn
    async def counted(self, number: int) -> AsyncGenerator[int, None]:
        """Counts."""
        try:
            for n in range(number):
                await self.waiting.sleep(0.0)
                yield n
        except GeneratorExit:
            self.ended.append("closed")
            raise
        finally:
            await self.waiting.run(lambda: self.ended.append("ended"))


# One thing after another


@both
def test_a_coroutine_comes_to_the_same_blocked_and_awaited(run: Run) -> None:
    async def inner(waiting: Waiting, n: int) -> int:
        await waiting.sleep(0.001)
        return await waiting.run(lambda: n * n)

    async def work(waiting: Waiting) -> list[int]:
        first = await inner(waiting, 2)
        return [first, *await waiting.together([inner(waiting, n) for n in range(20)])]

    assert run(work) == [4, *(n * n for n in range(20))]


@both
def test_an_error_passes_through(run: Run) -> None:
    def wrong() -> None:
        raise KeyError("no")

    async def work(waiting: Waiting) -> None:
        await waiting.sleep(0.0)
        await waiting.run(wrong)

    with pytest.raises(KeyError):
        run(work)


def test_what_should_block_but_awaits_is_refused() -> None:
    with pytest.raises(AssertionError, match="is awaited"):
        at_once(asyncio.sleep(0))


def test_a_method_blocks_and_its_other_form_is_awaited() -> None:
    assert Steps(Blocking()).added(1, other=2) == 3
    assert asyncio.run(Steps.added.awaited(Steps(Awaiting()), 1, other=2)) == 3  # type: ignore[attr-defined]
    assert (Steps.added.__name__, Steps.added.__doc__) == ("added", "Adds.")


# Piece by piece


def test_pieces_come_one_by_one_blocked_and_awaited() -> None:
    steps = Steps(Blocking())
    pieces = steps.counted(3)
    assert (next(pieces), steps.ended) == (0, [])
    assert ([*pieces], steps.ended) == ([1, 2], ["ended"])

    async def all_of(other: Steps) -> list[int]:
        return [each async for each in Steps.counted.awaited(other, 3)]  # type: ignore[attr-defined]

    assert asyncio.run(all_of(other := Steps(Awaiting()))) == [0, 1, 2]
    assert other.ended == ["ended"]
    assert (Steps.counted.__name__, Steps.counted.__doc__) == ("counted", "Counts.")


def test_pieces_that_are_closed_early_close_what_makes_them() -> None:
    steps = Steps(Blocking())
    pieces: Any = steps.counted(3)
    assert next(pieces) == 0
    pieces.close()
    assert steps.ended == ["closed", "ended"]
    assert [*pieces] == []


def test_pieces_that_nobody_holds_any_more_close_what_makes_them() -> None:
    steps = Steps(Blocking())
    for n in steps.counted(3):
        assert n == 0
        break
    gc.collect()
    assert steps.ended == ["closed", "ended"]


def test_pieces_that_were_never_asked_for_begin_nothing() -> None:
    steps = Steps(Blocking())
    pieces: Any = steps.counted(3)
    pieces.close()
    gc.collect()
    assert steps.ended == []


def test_an_error_between_pieces_ends_them() -> None:
    ended = list[str]()

    async def broken() -> AsyncGenerator[int, None]:
        try:
            yield 1
            raise KeyError("no")
        finally:
            ended.append("ended")

    pieces = in_turn(broken())
    assert next(pieces) == 1
    with pytest.raises(KeyError):
        next(pieces)
    assert ended == ["ended"]
    assert [*pieces] == []


def test_pieces_within_pieces_are_closed_from_the_inside_out() -> None:
    ended = list[str]()

    async def inner() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            ended.append("inner")

    async def outer() -> AsyncGenerator[int, None]:
        try:
            async with aclosing(inner()) as pieces:
                async for each in pieces:
                    yield each
        finally:
            ended.append("outer")

    pieces: Any = in_turn(outer())
    assert next(pieces) == 1
    pieces.close()
    assert ended == ["inner", "outer"]


# At once


@both
def test_what_is_done_together_is_begun_at_once_and_given_in_order(run: Run) -> None:
    everybody = threading.Barrier(5)

    async def one(waiting: Waiting, n: int) -> int:
        await waiting.run(lambda: everybody.wait(60))
        return n

    async def work(waiting: Waiting) -> list[int]:
        assert await waiting.together([]) == []
        return await waiting.together([one(waiting, n) for n in range(5)])

    assert run(work) == [0, 1, 2, 3, 4]


@both
def test_an_error_of_one_is_told_once_all_have_begun(run: Run) -> None:
    begun = list[int]()

    async def one(n: int) -> int:
        begun.append(n)
        return 1 // n

    async def work(waiting: Waiting) -> list[int]:
        return await waiting.together([one(n) for n in range(20)])

    with pytest.raises(ZeroDivisionError):
        run(work)
    assert sorted(begun) == [*range(20)]


@both
def test_only_so_many_have_a_place_at_once(run: Run) -> None:
    inside, seen, full = list[int](), list[int](), threading.Barrier(3)

    async def work(waiting: Waiting) -> None:
        places = waiting.places(3)

        async def one(n: int) -> None:
            async with waiting.inside(places, 60):  # type: ignore[arg-type]
                inside.append(n)
                seen.append(len(inside))
                await waiting.run(lambda: full.wait(60))  # three are inside, or nobody goes on
                inside.remove(n)

        await waiting.together([one(n) for n in range(12)])

    run(work)
    assert (len(seen), max(seen)) == (12, 3)


@both
def test_a_place_is_given_back_after_an_error(run: Run) -> None:
    async def work(waiting: Waiting) -> str:
        places = waiting.places(1)
        with pytest.raises(KeyError):
            async with waiting.inside(places, 60):  # type: ignore[arg-type]
                raise KeyError("no")
        async with waiting.inside(places, 60):  # type: ignore[arg-type]
            return "in"

    assert run(work) == "in"


@both
def test_a_place_is_waited_for_only_so_long(run: Run) -> None:
    async def work(waiting: Waiting) -> str:
        places = waiting.places(1)
        async with waiting.inside(places, 60):  # type: ignore[arg-type]
            with pytest.raises(Unavailable):
                async with waiting.inside(places, 0.001):  # type: ignore[arg-type]
                    raise AssertionError("two are inside")
        async with waiting.inside(places, 0.001):  # type: ignore[arg-type]
            return "in"

    assert run(work) == "in"


# What HTTP clients have in two forms


def _client(waiting: Waiting) -> Any:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"<" + request.read() + b">")

    async def answer_later(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"<" + await request.aread() + b">")

    if isinstance(waiting, Awaiting):
        return httpx.AsyncClient(transport=httpx.MockTransport(answer_later))
    return httpx.Client(transport=httpx.MockTransport(answer))


@both
def test_a_request_is_sent_and_read_as_it_comes(run: Run) -> None:
    def body() -> Iterator[bytes]:
        yield from (b"one ", b"two")

    async def work(waiting: Waiting) -> bytes:
        client, read = _client(waiting), b""
        async with waiting.sent(client.stream("POST", "http://h/", content=waiting.body(body()))) as response:
            async for part in waiting.bytes_of(response):
                read += part
        whole = await waiting.given(client.post("http://h/", content=b"three"))
        await waiting.close(client)
        assert client.is_closed
        return read + whole.content  # type: ignore[no-any-return]

    assert run(work) == b"<one two><three>"
