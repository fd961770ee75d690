"""AlcoveStore beside LangGraph's SqliteStore, beside its own core, and at a URL beside the bare request.

    python bench/langgraph_store.py [--items 10000] [--searched 2000] [--rounds 5]

One run, one disk, one embedder (the sentence model that comes with Alcove, for both), 100 namespaces. Each
figure is the median of rounds in which the two take turns.

1. put and get without index text, single calls, on a file.
2. put with index text, and a search that finds what was put; SqliteStore embeds inside its put, Alcove beside
   it, and a search waits for it, so both are also told together: all puts and the first search after them.
   SqliteStore needs an SQLite that loads extensions, which Python's own may not be: `pysqlite3` is used.
3. What the adapter adds to the core's own calls.
4. get and put at a URL, beside the same request sent by httpx alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pysqlite3 as sqlite3
from langgraph.store.base import BaseStore
from langgraph.store.sqlite import SqliteStore

from alcove import Alcove
from alcove.core.namespace import TREE
from alcove.integrations.langgraph import AlcoveStore
from alcove.search.embedders import embedder_for
from chat import port
from sample import VALUE, folder

Labels = tuple[str, ...]
SPACES = 100


def place(n: int) -> tuple[Labels, str]:
    return (f"user{n % SPACES}", "memories"), str(n)


def seconds(call: Callable[[int], object], numbers: Sequence[int]) -> float:
    """How long a call takes, on average over these numbers."""
    started = time.perf_counter()
    for n in numbers:
        call(n)
    return (time.perf_counter() - started) / len(numbers)


def taking_turns(rounds: int, size: int, *calls: Callable[[int], object]) -> list[float]:
    """The median time of each call, in microseconds; in every round, each is made for the same numbers."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds):
        numbers = range(turn * size, (turn + 1) * size)
        order = [*enumerate(calls)][:: -1 if turn % 2 else 1]
        for which, call in order:
            times[which].append(seconds(call, numbers) * 1e6)
    return [statistics.median(each) for each in times]


def told(what: str, times: Sequence[float], bar: str, *, faster: bool = True) -> None:
    ours, theirs = times
    ratio = theirs / ours if faster else ours / theirs
    print(f"| {what} | {ours:,.0f} µs | {theirs:,.0f} µs | {ratio:.2f} × | {bar} |", flush=True)


def sqlite_store(path: Path, index: dict[str, Any] | None = None) -> SqliteStore:
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    store = SqliteStore(connection, index=index)  # type: ignore[arg-type]
    store.setup()
    connection.execute("PRAGMA synchronous=FULL")  # what Alcove promises of a put that returned
    return store


def plain(at: Path, items: int, rounds: int) -> None:
    size = items // rounds
    with AlcoveStore(at / "alcove.db", root=("user", "noop", TREE), index=False) as ours:
        theirs = sqlite_store(at / "sqlite.db")
        value = {**VALUE, "n": 0}
        puts = [lambda n, store=store: store.put(*place(n), {**value, "n": n}) for store in (ours, theirs)]
        told("put", taking_turns(rounds, size, *puts), "≥ 0.75 ×")
        gets = [lambda n, store=store: store.get(*place(n)) for store in (ours, theirs)]
        told("get", taking_turns(rounds, size, *gets), "≥ 0.75 ×")
        core = ours._store

        def room(n: int) -> tuple[Labels, str]:
            labels, key = place(n)
            return ("user", "noop", TREE, *labels), key

        # Short rounds: what the adapter adds is less than what the disk and the machine vary by in long ones.
        pairs = [
            ("get", lambda n: gets[0](n % 1000), lambda n: core.get(*room(n % 1000))),
            (
                "put",
                lambda n: puts[0](n % 1000),
                lambda n: core.put(*room(n % 1000), {**value, "n": n % 1000}),
            ),
        ]
        for what, adapter, own in pairs:
            told(f"{what}, adapter / core", taking_turns(60, 100, adapter, own), "≤ 1.1 ×", faster=False)


def searched(at: Path, items: int) -> None:
    embedder = embedder_for("minilm")
    assert embedder is not None
    index = {"dims": 384, "embed": lambda texts: embedder.embed(texts).tolist(), "fields": ["text"]}
    memory = Alcove(at / "searched.db", embedder=embedder)
    stores: dict[str, BaseStore] = {
        "ours": AlcoveStore(memory, root=("user", "noop", TREE), index=["text"]),
        "theirs": sqlite_store(at / "searched-sqlite.db", index),
    }
    times: dict[str, list[float]] = {}
    for name, store in stores.items():
        store.put(("warm",), "up", {"text": "warm up"})
        store.search(("warm",), query="warm")
        started = time.perf_counter()
        for n in range(items):
            store.put(
                *place(n), {"text": f"User {n % SPACES} noted thing {n}: {VALUE['topic']} {n * 7919 % 10007}"}
            )
        put = time.perf_counter()
        for space in range(SPACES):
            store.search((f"user{space}", "memories"), query="the thing noted", limit=10)
        first = time.perf_counter()
        for n in range(200):
            store.search((f"user{n % SPACES}", "memories"), query=f"thing {n}", limit=10)
        end = time.perf_counter()
        times[name] = [(put - started) / items, (first - started) / items, (end - first) / 200]
    memory.close()
    for what, ours, theirs in zip(
        ("put with a text to embed", "the same until all can be searched, an item", "search by meaning"),
        times["ours"], times["theirs"], strict=True,
    ):  # fmt: skip
        told(what, [ours * 1e6, theirs * 1e6], "≥ 0.75 ×" if what.startswith("put") else "")


@contextmanager
def served(at: Path) -> Iterator[str]:
    number = port()
    words = ["serve", "--port", str(number), "--at", str(at / "served.db"), "--rate-limit", "0"]
    command = [sys.executable, "-c", "from alcove.cli import main; main()", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{number}"
    try:
        for _ in range(200):
            try:
                httpx.get(f"{url}/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def remote(at: Path, rounds: int) -> None:
    with (
        served(at) as url,
        AlcoveStore(url, root=("user", "noop", TREE), index=False) as store,
        httpx.Client(base_url=url) as client,
    ):
        for n in range(1000):
            store.put(*place(n), VALUE)

        def bare_get(n: int) -> None:
            labels, key = place(n % 1000)
            client.get("/v1/memories", params={"ns": ["user", "noop", TREE, *labels], "key": key}).json()

        def bare_put(n: int) -> None:
            labels, key = place(n % 1000)
            body = {"namespace": ["user", "noop", TREE, *labels], "key": key, "value": VALUE}
            client.put("/v1/memories", json=body).json()

        calls = [
            ("get", lambda n: store.get(*place(n % 1000)), bare_get),
            ("put", lambda n: store.put(*place(n % 1000), VALUE), bare_put),
        ]
        for what, ours, bare in calls:
            told(
                f"{what} at a URL / the bare request",
                taking_turns(rounds, 500, ours, bare),
                "≤ 1.3 ×",
                faster=False,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--searched", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.2f}")
    print("| what | ours | theirs | ratio | bar |\n|---|---|---|---|---|")
    with folder() as at:
        plain(at, asked.items, asked.rounds)
        searched(at, asked.searched)
        remote(at, asked.rounds)


if __name__ == "__main__":
    main()
