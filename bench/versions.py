"""One version of Alcove against another, over REST, as ratios in one run.

    python bench/versions.py BEFORE AFTER      (two `src` folders; needs wrk, Debian: apt-get install wrk)

GET and PUT with 64 clients, as in `rest.py`; then chat: 100 sessions that stream at once from a model that
sends 100 pieces. Rounds alternate between the versions, and each figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from chat import ALICE, PIECES, SECRET, at_once, model, port
from rest import READ, Server, load, script

ALCOVE = [sys.executable, "-c", "from alcove.cli import main; main()", "serve"]
SPECS = "agents: [{name: all, memory: {conversation: {}, long_term: {}}}]"
STREAMS = 100


def processor_seconds(pid: int) -> float:
    """The processor time that a process took so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(source: Path, folder: Path, llm: str) -> Server:
    os.environ["PYTHONPATH"] = str(source)
    flags = ["--at", f"{source.parent.name}.db", "--agents", "agents.yaml", "--log-level", "warning"]
    flags += ["--llm-url", llm, "--llm-model", "bench", "--auth", "jwt", "--jwt-secret", SECRET]
    return Server([*ALCOVE, *flags], folder, "/readyz")


def requests(server: Server, folder: Path, *, write: bool) -> float:
    """Requests a second."""
    lua = script(folder, "alice", ALICE["authorization"].removeprefix("Bearer "), write=write)
    return load(server.url + ("/v1/memories" if write else READ.format(user="alice")), lua, 3)["rate"]


def streams(server: Server, n: int) -> tuple[float, float]:
    """The median time to the first piece of a stream, in ms, and processor milliseconds of a stream."""
    before = processor_seconds(server.pid)
    bodies = [{"session_id": f"{n}-{k}", "message": "Hello there.", "stream": True} for k in range(STREAMS)]
    firsts, _ = asyncio.run(at_once(f"{server.url}/v1/agents/all/chat", bodies, 2.0, server.pid))
    return statistics.median(firsts), 1000 * (processor_seconds(server.pid) - before) / STREAMS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=Path.cwd(), prefix=".bench-"))
    (folder / "agents.yaml").write_text(SPECS)
    llm = port()
    provider = multiprocessing.get_context("spawn").Process(target=model, args=(llm,), daemon=True)
    provider.start()
    print(f"load {os.getloadavg()[0]:.2f}")
    sources = (options.before.resolve(), options.after.resolve())
    servers = [start(source, folder, f"http://127.0.0.1:{llm}/v1") for source in sources]
    results: dict[str, list[list[float]]] = {}

    def measure(name: str, run: Callable[[Server], float]) -> None:
        results.setdefault(name, []).append([run(server) for server in servers])

    try:
        for server in servers:  # the first turn loads the model of the embedder
            streams(server, -1)
        for n in range(options.rounds):
            measure("PUT, requests/s", lambda server: requests(server, folder, write=True))
            measure("GET, requests/s", lambda server: requests(server, folder, write=False))
            both = [streams(server, n) for server in servers]
            results.setdefault("chat, ms to the first piece", []).append([first for first, _ in both])
            results.setdefault("chat, processor ms a stream", []).append([spent for _, spent in both])
    finally:
        for server in servers:
            server.stop()
        provider.kill()
        shutil.rmtree(folder)
    print(f"{'':34}{'before':>10}{'after':>10}{'after/before':>14}   ({STREAMS} streams of {PIECES} pieces)")
    for name, rounds in results.items():
        before, after = (statistics.median(each) for each in zip(*rounds, strict=True))
        print(f"{name:34}{before:>10.1f}{after:>10.1f}{after / before:>14.2f}")


if __name__ == "__main__":
    main()
