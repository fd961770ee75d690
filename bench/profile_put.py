"""Where the time of one put goes: `python bench/profile_put.py [--puts 3000] [--threads 16]`.

Three measurements of the same stages:
- in place, one thread: a clock around each stage while real puts run; wall time, so it has the fsync.
- in place, many threads: the CPU clock of the thread, since wall time would be mostly waiting.
- alone: the stage's last call repeated in a tight loop, with warm caches; only for stages without effect.

The cost of the clock itself is measured on an empty function and taken off. "everything else" is the
whole minus the stages: Python between them, the commit queue, and the hand-over between threads.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sample
from alcove import Alcove, checks
from alcove.engine import log
from alcove.engine.sqlite import SqliteEngine
from alcove.policy import Policy
from alcove.service import Memories
from alcove.vault.vault import SubjectKey, Vault

REST = "everything else"
STAGES: dict[str, list[tuple[object, str]]] = {
    "checks": [(checks, "address"), (checks, "value")],
    "policy: authz": [(Policy, "authorise_write")],
    "policy: attributes": [(Policy, "attributes")],
    "sealing": [(Vault, "key"), (SubjectKey, "seal")],
    "answer": [(Memories, "_result")],
}
STATEMENTS = {
    "BEGIN IMMEDIATE": "statement: begin",
    log.SQL["last_moment"]: "statement: last moment",
    log.SQL["newest"]: "statement: newest",
    log.SQL["append"]: "statement: append",
    "COMMIT": "commit (with fsync)",
}
ORDER = [*STAGES, *STATEMENTS.values(), REST]


class Watch:
    """Times wrapped functions; appending to a list is atomic, so any thread may report."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.spent: list[tuple[str, int]] = []
        self.last: dict[str, dict[str, Callable[[], object]]] = {}
        self._clock = clock
        empty = self.timed("", "", lambda: None)
        for _ in range(5000):
            empty()
        self.cost = sorted(ns for _, ns in self.spent)[len(self.spent) // 2]
        self.spent.clear()

    def timed(self, stage: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        clock, spent, last = self._clock, self.spent, self.last.setdefault(stage, {})

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            result = function(*args, **kwargs)
            spent.append((stage, clock() - start))
            if name not in last:
                last[name] = lambda: function(*args, **kwargs)
            return result

        return wrapped

    def per_put(self, puts: int) -> dict[str, float]:
        """Microseconds of each stage."""
        total = dict.fromkeys(ORDER, 0.0)
        for stage, ns in self.spent:
            total[stage] += max(0, ns - self.cost) / puts / 1000
        return total


class TimedConnection:
    """A connection that times its statements by what they are for."""

    def __init__(self, connection: Any, watch: Watch) -> None:
        self._connection = connection
        self._timed = {sql: watch.timed(stage, sql, connection.execute) for sql, stage in STATEMENTS.items()}

    def execute(self, sql: str, *params: Any) -> Any:
        return self._timed.get(sql, self._connection.execute)(sql, *params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@contextmanager
def watched(memory: Alcove, watch: Watch) -> Iterator[None]:
    """Puts the watch around every stage, and takes it off again."""
    places = [(stage, owner, name) for stage, named in STAGES.items() for owner, name in named]
    originals = [getattr(owner, name) for _, owner, name in places]
    engine: Any = memory._memories._engine
    assert isinstance(engine, SqliteEngine)
    database: Any = engine._db
    connection = database._writer
    for (stage, owner, name), original in zip(places, originals, strict=True):
        setattr(owner, name, watch.timed(stage, name, original))
    database._writer = TimedConnection(connection, watch)
    try:
        yield
    finally:
        database._writer = connection
        for (_, owner, name), original in zip(places, originals, strict=True):
            setattr(owner, name, original)


def one_thread(memory: Alcove, puts: int) -> tuple[dict[str, float], Watch]:
    watch = Watch(time.perf_counter_ns)
    write(memory, "warm", 300)
    start = time.perf_counter()
    write(memory, "plain", puts)
    whole = (time.perf_counter() - start) / puts * 1e6
    with watched(memory, watch):
        write(memory, "watched", puts)
    return with_rest(watch.per_put(puts), whole), watch


def many_threads(memory: Alcove, puts: int, threads: int) -> dict[str, float]:
    watch = Watch(time.thread_time_ns)
    gate = threading.Barrier(threads)

    def work(name: str, count: int) -> None:
        gate.wait()
        write(memory, name, count)

    def round(name: str, count: int) -> None:
        for done in [pool.submit(work, f"{name}{n}", count // threads) for n in range(threads)]:
            done.result()

    with ThreadPoolExecutor(threads) as pool:
        round("crowd-warm", 50 * threads)
        start = time.process_time()
        round("crowd-plain", puts)
        whole = (time.process_time() - start) / puts * 1e6
        with watched(memory, watch):
            round("crowd-watched", puts)
    return with_rest(watch.per_put(puts), whole)


def alone(watch: Watch) -> dict[str, float]:
    """The effect-free stages, each repeated by itself."""
    found = {}
    for stage in STAGES:
        calls = list(watch.last[stage].values())
        times = []
        for _ in range(15):
            start = time.perf_counter()
            for _ in range(200):
                for call in calls:
                    call()
            times.append((time.perf_counter() - start) / 200 * 1e6)
        found[stage] = sorted(times)[len(times) // 2]
    return found


def write(memory: Alcove, name: str, count: int) -> None:
    user = memory.as_user(name)
    for n in range(count):
        user.put(("user", name, "notes"), f"note-{n}", sample.VALUE)


def with_rest(stages: dict[str, float], whole: float) -> dict[str, float]:
    return {**stages, REST: whole - sum(stages.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the time of one put goes.")
    parser.add_argument("--puts", type=int, default=3000)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--dir", type=Path, help="where the temporary store is made")
    options = parser.parse_args()
    with sample.folder(options.dir) as folder, Alcove(folder / "profile.db") as memory:
        single, watch = one_thread(memory, options.puts)
        by_itself = alone(watch)
        crowd = many_threads(memory, options.puts, options.threads)
    print(f"{'µs a put':26}{'1 thread, wall':>18}{'alone, warm':>14}{f'{options.threads} threads, CPU':>20}")
    for stage in ORDER:
        warm = f"{by_itself[stage]:.1f}" if stage in by_itself else "–"
        print(f"{stage:26}{share(single, stage):>18}{warm:>14}{share(crowd, stage):>20}")
    print(f"{'whole':26}{sum(single.values()):>11.1f}{'':7}{'':14}{sum(crowd.values()):>13.1f}")


def share(stages: dict[str, float], stage: str) -> str:
    return f"{stages[stage]:.1f} ({stages[stage] / sum(stages.values()):4.0%})"


if __name__ == "__main__":
    main()
