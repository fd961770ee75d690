"""How well search finds what it should, over REST and with no LLM: one table for every kind of text.

    python bench/evaluate.py FILE.json [FILE.json …]              against a server that it starts and stops
    python bench/evaluate.py FILE.json [FILE.json …] --url URL    against one that runs

A file is never part of this repository, and has one of two layouts:

- conversations as LoCoMo has them: a turn is one memory, with its text and the date of its session as index
  fields; stored in their order, and once more in random order;
- sets `[{"name", "metric": "mrr" | "ndcg@10", "items": [{"id", "fields"}], "questions": [{"text", "gold",
  "category"}]}]`: sets whose names differ by a number are told together.

Each question is asked by default (hybrid), by meaning and by words alone, and of plain SQLite FTS5 (BM25,
Porter's stems). Means over all questions, in percent. A row is SHORT where the default is behind the best of
the others by more than a point; by more than three for a category of 25 questions, by eight for one of 15;
smaller ones are told without a verdict. It exits with 1 where one is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import re
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ablation import conversations

MODES = ("hybrid", "semantic", "keyword")
PLAIN = "FTS5"
ASKED_FOR = 40
WAIT_EVERY = 50
MOST_BYTES = 60_000
"""Of a field; the store takes no more than 64 KiB as one index text."""
TALKS = ("frac@10", "frac@20", "any@20", "ndcg@10")
SESSIONS = "sessions frac@10"
COMMON = """
a an the is are was were be been do does did has have had of to in on at for with and or what when where who
whom which how why s t it its that this
"""
"""Words that are left out of what plain full text search is asked."""
Figures = dict[str, float]


@dataclass(frozen=True)
class Asked:
    text: str
    wanted: Sequence[str]
    category: str


@dataclass(frozen=True)
class Kind:
    """Memories and questions about them."""

    name: str
    group: str
    """With which others it is told."""
    shown: Sequence[str]
    """The figures that are told."""
    items: Sequence[tuple[str, Mapping[str, str]]]
    questions: Sequence[Asked]


def kinds(file: Path) -> Iterator[Kind]:
    """What a file holds, whichever layout it has."""
    content: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    if "conversation" in content[0]:
        for talk in conversations(file):
            turns = [(turn.id, turn.fields) for turn in talk.turns]
            asked = [Asked(each.text, each.evidence, "") for each in talk.questions]
            yield Kind(talk.name, file.stem, (*TALKS, SESSIONS), turns, asked)
            shuffled = [*turns]
            random.Random(talk.name).shuffle(shuffled)
            name = f"{file.stem}, shuffled"
            yield Kind(f"{talk.name} shuffled", name, (*TALKS, SESSIONS), shuffled, asked)
        return
    for each in content:
        items = [
            (
                item["id"],
                {
                    name: text.encode()[:MOST_BYTES].decode(errors="ignore")
                    for name, text in item["fields"].items()
                },
            )
            for item in each["items"]
        ]
        asked = [Asked(one["text"], one["gold"], one["category"]) for one in each["questions"]]
        group = re.sub(r"-\d+(?=-[a-z]+$|$)", "", each["name"])
        yield Kind(each["name"], group, (each["metric"],), items, asked)


class Store:
    """A server as one user sees it; a room for each kind."""

    def __init__(self, url: str, token: str | None, user: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=120, trust_env=False)
        self._user = user
        self._ids: dict[str, str] = {}
        self.taken: list[float] = []
        """How long each search by default took, in milliseconds."""

    def _room(self, kind: Kind) -> list[str]:
        return ["user", self._user, "evaluation", hashlib.sha256(kind.name.encode()).hexdigest()[:12]]

    def write(self, kind: Kind) -> None:
        """Keeps what a kind holds, under keys that tell nothing, until all of it has its vectors."""
        for n, (id, fields) in enumerate(kind.items, 1):
            key = hashlib.sha256(f"{kind.name}/{id}".encode()).hexdigest()[:20]
            self._ids[key] = id
            body = {
                "namespace": self._room(kind),
                "key": key,
                "value": fields,
                "index": fields,
                "wait_for_index": n % WAIT_EVERY == 0,
            }
            self._http.put("/v1/memories", json=body).raise_for_status()
        while self._found(kind, "anything", "hybrid", wait_for_index=True).get("degraded"):
            time.sleep(0.1)  # a wait is half of a request's time at most

    def find(self, kind: Kind, question: str, mode: str) -> list[str]:
        started = time.perf_counter()
        answer = self._found(kind, question, mode)
        if mode == "hybrid":
            self.taken.append(1000 * (time.perf_counter() - started))
        if answer.get("degraded"):
            raise SystemExit(f"degraded: {answer['degraded']}")
        return [self._ids[item["key"]] for item in answer["items"]]

    def _found(self, kind: Kind, question: str, mode: str, **more: object) -> dict[str, Any]:
        body = {"namespace_prefix": self._room(kind), "query": question, "mode": mode, "limit": ASKED_FOR}
        answer = self._http.post("/v1/memories/search", json=body | more).raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


class Plain:
    """SQLite's own full text search."""

    def __init__(self, kind: Kind) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.execute("CREATE VIRTUAL TABLE f USING fts5(id UNINDEXED, t, tokenize='porter unicode61')")
        # Of a turn its text alone: the date is the same for many.
        rows = [(id, fields.get("text") or " ".join(fields.values())) for id, fields in kind.items]
        self._db.executemany("INSERT INTO f VALUES (?, ?)", rows)

    def find(self, question: str) -> list[str]:
        words = [word for word in re.findall(r"\w+", question.lower()) if word not in COMMON.split()] or [
            "zzz"
        ]
        match = " OR ".join(f'"{word}"' for word in words)
        rows = self._db.execute("SELECT id FROM f WHERE f MATCH ? ORDER BY bm25(f) LIMIT 40", (match,))
        return [id for (id,) in rows]


def figures(ranked: Sequence[str], wanted: Sequence[str], shown: Sequence[str]) -> Figures:
    """How well one question was answered."""
    found: Figures = {}
    for name in shown:
        if name == SESSIONS:
            found[name] = figures(_sessions(ranked), _sessions(wanted), ("frac@10",))["frac@10"]
            continue
        what, _, depth = name.partition("@")
        places = [place for place, each in enumerate(ranked[: int(depth or 20)], 1) if each in wanted]
        if what == "mrr":
            found[name] = 1 / places[0] if places else 0.0
        elif what == "ndcg":
            best = sum(1 / math.log2(place + 1) for place in range(1, min(int(depth), len(wanted)) + 1))
            found[name] = sum(1 / math.log2(place + 1) for place in places) / best
        else:
            found[name] = float(bool(places)) if what == "any" else len(places) / len(wanted)
    return found


def _sessions(turns: Sequence[str]) -> list[str]:
    """The sessions of some turns, each once, in their order."""
    return list(dict.fromkeys(turn.partition(":")[0] for turn in turns))


def evaluate(files: Sequence[Path], store: Store) -> bool:
    """Prints the table; whether nothing is short."""
    rows: defaultdict[tuple[str, str, str], defaultdict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for file in files:
        for kind in kinds(file):
            store.write(kind)
            plain = Plain(kind)
            for asked in kind.questions:
                answers = {mode: store.find(kind, asked.text, mode) for mode in MODES}
                answers[PLAIN] = plain.find(asked.text)
                for way, ranked in answers.items():
                    for name, value in figures(ranked, asked.wanted, kind.shown).items():
                        for category in {"", asked.category}:
                            rows[kind.group, category, name][way].append(value)
    print(f"| | questions | figure | {' | '.join((*MODES, PLAIN))} | |\n|---|---|---|---|---|---|---|---|")
    short = 0
    for (group, category, name), ways in rows.items():
        count = len(ways["hybrid"])
        means = {way: round(100 * statistics.fmean(values), 1) for way, values in ways.items()}
        slack = 1.0 if not category else 3.0 if count >= 25 else 8.0 if count >= 15 else math.inf
        behind = max(means.values()) - means["hybrid"]
        short += behind > slack
        told = f"SHORT by {behind:.1f}" if behind > slack else ""
        cells = " | ".join(f"{means[way]:.1f}" for way in (*MODES, PLAIN))
        print(f"| {f'– {category}' if category else group} | {count} | {name} | {cells} | {told} |")
    print(
        f"\n{short} short; a search by default over HTTP takes {statistics.median(store.taken):.1f} ms (p50)"
    )
    return not short


@contextmanager
def served() -> Iterator[str]:
    """A server on a store that is thrown away."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable, "-c", "from alcove.cli import main; main()", "serve"]
        options = ["--port", str(port), "--at", f"{folder}/memory.db", "--log-level", "warning"]
        process = subprocess.Popen([*start, *options], cwd=folder, stdout=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise SystemExit("the server did not start")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("files", type=Path, nargs="+", metavar="FILE.json")
    options.add_argument("--url", help="a server that runs; one is started otherwise")
    options.add_argument("--token", help="its bearer token, if it wants one")
    options.add_argument("--user", default="noop", help="whose memories they are")
    given = options.parse_args()
    for file in given.files:
        next(kinds(file))  # before a server is started for it
    if given.url:
        holds = evaluate(given.files, Store(given.url, given.token, given.user))
    else:
        with served() as url:
            holds = evaluate(given.files, Store(url, given.token, given.user))
    raise SystemExit(not holds)


if __name__ == "__main__":
    main()
