"""Two contenders in turn: a noisy machine slows both down, and their ratio stands."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

Contender = Callable[[int], float]
"""Does that many operations and returns the seconds they took."""


class Comparison(Struct, frozen=True):
    """Operations a second of two contenders, and the ratio of the second to the first, round by round."""

    base: float
    ours: float
    ratio: float
    low: float
    high: float
    """The quartiles of the ratio over the rounds."""


def compare(base: Contender, ours: Contender, *, base_count: int, count: int, rounds: int) -> Comparison:
    """Alternates the two, with a first round that is not counted; medians over the rounds."""
    base(base_count), ours(count)
    rates = []
    for turn in range(rounds):  # who goes first changes, so that neither always follows the other
        if turn % 2:
            mine, theirs = count / ours(count), base_count / base(base_count)
        else:
            theirs, mine = base_count / base(base_count), count / ours(count)
        rates.append((theirs, mine))
    ratios = [mine / theirs for theirs, mine in rates]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Comparison(
        base=statistics.median(theirs for theirs, _ in rates),
        ours=statistics.median(mine for _, mine in rates),
        ratio=middle,
        low=low,
        high=high,
    )


def timed(work: Callable[[int], object], count: int) -> float:
    """The seconds that calls with 0, 1, 2 … take on this thread."""
    start = time.perf_counter()
    for number in range(count):
        work(number)
    return time.perf_counter() - start


class Crew:
    """Threads that stay, as a server's do: what a thread sets up once is not paid for in every round."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size)

    def timed(self, work: Callable[[int, int], object], count: int) -> float:
        """The seconds until every member has done its share of `count` calls `work(member, number)`."""
        gate = threading.Barrier(self.size + 1)

        def share(member: int) -> None:
            gate.wait()
            for number in range(count // self.size):
                work(member, number)

        shares = [self._pool.submit(share, member) for member in range(self.size)]
        gate.wait()
        start = time.perf_counter()
        for done in shares:
            done.result()
        return time.perf_counter() - start

    def close(self) -> None:
        self._pool.shutdown()
