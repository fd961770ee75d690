"""Places and threads that users share: nobody has all of them, nobody waits behind one who has many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from msgspec import Struct

from alcove import Unavailable
from alcove.api.operation import Operation
from alcove.core.cancellation import Cancelled, check
from alcove.core.fair_shares import Shares
from alcove.core.principal import Principal
from alcove.server.application import Application
from alcove.server.authentication import Headers
from alcove.server.config import ServeConfig
from alcove.server.limits import Reservations, ThreadPool, current_user
from alcove.server.monitoring import AccessLog
from alcove.server.routes import Endpoint, Page, Request
from alcove.server.streams import Stream


def greedy(shares: Shares, user: str) -> int:
    """How many places a user gets who takes all they can."""
    taken = 0
    while shares.take(user):
        taken += 1
    return taken


@pytest.mark.parametrize("places", [2, 3, 8, 1000])
def test_one_alone_gets_most_and_never_all(places: int) -> None:
    shares = Shares(places)
    taken = greedy(shares, "alice")
    assert places / 2 <= taken < places
    assert greedy(shares, "bob") >= 1


def test_of_many_greedy_ones_each_leaves_something_for_the_next() -> None:
    shares = Shares(1000)
    assert [greedy(shares, f"user {n}") > 0 for n in range(5)] == [True] * 5
    assert shares.take("newcomer")


def test_the_only_place_goes_to_whoever_comes_first_and_comes_back() -> None:
    shares = Shares(1)
    assert shares.take("alice")
    assert not shares.take("bob")
    shares.give("alice")
    assert shares.take("bob")


def test_a_request_holds_places_of_several_kinds_until_it_gives_them_back() -> None:
    few, bytes_ = Shares(1), Shares(100)
    held = Reservations()
    held.take(few, "alice")
    held.take(bytes_, "alice", 60)
    with pytest.raises(Unavailable):
        Reservations().take(bytes_, "bob", 41)
    held.give_back()
    assert few.take("bob")
    assert bytes_.take("bob", 100)


class Gate:
    """Calls that run until they are let go, and in which order they began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._open: dict[str, threading.Event] = {}

    def call(self, name: str) -> Callable[[], str]:
        self._open[name] = threading.Event()

        def run() -> str:
            self.began.append(name)
            while not self._open[name].wait(0.001):
                check()
            return name

        return run

    def let_go(self, name: str) -> None:
        self._open[name].set()


def run(main: Callable[[ThreadPool, Gate], Coroutine[Any, Any, None]], *, threads: int, stops: bool) -> None:
    async def running() -> None:
        pool, gate = ThreadPool(threads=threads, stops=stops), Gate()
        try:
            await main(pool, gate)
        finally:
            for name in gate._open:
                gate.let_go(name)
            await asyncio.to_thread(pool.close)

    asyncio.run(running())


def asked(pool: ThreadPool, user: str, call: Callable[[], str]) -> asyncio.Task[str]:
    """A request of a user's, under way."""

    async def request() -> str:
        current_user.set(user)
        return await pool(call)

    return asyncio.create_task(request())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


def test_a_user_with_a_flood_of_calls_leaves_threads_for_others() -> None:
    async def main(pool: ThreadPool, gate: Gate) -> None:
        flood = [asked(pool, "alice", gate.call(f"alice {n}")) for n in range(50)]
        await until(lambda: len(gate.began) == 3)
        bob = asked(pool, "bob", gate.call("bob"))
        await until(lambda: "bob" in gate.began)
        gate.let_go("bob")
        assert await bob == "bob"
        assert len(gate.began) == 4
        for task in flood:
            task.cancel()

    run(main, threads=4, stops=True)


def test_whoever_waits_gets_a_turn_user_by_user() -> None:
    async def main(pool: ThreadPool, gate: Gate) -> None:
        tasks = [asked(pool, "alice", gate.call("alice 0"))]
        await until(lambda: gate.began == ["alice 0"])
        for name in ("alice 1", "alice 2", "bob 1", "carol 1", "bob 2"):
            tasks.append(asked(pool, name.split()[0], gate.call(name)))
            await asyncio.sleep(0)
        for n in range(6):
            await until(lambda n=n: len(gate.began) == n + 1)  # type: ignore[misc]
            gate.let_go(gate.began[-1])
        assert gate.began == ["alice 0", "alice 1", "bob 1", "carol 1", "alice 2", "bob 2"]
        await asyncio.gather(*tasks)

    run(main, threads=1, stops=True)


def test_a_call_whose_caller_is_gone_stops_and_gives_its_thread_to_the_next() -> None:
    async def main(pool: ThreadPool, gate: Gate) -> None:
        gone, waiting = (asked(pool, name, gate.call(name)) for name in ("alice", "bob"))
        await until(lambda: gate.began == ["alice"])
        gone.cancel()
        await until(lambda: gate.began == ["alice", "bob"])  # nobody has let alice's go
        gate.let_go("bob")
        assert await waiting == "bob"

    run(main, threads=1, stops=True)


def test_a_change_whose_caller_is_gone_keeps_its_thread_until_it_is_made() -> None:
    async def main(pool: ThreadPool, gate: Gate) -> None:
        gone = asked(pool, "alice", gate.call("alice"))
        await until(lambda: gate.began == ["alice"])
        gone.cancel()
        waiting = asked(pool, "bob", gate.call("bob"))
        await asyncio.sleep(0.05)
        assert gate.began == ["alice"]
        gate.let_go("alice")
        await until(lambda: gate.began == ["alice", "bob"])
        gate.let_go("bob")
        assert await waiting == "bob"

    run(main, threads=1, stops=False)


def test_who_leaves_while_waiting_is_passed_over() -> None:
    async def main(pool: ThreadPool, gate: Gate) -> None:
        first, second, third, fourth = (
            asked(pool, name.split()[0], gate.call(name)) for name in ("alice", "bob 1", "bob 2", "carol")
        )
        await until(lambda: gate.began == ["alice"])
        second.cancel()
        third.cancel()
        await asyncio.gather(second, third, return_exceptions=True)
        gate.let_go("alice")
        gate.let_go("carol")
        assert [await first, await fourth] == ["alice", "carol"]
        assert gate.began == ["alice", "carol"]

    run(main, threads=1, stops=True)


def test_a_thread_is_not_given_to_one_who_has_just_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bob leaves in the moment in which alice's thread becomes free, and comes back at once."""

    async def main(pool: ThreadPool, gate: Gate) -> None:
        first, second = (asked(pool, name, gate.call(name)) for name in ("alice", "bob"))
        await until(lambda: gate.began == ["alice"])
        give, came_back = pool._threads.give, []

        def leaves(user: str | None, turn: asyncio.Future[None] | None = None) -> None:
            if turn is None:  # alice's thread
                second.cancel()
                came_back.append(asked(pool, "bob", gate.call("bob again")))
            give(user, turn)

        monkeypatch.setattr(pool._threads, "give", leaves)
        gate.let_go("alice")
        assert await first == "alice"
        monkeypatch.undo()
        gate.let_go("bob again")
        assert [await each for each in came_back] == ["bob again"]

    run(main, threads=1, stops=True)


def test_what_a_call_raises_reaches_its_caller() -> None:
    def fail() -> str:
        raise Cancelled

    async def main(pool: ThreadPool, gate: Gate) -> None:
        with pytest.raises(Cancelled):
            await pool(fail)

    run(main, threads=1, stops=True)


# Answers that wait for their readers


async def by_name(headers: Headers) -> Principal:
    return Principal(headers[b"user"].decode())


async def large(_: Request) -> Struct:
    return Page(bytes(100_000), b"text/plain")


async def pieces() -> AsyncIterator[bytes]:
    yield bytes(100_000)


async def large_in_pieces(_: Request) -> Struct:
    return Stream(pieces(), b"text/plain")


class Reader:
    """Somebody who asks for what is at a path, and takes none of it until told to."""

    def __init__(self, app: Any, user: str, path: str) -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": b"",
            "raw_path": path.encode(),
        }
        self.sent: list[dict[str, Any]] = []
        self.takes = asyncio.Event()
        self.answer = asyncio.create_task(
            app({**scope, "headers": [(b"user", user.encode())]}, asyncio.Event().wait, self._send)
        )

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        if message.get("more_body"):
            await self.takes.wait()


@pytest.mark.parametrize("path", ["/whole", "/pieces"])
def test_large_answers_that_nobody_takes_are_bounded_for_each_user(path: str) -> None:
    def waiting(readers: list[Reader]) -> int:
        return sum(not each.answer.done() for each in readers)

    async def read() -> None:
        endpoints = [
            Endpoint(Operation(None, "GET /whole", answer_record=Page), large),
            Endpoint(Operation(None, "GET /pieces", stream_type="text/plain"), large_in_pieces),
        ]
        config = ServeConfig(max_body_bytes=1000)
        pool = ThreadPool(threads=1, stops=True)
        app = Application(endpoints, by_name, config, AccessLog(None), pool)
        app._bodies = Shares(10_000)
        alices = [Reader(app, "alice", path) for _ in range(20)]
        bobs = [Reader(app, "bob", path) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert (waiting(alices), waiting(bobs)) == (8, 1)
        for each in alices + bobs:
            each.takes.set()
        await asyncio.gather(*(each.answer for each in alices + bobs))
        again = Reader(app, "alice", path)
        again.takes.set()
        await again.answer
        assert sum(len(each.get("body", b"")) for each in again.sent) == 100_000
        pool.close()

    asyncio.run(read())
