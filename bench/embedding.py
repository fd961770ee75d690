"""What embedding long texts takes: windows a second of processor time, and the memory that is kept after it.

    python bench/embedding.py [--windows 96] [--batch-tokens 512 2048]

Each number of tokens in a batch gets a process of its own, since onnxruntime keeps what its largest batch
took. Each embeds the same made-up chat turns in calls of 16 windows, twice, and the faster round counts.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

from alcove.search.embedders import sentence_encoder
from alcove.search.embedders.minilm import MiniLM

WORDS = [
    "river",
    "garden",
    "winter",
    "letter",
    "kitchen",
    "travel",
    "morning",
    "doctor",
    "number",
    "window",
    "music",
    "because",
    "together",
    "question",
    "answer",
    "meeting",
    "project",
    "schedule",
    "budget",
    "harbour",
    "lantern",
    "bicycle",
    "orchard",
    "ticket",
    "museum",
]
CALL = 16


def resident_mb() -> tuple[int, int]:
    """What this process holds now, and the most that it ever held."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return pages * resource.getpagesize() // 2**20, most


def turns(count: int) -> list[str]:
    """Texts of 20 to 240 words, as the windows of long chat turns are."""
    chance = random.Random(7)
    return [" ".join(chance.choices(WORDS, k=chance.randint(20, 240))) for _ in range(count)]


def measure(batch_tokens: int, count: int) -> None:
    """Prints a row, from a process that has done nothing else."""
    sentence_encoder.BATCH_TOKENS = batch_tokens
    model, texts, least = MiniLM(), turns(count), float("inf")
    model.embed(["warm up"])
    loaded, _ = resident_mb()
    for _ in range(2):
        begun = time.process_time()
        for n in range(0, count, CALL):
            model.embed(texts[n : n + CALL])
        least = min(least, time.process_time() - begun)
    after, most = resident_mb()
    print(f"| {batch_tokens:,} | {count / least:.1f} | {loaded} | {after} | {most} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--windows", type=int, default=96)
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--one", action="store_true", help="in this process, the first number only")
    given = parser.parse_args()
    if given.one:
        return measure(given.batch_tokens[0], given.windows)
    print("| tokens in a batch | windows a CPU second | MB loaded | MB after | MB at most |")
    print("|---|---|---|---|---|", flush=True)
    for tokens in given.batch_tokens:
        asked = ["--one", "--windows", str(given.windows), "--batch-tokens", str(tokens)]
        subprocess.run([sys.executable, __file__, *asked], check=True)
    return None


if __name__ == "__main__":
    main()
