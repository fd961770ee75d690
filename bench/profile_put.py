"""Where the time of one put goes: `python bench/profile_put.py [--puts 4000] [--threads 16]`.

Three measurements of the same stages:
- one thread, wall: a clock around each stage while real puts run; it has the wait for the disk in it.
- alone, warm: the stage's first call repeated in a tight loop; only for stages without effect.
- many threads, CPU: the CPU clock of each thread, since wall time would be mostly waiting.

The puts come in ten parts, and each figure is the median of the parts' means. What a clock costs is
measured on an empty function and taken off. "everything else" is the whole less the stages: the Python
between them, the commit queue, and the hand-over between threads.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sample
from alcove import Alcove
from alcove.core import validation
from alcove.engine.engine import Engine
from alcove.engine.sqlite.database import STATEMENTS as SQL
from alcove.policy import Policy
from alcove.store.writer import Writer
from alcove.vault import SubjectKey, Vault

REST = "everything else"
STAGES: dict[str, list[tuple[object, str]]] = {
    "checks": [(validation, "parse_location"), (validation, "encode_value")],
    "policy: authz": [(Policy, "authorise_write")],
    "policy: attributes": [(Policy, "attributes")],
    "sealing": [(Vault, "find_key"), (SubjectKey, "seal")],
    "answer": [(Writer, "_result")],
}
STATEMENTS = {
    "BEGIN IMMEDIATE": "statement: lock",
    SQL["begin"]: "statement: begin with",
    SQL["key_state"]: "statement: newest",
    SQL["append"]: "statement: append",
    "COMMIT": "commit (with fsync)",
}
PARTS = 10
ORDER = [*STAGES, *STATEMENTS.values(), REST]


class Watch:
    """Times wrapped functions; appending to a list is atomic, so any thread may report."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.first: dict[str, dict[str, Callable[[], object]]] = {}
        self._spent: list[tuple[str, int]] = []
        self._clock = clock
        self._inside = self._around = 0.0
        self._calibrate()

    def timed(self, stage: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time on record under a stage."""
        clock, spent, first = self._clock, self._spent, self.first.setdefault(stage, {})

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            result = function(*args, **kwargs)
            spent.append((stage, clock() - start))
            if name not in first:
                first[name] = lambda: function(*args, **kwargs)
            return result

        return wrapped

    def take(self, whole: float, puts: int) -> dict[str, float]:
        """Microseconds a put of each stage since the last call, `whole` being the seconds of it all."""
        taken = dict.fromkeys(ORDER, 0.0)
        for stage, ns in self._spent:
            taken[stage] += (ns - self._inside) / puts / 1000
        whole = (whole * 1e6 - len(self._spent) * self._around / 1000) / puts
        self._spent.clear()
        return {**taken, REST: whole - sum(taken.values())}

    def _calibrate(self, calls: int = 20_000) -> None:
        """What the clock adds to a call, inside of what it reads and as a whole, in nanoseconds."""
        empty = self.timed(REST, "", lambda: None)
        start = self._clock()
        for _ in range(calls):
            empty()
        self._around = (self._clock() - start) / calls
        self._inside = statistics.median(ns for _, ns in self._spent)
        self._spent.clear()


class TimedConnection:
    """A connection that times its statements by what they are for."""

    def __init__(self, connection: Any, watch: Watch) -> None:
        self._connection = connection
        self._timed = {sql: watch.timed(stage, sql, connection.execute) for sql, stage in STATEMENTS.items()}

    def execute(self, sql: str, *params: Any) -> Any:
        return self._timed.get(sql, self._connection.execute)(sql, *params)

    def run(self, name: str, params: Any = ()) -> Any:
        return self.execute(SQL[name], params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@contextmanager
def watched(memory: Alcove, watch: Watch) -> Iterator[None]:
    """Puts the watch around every stage, and takes it off again."""
    places = [(stage, owner, name) for stage, named in STAGES.items() for owner, name in named]
    originals = [getattr(owner, name) for _, owner, name in places]
    engine: Any = memory.memories._engine
    assert isinstance(engine, Engine)
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
    """Wall time of each stage, and the watch with the calls it has seen."""
    watch = Watch(time.perf_counter_ns)
    write(memory, "single", "warm", 300)
    parts = []
    with watched(memory, watch):
        for part in range(PARTS):
            start = time.perf_counter()
            write(memory, "single", str(part), puts // PARTS)
            parts.append(watch.take(time.perf_counter() - start, puts // PARTS))
    return medians(parts[1:]), watch


def many_threads(memory: Alcove, puts: int, threads: int) -> dict[str, float]:
    """CPU time of each stage."""
    watch = Watch(time.thread_time_ns)
    share = puts // PARTS // threads
    gate = threading.Barrier(threads)

    def work(member: int, part: int) -> None:
        gate.wait()
        write(memory, f"member-{member}", str(part), share)

    parts = []
    with ThreadPoolExecutor(threads) as pool, watched(memory, watch):
        for part in range(PARTS):
            start = time.process_time()
            for done in [pool.submit(work, member, part) for member in range(threads)]:
                done.result()
            parts.append(watch.take(time.process_time() - start, share * threads))
    return medians(
        parts[1:]
    )  # the first part is where each thread makes its policy engine and its user's key


def alone(watch: Watch) -> dict[str, float]:
    """The effect-free stages, each repeated by itself."""
    found = {}
    for stage in STAGES:
        calls = list(watch.first[stage].values())
        times = []
        for _ in range(15):
            start = time.perf_counter()
            for _ in range(200):
                for call in calls:
                    call()
            times.append((time.perf_counter() - start) / 200 * 1e6)
        found[stage] = statistics.median(times)
    return found


def write(memory: Alcove, name: str, part: str, count: int) -> None:
    user = memory.as_user(name)
    for n in range(count):
        user.put(("user", name, "notes"), f"{part}-{n}", sample.VALUE)


def medians(parts: list[dict[str, float]]) -> dict[str, float]:
    return {stage: statistics.median(part[stage] for part in parts) for stage in ORDER}


def main() -> None:
    parser = argparse.ArgumentParser(description="Where the time of one put goes.")
    parser.add_argument("--puts", type=int, default=4000)
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
