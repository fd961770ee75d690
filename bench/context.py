"""How long the context of a message takes, beside embedding it: 1,000 memories, 200 turns, 1,000 chunks.

    python bench/context.py [--rounds 50]

The store is a file in a temporary folder. Half of the memories are facts, half long-term ones, twenty of
them standing instructions; the conversation has both summaries, and the chunks are of twenty documents.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from alcove import Alcove, Settings
from alcove.core.records import Message, Put

SPECS = """
knowledge: [{name: manuals, path: manuals}]
agents:
  - name: all
    instructions: You are a helpful assistant.
    memory:
      private: {}
      conversation: {window_size: 20, summarize: true}
      session_memory: true
      knowledge: {sources: [manuals]}
      facts: {max_facts: 1000}
      long_term: {}
"""
SUBJECTS = (
    "tea",
    "trains",
    "gardens",
    "violins",
    "mountains",
    "bread",
    "chess",
    "bicycles",
    "lakes",
    "stamps",
)
KNOWN = "user:alice:long-term:agent:all"
VERBS = (
    "likes",
    "collects",
    "avoids",
    "reads about",
    "dreams of",
    "pays for",
    "talks about",
    "has forgotten",
)


def sentence(n: int) -> str:
    return f"The user {VERBS[n % 8]} {SUBJECTS[n % 10]} number {n} since {1990 + n % 30}."


def fill(memory: Alcove, folder: Path, agents: Any) -> None:
    for document in range(20):
        parts = (
            f"## Part {n}\n\n{' '.join(sentence(1000 * document + n + m) for m in range(6))}\n"
            for n in range(50)
        )
        (folder / "manuals" / f"{document}.md").write_text(f"# Manual {document}\n\n{''.join(parts)}")
    agents.sync_source("manuals")
    alice = memory.as_user("alice")
    for start in range(0, 500, 100):
        facts = [Put("facts:all:u:alice", f"f{n}", {"content": sentence(n)}, index={"content": sentence(n)})
                 for n in range(start, start + 100)]  # fmt: skip
        alice.batch(facts)
        kinds = ["instruction" if n % 25 == 0 else "fact" for n in range(start, start + 100)]
        values = [
            {"content": sentence(start + n + 7), "type": kind, "tags": []} for n, kind in enumerate(kinds)
        ]
        alice.batch([
            Put(KNOWN, f"agent-{start + n}", each, index={"content": str(each["content"])})
            for n, each in enumerate(values)
        ])  # fmt: skip
    talk = agents.as_user("alice")
    for n in range(100):
        talk.add_turns("all", "old" if n < 10 else "now", [
            Message(role="user", content=sentence(n)), Message(role="assistant", content="I see."),
        ])  # fmt: skip
    talk.end_session("all", "old")
    while memory.admin.index().waiting or talk.summary("all").pending == ["now", "old"]:
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "manuals").mkdir()
        (at / "agents.yaml").write_text(SPECS)
        with Alcove(at / "memory.db", settings=Settings()) as memory:
            agents = memory.agents(at / "agents.yaml")
            fill(memory, at, agents)
            alice = agents.as_user("alice")
            stages: dict[str, list[float]] = {}
            for n in range(rounds + 5):
                started = time.perf_counter()
                receipt = alice.context(
                    "all", "now", f"What does the user like about {SUBJECTS[n % 10]}?"
                ).receipt
                whole = (time.perf_counter() - started) * 1000
                beside = {"beside embedding": whole - receipt.timings_ms["embedding"]}
                for name, ms in {**receipt.timings_ms, **beside}.items():
                    stages.setdefault(name, []).append(ms)
            print(f"load {os.getloadavg()[0]:.2f}; {rounds} contexts of {receipt.total_tokens} tokens")
            for name, values in stages.items():
                last = sorted(values[5:])
                middle, late = statistics.median(last), last[int(len(last) * 0.99)]
                print(f"{name:18} p50 {middle:7.2f} ms   p99 {late:7.2f} ms")


if __name__ == "__main__":
    main()
