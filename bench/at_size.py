"""Searching a large pool: its first search, the next ones, how many of the best ten it finds.

    python bench/at_size.py postgresql://…|FILE [TEXTS] [--straight] [--users small middle] [--ask] [--exact]

Vectors are given: texts of some thousand subjects, near one another in as many clusters, so that no model's
time counts. `ALCOVE_STATE` says where the key lies. The database must be empty, or was filled before and is
only asked (`--ask`).

`--straight`: vectors, and what texts are found by, are loaded into PostgreSQL's tables by COPY: the same rows
as the indexer makes, in minutes for a million instead of hours. `--users`: beside the pool, `small` has
10,000 memories of their own, and `middle` 30,000. `--exact`: a pool of any size is searched in memory as
well, to compare; a million take 7 GB and four minutes.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import struct
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import psycopg

from alcove import Alcove, Settings
from alcove.engine.postgres.pgvector import MIN_INDEXED
from alcove.engine.rows import TextToIndex
from alcove.search.embedders import Matrix, unit
from alcove.search.sources.indexed import index_entry
from alcove.search.text_vectors import embed_texts, window_vectors

DIMENSIONS, SUBJECTS = 384, 2000
ROUNDS = 40
USERS = {"small": 10_000, "middle": 30_000}
IN_MEMORY = 100_000
"""Texts that are searched in memory as well, to compare, whatever is said."""
MEMORY_MB = 30_000
"""What that may take."""
FEW, AT_ONCE = 100, 10_000
"""Texts that the indexer takes in before the others are loaded, and those that are loaded at once."""


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


def opened(address: str, **how: float) -> Alcove:
    settings = Settings(**{"sweep_interval": 0, "indexing_batch": 512, **how})  # type: ignore[arg-type]
    return Alcove(address, settings=settings, embedder=Clusters())


def load(address: str, sizes: Mapping[str, int], *, straight: bool) -> None:
    begun = time.monotonic()

    def tell(what: str) -> None:
        print(f"{what}: {time.monotonic() - begun:.0f} s", flush=True)

    with opened(address) as store:
        for user, count in sizes.items():
            write(store, user, 0, min(count, FEW) if straight else count)
        tell("written")
        while store.admin.index().waiting or not fetched(address, TAKEN_IN):
            time.sleep(0.5)
        tell("with vectors")
    if straight:
        done(address, "DROP INDEX terms_held")
        for user, count in sizes.items():
            with opened(address, indexing_interval=0) as store:
                write(store, user, FEW, count)
            tell(f"{user}: all written")
            load_vectors(address)
            tell("all with vectors")
        done(address, "CREATE INDEX terms_held ON terms USING gin (terms) WITH (fastupdate = off)")
        done(address, "VACUUM ANALYZE")
    if "://" in address and sum(sizes.values()) > MIN_INDEXED:
        with opened(address, sweep_interval=3600):
            while not fetched(address, IN_ORDER):
                time.sleep(1)
        tell("and in order by meaning")


def write(store: Alcove, user: str, start: int, end: int) -> None:
    """Writes texts of a user, as anybody does."""
    chance = np.random.default_rng([2, start, zlib.crc32(user.encode())])
    for first in range(start, end, 1000):
        store.as_user(user).batch(
            [
                {
                    "op": "put",
                    "namespace": ("user", user),
                    "key": f"{n}",
                    "value": {"n": n},
                    "index": {"text": text(n, chance)},
                }
                for n in range(first, min(first + 1000, end))
            ]
        )


def load_vectors(address: str) -> None:
    """Gives every text that waits its vectors, and what it is found by."""
    embedder = Clusters()
    with psycopg.connect(address) as db:
        db.execute("SET session_replication_role = replica")  # what is loaded refers to what is there
        waiting = db.cursor("waiting")
        waiting.execute("SELECT seq, ns, index_text FROM to_index JOIN versions USING (seq)")
        while page := waiting.fetchmany(AT_ONCE):
            pieces = embed_texts(embedder, [TextToIndex(seq, words) for seq, _, words in page])
            bodies = [piece.body for piece in pieces]
            found = [index_entry(words, body) for (_, _, words), body in zip(page, bodies, strict=True)]
            places = [(seq, ns) for seq, ns, _ in page]
            copied(db, "vectors (seq, ns, embedder, body)", "int8 bytea text bytea", [
                (*place, embedder.name, body) for place, body in zip(places, bodies, strict=True)
            ])  # fmt: skip
            copied(db, "terms (seq, ns, terms)", "int8 bytea int8[]", [
                (*place, terms) for place, (terms, _) in zip(places, found, strict=True)
            ])  # fmt: skip
            copied(db, "windows (seq, ns, embedding)", "int8 bytea bytea", [
                (*place, struct.pack(">HH", len(row), 0) + np.array(row, dtype=">f2").tobytes())
                for place, (_, rows) in zip(places, found, strict=True)
                for row in rows
            ])  # fmt: skip
        waiting.close()
        db.execute("TRUNCATE to_index")
        db.execute("UPDATE searchable SET upto = (SELECT max(id) FROM vectors)")


def copied(db: psycopg.Connection, table: str, types: str, rows: Sequence[tuple[object, ...]]) -> None:
    with db.cursor().copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(types.split())
        for row in rows:
            copy.write_row(row)


def ask(address: str, user: str, count: int, *, most: int = 20_000) -> dict[str, list[list[str]]]:
    """Asks questions that nobody asked before, and tells what they took; the keys each found, by mode."""
    found, questions = dict[str, list[list[str]]](), asked_of(count)
    how = {"indexing_interval": 0, "search_memory_texts": most, "search_memory_mb": MEMORY_MB}
    with opened(address, **how) as store, Backends(address) as others:
        reader, place = store.as_user(user), ("user", user)
        before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        reader.search(place, query=questions[0])
        first = time.monotonic() - begun
        print(
            f"{user}, of {count}, {'in memory' if most > count else 'candidates'}: first search {first:.2f} s"
        )
        for question in questions[:ROUNDS]:  # another kind of cold
            reader.search(place, query=question)
        for mode in ("hybrid", "semantic", "keyword"):
            walls, ours, theirs = [], [], []
            for question in questions[ROUNDS:]:
                wall, own, backend = time.monotonic(), time.process_time(), others.seconds()
                best = reader.search(place, query=question, mode=mode)
                walls.append(time.monotonic() - wall)
                ours.append(time.process_time() - own)
                theirs.append(others.seconds() - backend)
                found.setdefault(mode, []).append([each.key for each in best])
            print(f"  {mode}: {told(walls)}; processor: ours {told(ours)}, the database's {told(theirs)}")
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"  memory +{grown:.0f} MiB, load {os.getloadavg()[0]:.1f}", flush=True)
    return found


def compare(by: str, exact: Mapping[str, list[list[str]]], found: Mapping[str, list[list[str]]]) -> None:
    for mode, every in exact.items():
        same = [len({*a} & {*b}) / len(a) for a, b in zip(every, found[mode], strict=True) if a]
        print(f"  recall@10 against {by}, {mode}: {statistics.mean(same):.3f}", flush=True)


def asked_of(count: int) -> list[str]:
    chance = np.random.default_rng(3)
    return [text(int(n), chance) for n in chance.integers(0, count, 2 * ROUNDS)]


def told(seconds: Sequence[float]) -> str:
    """The median, and in brackets the least and the 99th of a hundred."""
    least, middle, high = (1000 * np.quantile(seconds, q) for q in (0, 0.5, 0.99))
    return f"{middle:.1f} ms ({least:.1f}–{high:.1f})"


class Backends:
    """The processor time of a server's processes for a database."""

    def __init__(self, address: str) -> None:
        self._db = psycopg.connect(address, autocommit=True) if "://" in address else None

    def __enter__(self) -> Backends:
        return self

    def __exit__(self, *_: object) -> None:
        if self._db:
            self._db.close()

    def seconds(self) -> float:
        if not self._db:
            return 0.0
        pids = self._db.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()"
        ).fetchall()
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for (pid,) in pids) / 1e9


def nearest(address: str, user: str, questions: Sequence[str]) -> list[list[str]]:
    """The keys of the ten nearest to each question in meaning, of all, by comparing every vector."""
    asked, best = Clusters().embed(questions), [list[tuple[float, str]]() for _ in questions]
    with psycopg.connect(address) as db:
        every = db.cursor("every")
        every.execute(
            "SELECT v.key, x.body FROM vectors x JOIN versions v USING (seq) WHERE v.owner = %s", (user,)
        )
        while page := every.fetchmany(AT_ONCE):
            rows = np.stack([np.frombuffer(window_vectors(body)[0], dtype=np.float32) for _, body in page])
            for n, likeness in enumerate(asked @ rows.T):
                some = np.argsort(-likeness)[:10]
                pairs = [(float(likeness[row]), bytes(page[row][0]).decode()) for row in some]
                best[n] = sorted([*best[n], *pairs], reverse=True)[:10]
    return [[key for _, key in each] for each in best]


TAKEN_IN = "SELECT (SELECT max(id) FROM vectors) = (SELECT upto FROM searchable)"
IN_ORDER = "SELECT 1 FROM pg_index WHERE indisvalid AND indexrelid = to_regclass('windows_by_meaning')"


def done(address: str, statement: str) -> None:
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(statement)


def fetched(address: str, statement: str) -> bool:
    if "://" not in address:
        import apsw  # noqa: PLC0415

        return bool(apsw.Connection(address).execute(statement).get)
    with psycopg.connect(address) as db:
        row = db.execute(statement).fetchone()
        return bool(row and row[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("texts", type=int, nargs="?", default=100_000)
    parser.add_argument("--users", nargs="*", choices=USERS, default=[])
    for option in ("straight", "ask", "exact"):
        parser.add_argument(f"--{option}", action="store_true")
    asked = parser.parse_args()
    os.environ.setdefault("ALCOVE_STATE", tempfile.mkdtemp())
    sizes = {"bench": asked.texts, **{user: USERS[user] for user in asked.users}}
    if not asked.ask:
        load(asked.address, sizes, straight=asked.straight)
    for user, count in sizes.items():
        if not count:
            continue
        found = ask(asked.address, user, count)
        if "://" in asked.address:
            compare(
                "every vector", {"semantic": nearest(asked.address, user, asked_of(count)[ROUNDS:])}, found
            )
        if count > 20_000 and (asked.exact or count <= IN_MEMORY):
            compare("all in memory", ask(asked.address, user, count, most=10**9), found)
