"""How fast search is, as a user's memories and the rest of the store grow, and what it costs.

    python bench/recall.py --quick      the rest of the store grows from 10,000 to 100,000 memories (minutes)
    python bench/recall.py              to 1,000,000

Every search goes the whole road: policy, what changed since, ranking, opening ten values. The question's
vector is remembered, since embedding it has a line of its own. Memories are made up: one text of 25 words
each out of a vocabulary of 4,000, vectors at random, which rank no faster than real ones.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from alcove import Alcove, Grant, Namespace, Principal, Settings
from alcove.core.records import SearchMode
from alcove.search.embedders import Matrix, embed_query, unit
from alcove.search.embedders.minilm import MiniLM
from alcove.search.query import Lexicon

FILLING = Settings(sweep_interval=0, indexing_interval=0.05, indexing_batch=1000)
POOL = Principal("noop", grants=(Grant(Namespace(("org",))),))
STEP = 1000
WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe") for b in range(800)]
CHANCE = random.Random(1)
RARITY = np.cumsum(1 / np.arange(1, len(WORDS) + 1)).tolist()
QUESTIONS = [f"Which house did Ann {' '.join(CHANCE.sample(WORDS[:400], 5))} see?" for _ in range(20)]
Row = tuple[str, str, str]


class MadeUp:
    """Vectors at no cost, with the real model's related words."""

    name, dimensions = "made-up", 384

    def __init__(self, model: MiniLM) -> None:
        self._chance = np.random.default_rng(1)
        self._model = model
        self._asked = {text: self._rows(1) for text in QUESTIONS}

    def windows(self, text: str) -> list[str]:
        return [text]

    def embed(self, texts: Sequence[str]) -> Matrix:
        remembered = self._asked.get(texts[0])
        return self._rows(len(texts)) if remembered is None else remembered

    def lexicon(self) -> Lexicon | None:
        return self._model.lexicon()

    def _rows(self, count: int) -> Matrix:
        return unit(self._chance.normal(size=(count, 384)).astype(np.float32))


def text(n: int) -> str:
    said = " ".join(CHANCE.choices(WORDS, cum_weights=RARITY, k=25))
    return f"{'Ann' if n % 2 else 'Bob'}: {said}"


def fill(memory: Alcove, rooms: Sequence[tuple[str, ...]], count: int) -> None:
    """Spreads memories over rooms."""
    start = time.monotonic()
    for first in range(0, count, STEP):
        numbers = range(first, min(first + STEP, count))
        memory.batch(
            [
                {
                    "op": "put",
                    "namespace": rooms[n * len(rooms) // count],
                    "key": f"note-{n}",
                    "value": {"text": (said := text(n))},
                    "index": {"text": said},
                }
                for n in numbers
            ]
        )
        if first and first % 100_000 == 0:
            print(f"  {first:,} in {time.monotonic() - start:.0f} s", file=sys.stderr)


def settle(memory: Alcove) -> None:
    while memory.admin.index().waiting:
        time.sleep(0.01)


def everybody(memory: Alcove, memories: int) -> None:
    """The rest of a store: users with 1,000 memories each, all acting for themselves."""
    for n in range(memories // STEP):
        name = f"other-{n}"
        where = {"op": "put", "namespace": ("user", name), "value": {}}
        memory.as_user(name).batch(
            [{**where, "key": f"k{m}", "index": {"text": text(m)}} for m in range(STEP)]
        )
        if n % 100 == 99:
            print(f"  {(n + 1) * STEP:,} others", file=sys.stderr)
    settle(memory)


class Town:
    """A store with a user of 100 memories, one of 10,000, and others."""

    def __init__(self, path: Path, embedder: MadeUp, others: int) -> None:
        self.memory = Alcove(path, settings=FILLING, embedder=embedder)
        for name, count in (("few", 100), ("many", 10_000)):
            fill(self.memory.as_user(name), [("user", name, f"room-{n}") for n in range(10)], count)
        everybody(self.memory, others)

    def ask(self, user: str, mode: SearchMode = "hybrid") -> Callable[[int], object]:
        memory = self.memory.as_user(user)
        return lambda n: memory.search(("user", user), query=QUESTIONS[n % len(QUESTIONS)], mode=mode)


def times(call: Callable[[int], object], count: int) -> list[float]:
    """Milliseconds of each call."""
    taken = []
    for n in range(count):
        start = time.perf_counter()
        call(n)
        taken.append(1e3 * (time.perf_counter() - start))
    return taken


def p50(call: Callable[[int], object], count: int = 200) -> float:
    times(call, len(QUESTIONS))
    return statistics.median(times(call, count))


def growth(folder: Path, embedder: MadeUp, large: int) -> Iterator[Row]:
    few, many = (Town(folder / f"{n}.db", embedder, n) for n in (10_000, large))
    for user, size, bar in (("few", "100", 2), ("many", "10,000", 8)):
        calls = [town.ask(user) for town in (few, many)]
        for call in calls:
            times(call, len(QUESTIONS))
        rounds = [[statistics.median(times(call, 40)) for call in calls] for _ in range(9)]
        small, grown = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratio = statistics.median(after / before for before, after in rounds)
        yield f"hybrid, {size} items in the subtree", f"{small:.2f} ms", f"≤ {bar} ms"
        yield f"the same among {large:,} others", f"{grown:.2f} ms, {ratio:.2f} ×", "≤ 1.3 ×"
    for mode in ("semantic", "keyword"):
        yield f"{mode}, 10,000 items", f"{p50(few.ask('many', mode)):.2f} ms", ""
    writer, ask = few.memory.as_user("many"), few.ask("many")
    taken = []
    for n in range(40):
        writer.put(("user", "many", "room-1"), f"new-{n}", {}, index={"text": text(n)}, wait_for_index=True)
        taken += times(ask, 1)
    yield "hybrid, 10,000 items, right after a write among them", f"{statistics.median(taken):.2f} ms", ""
    for town in (few, many):
        town.memory.close()


def pool(folder: Path, embedder: MadeUp) -> Iterator[Row]:
    with Alcove(folder / "pool.db", settings=FILLING, embedder=embedder) as memory:
        shared = memory.as_principal(POOL)
        before = resident()
        fill(shared, [("org", f"room-{n}") for n in range(20)], 100_000)
        settle(memory)
        filled = resident()
        start = time.perf_counter()
        shared.search(("org",), query=QUESTIONS[0])
        yield "first search of a pool of 100,000", f"{time.perf_counter() - start:.1f} s", ""
        for mode, bar in (("semantic", "≤ 25 ms"), ("hybrid", "stated"), ("keyword", "")):
            taken = p50(lambda n, m=mode: shared.search(("org",), query=QUESTIONS[n % 20], mode=m), 60)  # type: ignore[misc]
            yield f"{mode}, pool of 100,000", f"{taken:.2f} ms", bar
        yield "memory of a searched pool of 100,000", f"{resident() - filled:,} MiB", "stated"
        yield "memory of filling it, indexer included", f"{filled - before:,} MiB", ""


def throughput(folder: Path, model: MiniLM) -> Iterator[Row]:
    """The indexer against the bare embedder, in turn, each with the same texts."""
    texts = [text(n) for n in range(400)]
    model.embed(texts[:32])
    ratios, rates = [], []
    for turn in range(3):
        start = time.perf_counter()
        for n in range(0, len(texts), 100):
            model.embed(texts[n : n + 100])
        bare = time.perf_counter() - start
        path = folder / f"throughput-{turn}.db"
        with Alcove(path, settings=Settings(sweep_interval=0, indexing_interval=0), embedder=model) as memory:
            memory.batch([{"op": "put", "namespace": ("user", "noop"), "key": f"k{n}", "value": {},
                           "index": {"text": each}} for n, each in enumerate(texts)])  # fmt: skip
        with Alcove(path, settings=Settings(sweep_interval=0), embedder=model) as memory:
            start = time.perf_counter()
            memory.admin.trigger_index()
            settle(memory)
            ours = time.perf_counter() - start
        ratios.append(bare / ours)
        rates.append(len(texts) / ours)
    yield (
        "indexing",
        f"{statistics.median(rates):.0f} texts/s, {statistics.median(ratios):.2f} × the bare embedder",
        "≥ 0.8 ×",
    )


def apart(model: MiniLM) -> Iterator[Row]:
    before = resident()
    embed_query(model, "warm up")
    yield "memory of the model, once loaded", f"{resident() - before:,} MiB", "stated"
    before = resident()
    lexicon = model.lexicon()
    assert lexicon
    yield "memory of its words", f"{resident() - before:,} MiB", "stated"
    asked = [f"{question} {n}" for n, question in enumerate(QUESTIONS)]
    yield (
        "embedding a question, apart",
        f"{p50(lambda n: embed_query(model, asked[n % 20]), 60):.1f} ms",
        "stated",
    )
    new = ["house", "garden", "travel", "music", "kitchen", "river", "doctor", "school", "winter", "paper"]
    taken = statistics.median(times(lambda n: lexicon.related([new[n]]), len(new)))
    yield "words related to one not asked for before, apart", f"{taken:.1f} ms", "stated"


def resident() -> int:
    """This process's memory in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true")
    options.add_argument("--only", choices=["apart", "throughput", "pool", "growth"])
    given = options.parse_args()
    model = MiniLM()
    embedder = MadeUp(model)
    print("| what | measured | bar |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], Iterator[Row]]] = {
            "apart": lambda: apart(model),
            "throughput": lambda: throughput(folder, model),
            "growth": lambda: growth(folder, embedder, 100_000 if given.quick else 1_000_000),
            "pool": lambda: pool(folder, embedder),
        }
        for part, rows in parts.items():
            if given.only in (None, part):
                for row in rows():
                    print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
