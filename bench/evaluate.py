"""Recall of the whole service, with no LLM: turns of conversations are stored over REST and asked for.

    python bench/evaluate.py DATA.json                  against a server that it starts and stops
    python bench/evaluate.py DATA.json --shuffle        with the turns stored in random order
    python bench/evaluate.py DATA.json --url URL        against one that runs

DATA.json is LoCoMo's layout, and is never part of this repository. A turn is one memory with its text and the
date of its session as index fields, under a key that tells nothing; the turns that a question's author marked
are what a search should find. Means over all questions: `any@k` (one of them is among the first k), `all@k`,
`frac@k` (the share of them), `ndcg@10`, `mrr`; and the same for the sessions that the turns belong to.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from ablation import Conversation, conversations

DEPTHS = (5, 10, 20)
ASKED_FOR = 40
WAIT_EVERY = 50
Figures = dict[str, float]


class Store:
    """A server as one user sees it; a room for each conversation."""

    def __init__(self, url: str, token: str | None, user: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=120, trust_env=False)
        self._user = user
        self._turns: dict[str, str] = {}

    def _room(self, name: str) -> list[str]:
        return ["user", self._user, "evaluation", name]

    def write(self, talk: Conversation, *, shuffle: bool) -> None:
        turns = list(talk.turns)
        if shuffle:
            random.Random(talk.name).shuffle(turns)
        for n, turn in enumerate(turns, 1):
            key = hashlib.sha256(f"{talk.name}/{turn.id}".encode()).hexdigest()[:20]
            self._turns[key] = turn.id
            body = {
                "namespace": self._room(talk.name),
                "key": key,
                "value": {"text": turn.fields["text"]},
                "index": turn.fields,
                "wait_for_index": n == len(turns) or n % WAIT_EVERY == 0,
            }
            self._http.put("/v1/memories", json=body).raise_for_status()

    def find(self, name: str, question: str) -> list[str]:
        body = {"namespace_prefix": self._room(name), "query": question, "limit": ASKED_FOR}
        answer = self._http.post("/v1/memories/search", json=body).raise_for_status().json()
        if answer.get("degraded"):
            raise SystemExit(f"degraded: {answer['degraded']}")
        return [self._turns[item["key"]] for item in answer["items"]]


def figures(ranked: Sequence[str], wanted: Sequence[str]) -> Figures:
    """How well one question was answered."""
    places = [place for place, each in enumerate(ranked, 1) if each in wanted]
    found: Figures = {}
    for depth in DEPTHS:
        hits = sum(place <= depth for place in places)
        found[f"any@{depth}"] = float(hits > 0)
        found[f"all@{depth}"] = float(hits == len(wanted))
        found[f"frac@{depth}"] = hits / len(wanted)
    gain = sum(1 / math.log2(place + 1) for place in places if place <= 10)
    found["ndcg@10"] = gain / sum(1 / math.log2(place + 1) for place in range(1, min(10, len(wanted)) + 1))
    found["mrr"] = 1 / places[0] if places else 0.0
    return found


def sessions(turns: Sequence[str]) -> list[str]:
    """The sessions of some turns, each once, in their order."""
    return list(dict.fromkeys(turn.partition(":")[0] for turn in turns))


def evaluate(data: Path, store: Store, *, shuffle: bool) -> None:
    turns, parts, taken = list[Figures](), list[Figures](), list[float]()
    for talk in conversations(data):
        store.write(talk, shuffle=shuffle)
        for asked in talk.questions:
            start = time.perf_counter()
            ranked = store.find(talk.name, asked.text)
            taken.append(1000 * (time.perf_counter() - start))
            turns.append(figures(ranked, asked.evidence))
            parts.append(figures(sessions(ranked), sessions(asked.evidence)))
    p50 = statistics.median(taken)
    print(f"{len(turns)} questions{', shuffled' * shuffle}; a search over HTTP takes {p50:.1f} ms (p50)")
    for label, rows in (("turns", turns), ("sessions", parts)):
        means = [f"{name} {100 * statistics.fmean(row[name] for row in rows):.1f}" for name in rows[0]]
        print(f"{label + ':':<10}{'  '.join(means)}")


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
    options.add_argument("data", type=Path)
    options.add_argument("--url", help="a server that runs; one is started otherwise")
    options.add_argument("--token", help="its bearer token, if it wants one")
    options.add_argument("--user", default="noop", help="whose memories they are")
    options.add_argument("--shuffle", action="store_true", help="store the turns in random order")
    given = options.parse_args()
    json.loads(given.data.read_text())  # before a server is started for it
    if given.url:
        evaluate(given.data, Store(given.url, given.token, given.user), shuffle=given.shuffle)
        return
    with served() as url:
        evaluate(given.data, Store(url, given.token, given.user), shuffle=given.shuffle)


if __name__ == "__main__":
    main()
