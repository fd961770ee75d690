"""Searching a large pool: its first search, the next ones, how many of the best ten it finds.

    python bench/at_size.py postgresql://…|FILE [TEXTS]

Vectors are given: texts of some thousand subjects, near one another in as many clusters, so that no model's
time counts. `ALCOVE_STATE` says where the key lies. The database must be empty.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence

import numpy as np

from alcove import Alcove, MemoryKey, Settings
from alcove.search.embedders import Matrix, unit

POOL = ("user", "bench")
DIMENSIONS, SUBJECTS = 384, 2000
ROUNDS = 40


class Clusters:
    """Embeds a text near the middle of its subject, which its first word tells."""

    name = "clusters"
    dimensions = DIMENSIONS

    def __init__(self) -> None:
        chance = np.random.default_rng(1)
        self._subjects = {f"{spelled(n)}q": n for n in range(SUBJECTS)}
        self._middles = unit(chance.standard_normal((SUBJECTS, DIMENSIONS)).astype(np.float32))

    def windows(self, text: str) -> list[str]:
        return [text]

    def embed(self, texts: Sequence[str]) -> Matrix:
        rows = np.empty((len(texts), DIMENSIONS), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            subject = self._subjects.get(text.split()[0], 0)
            chance = np.random.default_rng(zlib.crc32(text.encode()))
            row[:] = self._middles[subject] + 0.05 * chance.standard_normal(DIMENSIONS)
        return unit(rows)


def text(n: int, chance: np.random.Generator) -> str:
    """Some words of which a few are in most texts, as words are."""
    words = " ".join(map(spelled, chance.zipf(1.3, 12) % 20_000))
    return f"{spelled(n % SUBJECTS)}q {words} {spelled(n)}x"


def spelled(n: int) -> str:
    """A word of letters for a number."""
    found = ""
    while n or not found:
        n, syllable = divmod(n, 60)
        found += "bdfgklmnprst"[syllable // 5] + "aeiou"[syllable % 5]
    return found


def filled(store: Alcove, count: int) -> None:
    chance, begun = np.random.default_rng(2), time.monotonic()
    for start in range(0, count, 1000):
        store.as_user("bench").batch(
            [
                {
                    "op": "put",
                    "namespace": POOL,
                    "key": f"{n}",
                    "value": {"n": n},
                    "index": {"text": text(n, chance)},
                }
                for n in range(start, min(start + 1000, count))
            ]
        )
    print(f"written: {time.monotonic() - begun:.0f} s", flush=True)
    while store.admin.index().waiting:
        time.sleep(0.5)
    print(f"with vectors: {time.monotonic() - begun:.0f} s", flush=True)


def main(address: str, count: int) -> None:
    os.environ.setdefault("ALCOVE_STATE", tempfile.mkdtemp())
    keys = MemoryKey()

    def opened(most: int) -> Alcove:
        settings = Settings(sweep_interval=0, search_memory_texts=most, indexing_batch=512)
        return Alcove(address, settings=settings, keys=keys, embedder=Clusters())

    with opened(10**9) as store:
        filled(store, count)
        begun = time.monotonic()
        while not candidates_ready(address):
            time.sleep(1)
        print(f"and in order by meaning: {time.monotonic() - begun:.0f} s later", flush=True)
    chance = np.random.default_rng(3)
    questions = [text(int(n), chance) for n in chance.integers(0, count, ROUNDS)]
    found: dict[str, list[list[str]]] = {}
    for name, most in (("candidates", 20_000), ("in memory", 10**9)):
        with opened(most) as store:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            begun = time.monotonic()
            store.as_user("bench").search(POOL, query=questions[0])
            first, times = time.monotonic() - begun, []
            for mode in ("hybrid", "semantic"):
                for question in questions:
                    begun = time.monotonic()
                    best = store.as_user("bench").search(POOL, query=question, mode=mode)
                    times.append(time.monotonic() - begun)
                    found.setdefault(f"{name} {mode}", []).append([each.key for each in best])
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        middle = statistics.median(times) * 1000
        print(
            f"{name}: first search {first:.2f} s, then {middle:.1f} ms, memory +{grown:.0f} MiB", flush=True
        )
    for mode in ("hybrid", "semantic"):
        pairs = zip(found[f"candidates {mode}"], found[f"in memory {mode}"], strict=True)
        print(f"recall@10, {mode}: {statistics.mean(len({*a} & {*b}) / 10 for a, b in pairs):.3f}")


def candidates_ready(address: str) -> bool:
    """Whether every text has been taken in; and, on PostgreSQL, is in the index by meaning."""
    behind = "SELECT (SELECT max(id) FROM vectors) - (SELECT upto FROM searchable)"
    if "://" not in address:
        import apsw  # noqa: PLC0415

        return bool(apsw.Connection(address).execute(behind).get == 0)
    import psycopg  # noqa: PLC0415

    ordered = "SELECT 1 FROM pg_index WHERE indisvalid AND indexrelid = to_regclass('windows_by_meaning')"
    with psycopg.connect(address) as db:
        return db.execute(behind).fetchone() == (0,) and bool(db.execute(ordered).fetchone())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
