"""The core's speed as ratios: `python bench/core.py [--quick] [--out bench] [--dir FOLDER]`.

Every figure compares two things that run in turn in this one process, on the same file system with the
same durability (WAL, `synchronous=FULL`): Alcove against the bare driver, or Alcove against itself. Raw
rows are encoded beforehand; Alcove gets the object and checks, authorises, encodes and seals it.
"""

from __future__ import annotations

import argparse
import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import report
import sample
from alcove import Alcove, Namespace, Put
from growth import growth
from raw import GroupCommit, RawStore
from report import Figure
from rounds import Comparison, Crew, compare, timed

WRITERS = 16


class Bench:
    """The stores that the contenders share, and a supply of keys that nobody has used yet."""

    def __init__(self, memory: Alcove, raw: RawStore, *, rounds: int) -> None:
        self._memory, self._raw, self._rounds = memory, raw, rounds
        self._keys = map("note-{}".format, itertools.count())
        self._ns = Namespace(("user", "alice", "notes"))
        self._encoded = self._ns.encode()
        self._alice = memory.as_user("alice")

    def figures(self) -> Iterator[Figure]:
        yield self._single_put()
        yield self._crowd()
        yield self._get()
        yield self._batch()

    def _put(self, _: int) -> None:
        self._alice.put(self._ns, next(self._keys), sample.VALUE)

    def _insert(self, _: int) -> None:
        self._raw.insert((self._encoded, next(self._keys).encode(), sample.ENCODED))

    def _single_put(self) -> Figure:
        found = compare(
            lambda count: timed(self._insert, count),
            lambda count: timed(self._put, count),
            base_count=400,
            count=400,
            rounds=self._rounds,
        )
        return _figure("put, one thread", "raw insert a transaction", found, 0.5)

    def _crowd(self) -> Figure:
        names = [f"user-{n}" for n in range(WRITERS)]
        homes = [Namespace(("user", name, "notes")) for name in names]
        encoded = [home.encode() for home in homes]
        users = [self._memory.as_user(name) for name in names]
        signals = [threading.Lock() for _ in names]
        for signal in signals:
            signal.acquire()

        with closing(Crew(WRITERS)) as crew, GroupCommit(self._raw) as group:

            def put(member: int, _: int) -> None:
                users[member].put(homes[member], next(self._keys), sample.VALUE)

            def insert(member: int, _: int) -> None:
                row = encoded[member], next(self._keys).encode(), sample.ENCODED
                group.insert(row, signals[member])

            found = compare(
                lambda count: crew.timed(insert, count),
                lambda count: crew.timed(put, count),
                base_count=WRITERS * 250,
                count=WRITERS * 125,
                rounds=self._rounds,
            )
        return _figure(f"put, {WRITERS} threads", "raw group commit", found, 0.4)

    def _get(self) -> Figure:
        ours, theirs = [f"read-{n}" for n in range(1000)], [b"read-%d" % n for n in range(1000)]
        self._alice.batch([Put(namespace=self._ns, key=key, value=sample.VALUE) for key in ours])
        self._raw.insert(*((self._encoded, key, sample.ENCODED) for key in theirs))
        found = compare(
            lambda count: timed(lambda n: self._raw.select(self._encoded, theirs[n % 1000]), count),
            lambda count: timed(lambda n: self._alice.get(self._ns, ours[n % 1000]), count),
            base_count=10_000,
            count=3000,
            rounds=self._rounds,
        )
        # A fifth of the raw rate, or the share of it that 15,000 a second is, whichever is lower.
        return _figure("get, one thread", "raw select", found, 0.2)

    def _batch(self) -> Figure:
        def batch(count: int) -> float:
            puts = [Put(namespace=self._ns, key=next(self._keys), value=sample.VALUE) for _ in range(count)]
            return timed(lambda _: self._alice.batch(puts), 1)

        found = compare(
            lambda count: timed(self._put, count), batch, base_count=400, count=1000, rounds=self._rounds
        )
        return _figure("put in a batch of 1,000", "single puts", found, 5)


def _figure(name: str, against: str, found: Comparison, bar: float) -> Figure:
    ours, base = f"{found.ours:,.0f}/s", f"{found.base:,.0f}/s"
    return Figure(name, against, ours, base, found.ratio, found.low, found.high, bar, "reach")


def _grown(folder: Path, *, large: int, rounds: int) -> Iterator[Figure]:
    for call, found in growth(folder, small=10_000, large=large, rounds=rounds).items():
        name, against = f"{call} among {large:,}", "the same among 10,000"
        ours, base = f"{1e6 / found.base:,.0f} µs", f"{1e6 / found.ours:,.0f} µs"
        yield Figure(name, against, ours, base, found.ratio, found.low, found.high, 1.3, "stay below")


def main() -> None:
    parser = argparse.ArgumentParser(description="The core's speed as ratios within one run.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and 100,000 instead of 1,000,000")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where the results go")
    parser.add_argument("--dir", type=Path, help="where the temporary stores are made; not in memory")
    options = parser.parse_args()
    rounds = 5 if options.quick else 15
    with sample.folder(options.dir) as folder:
        with Alcove(folder / "memory.db") as memory, RawStore(folder / "raw.db") as raw:
            figures = [*Bench(memory, raw, rounds=rounds).figures()]
        print(report.table(figures), flush=True)
        large = 100_000 if options.quick else 1_000_000
        figures += _grown(folder, large=large, rounds=rounds)
    print(report.table(figures))
    options.out.mkdir(parents=True, exist_ok=True)
    report.write(figures, options.out, quick=options.quick)


if __name__ == "__main__":
    main()
