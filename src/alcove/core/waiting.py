"""Code that waits for others, written once: an event loop awaits it, a thread is blocked by it.

It is written as coroutines which await nothing but the methods of a `Waiting`. Those of `Awaiting` leave the
thread to others meanwhile. Those of `Blocking` block, so that `at_once` and `in_turn` can run such a
coroutine to its end with no event loop at all.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from alcove.core.errors import Unavailable

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
R = TypeVar("R")


class Awaiting:
    """Waits on an event loop."""

    def __init__(
        self,
        run: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]] = asyncio.to_thread,
        places: Callable[[int], AbstractAsyncContextManager[None]] = asyncio.Semaphore,
    ) -> None:
        """`run`: does what takes long, in another thread. `places`: makes what lets so many in at once."""
        self._run, self._places = run, places

    sleep = staticmethod(asyncio.sleep)

    async def run(self, call: Callable[[], R]) -> R:
        """What a call that takes some time gives."""
        return await self._run(call)  # type: ignore[no-any-return]

    async def together(self, work: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
        """What each of these gives, all of them begun at once."""
        return [*await asyncio.gather(*work)]

    def places(self, number: int) -> AbstractAsyncContextManager[None]:
        """So many may be inside at once, and others wait."""
        return self._places(number)

    @asynccontextmanager
    async def inside(self, places: AbstractAsyncContextManager[None], seconds: float) -> AsyncIterator[None]:
        """One of these places, waited for so long at most."""
        try:
            async with asyncio.timeout(seconds):
                await places.__aenter__()
        except TimeoutError:
            raise _full() from None
        try:
            yield
        finally:
            await places.__aexit__(None, None, None)

    # What httpx and the libraries that are built on it have in two forms

    def sent(self, request: AbstractAsyncContextManager[R]) -> AbstractAsyncContextManager[R]:
        """A request that is under way as long as its answer is read."""
        return request

    async def given(self, answer: Coroutine[Any, Any, R]) -> R:
        """What a call of such a library gives."""
        return await answer

    def each(self, pieces: AsyncIterator[R]) -> AsyncIterator[R]:
        """The pieces of an answer."""
        return pieces

    def bytes_of(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The body of an answer, as it comes."""
        return response.aiter_bytes()

    async def body(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """The body of a request, which may have to be read from a disk."""
        while piece := await asyncio.to_thread(next, pieces, b""):
            yield piece

    async def close(self, client: httpx.AsyncClient) -> None:
        await client.aclose()


class Blocking:
    """The same, in a thread that waits itself."""

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def run(self, call: Callable[[], R]) -> R:
        return call()

    async def together(self, work: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
        done: list[Future[R]] = [Future() for _ in work]
        for part, result in zip(work, done, strict=True):  # no pool: the end of a process would wait for it
            threading.Thread(target=_finish, args=(part, result), name="alcove-together", daemon=True).start()
        wait(done)
        return [each.result() for each in done]

    def places(self, number: int) -> threading.Semaphore:
        return threading.Semaphore(number)

    @asynccontextmanager
    async def inside(self, places: threading.Semaphore, seconds: float) -> AsyncIterator[None]:
        if not places.acquire(timeout=seconds):
            raise _full()
        try:
            yield
        finally:
            places.release()

    @asynccontextmanager
    async def sent(self, request: Any) -> AsyncIterator[Any]:
        with request as response:
            yield response

    async def given(self, answer: R) -> R:
        return answer

    async def each(self, pieces: Iterator[R]) -> AsyncIterator[R]:
        for piece in pieces:
            yield piece

    def bytes_of(self, response: httpx.Response) -> AsyncIterator[bytes]:
        return self.each(response.iter_bytes())

    def body(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        return pieces

    async def close(self, client: httpx.Client) -> None:
        client.close()


Waiting: TypeAlias = Awaiting | Blocking


def _full() -> Unavailable:
    return Unavailable("too much is under way; try again in a moment")


def _finish(work: Coroutine[Any, Any, R], result: Future[R]) -> None:
    try:
        result.set_result(at_once(work))
    except BaseException as error:
        result.set_exception(error)


def at_once(work: Coroutine[Any, Any, R]) -> R:
    """What a coroutine gives that waits only by `Blocking`."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("what should block is awaited")


def in_turn(pieces: AsyncGenerator[R, None]) -> Iterator[R]:
    """The pieces of an iterator that waits only by `Blocking`; it is closed when they are."""
    try:
        while True:
            yield at_once(pieces.__anext__())
    except StopAsyncIteration:
        return
    finally:
        at_once(pieces.aclose())


def blocks(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """A method that blocks, of an object that waits by `Blocking`; its `awaited` is for an event loop."""

    @wraps(method)
    def blocking(*args: P.args, **named: P.kwargs) -> R:
        return at_once(method(*args, **named))

    blocking.awaited = method  # type: ignore[attr-defined]
    return blocking


def blocks_in_turn(method: Callable[P, AsyncGenerator[R, None]]) -> Callable[P, Iterator[R]]:
    """The same for a method that gives its answer piece by piece."""

    @wraps(method)
    def blocking(*args: P.args, **named: P.kwargs) -> Iterator[R]:
        return in_turn(method(*args, **named))

    blocking.awaited = method  # type: ignore[attr-defined]
    return blocking
