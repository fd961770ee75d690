"""Two nodes against one, and two workers against one, over one PostgreSQL; `bench/postgres.py` runs it.

Nodes are `alcove serve` processes that index nothing, each with its own wrk and 64 connections, all on this
machine: where the processors that PostgreSQL, the nodes and the clients share are the limit, a second node
cannot show what it is worth, so the processor time of each is told, and they are compared once more with half
a processor each, where control groups let us say so.

The embedder of the workers is a service that takes 100 ms a call, whatever it is asked, and four calls at
once. One worker asks once at a time, so that the embedder's limit is four workers.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import psycopg

from alcove import Alcove, Put, Settings
from report import Figure
from rest import READ, Server, load, script

ALCOVE = [sys.executable, "-c", "from alcove.cli import main; main()"]
TEXTS, TEXT_BYTES = 480, 1000
CALL_SECONDS, CALLS_AT_ONCE = 0.1, 4
TICKS = os.sysconf("SC_CLK_TCK")
GROUPS = Path("/sys/fs/cgroup/cpu")
"""Where the kernel is told how much of a processor some processes may have."""


def figures(address: str, folder: Path, rounds: int) -> Iterator[Figure]:
    """What two do against one."""
    if shutil.which("wrk"):
        yield from _nodes(address, folder, rounds)
        if os.access(GROUPS / "cpu.cfs_quota_us", os.W_OK):
            yield from _nodes(address, folder, rounds, halved=True)
    yield _workers(address, folder)


def _nodes(address: str, folder: Path, rounds: int, *, halved: bool = False) -> Iterator[Figure]:
    each_has = " of half a processor" if halved else ""
    command = [*ALCOVE, "serve", "--engine", address, "--indexing-interval", "0"]
    with ExitStack() as at_the_end, ThreadPoolExecutor(2) as threads:
        nodes = list[Server]()
        for _ in range(2):
            nodes.append(Server(command, folder, "/readyz"))
            at_the_end.callback(nodes[-1].stop)
            if halved:
                at_the_end.enter_context(_half(nodes[-1].pid))
        for method, path in (("PUT", "/v1/memories"), ("GET", READ.format(user="noop"))):
            lua = script(folder, "noop", None, write=method == "PUT")

            def rate(some: Sequence[Server], path: str = path, lua: Path = lua, seconds: int = 3) -> float:
                return sum(
                    found["rate"] for found in threads.map(lambda n: load(n.url + path, lua, seconds), some)
                )

            rate(nodes, seconds=1)
            both = [(rate(nodes[:1]), _used(address, nodes, lambda: rate(nodes))) for _ in range(rounds)]
            print(f"{method} over REST, two nodes{each_has}: {both[-1][1][1]}")
            rates = [(one, two) for one, (two, _) in both]
            yield _figure(f"{method}, two nodes{each_has}", f"one node{each_has}", rates)


@contextmanager
def _half(pid: int) -> Iterator[None]:
    """Gives a process at most half of a processor, in slices short enough for its clients not to notice."""
    group = GROUPS / f"alcove-{pid}"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text("10000")
    (group / "cpu.cfs_quota_us").write_text("5000")
    (group / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        (GROUPS / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def _used(address: str, nodes: Sequence[Server], work: Callable[[], float]) -> tuple[float, str]:
    """What some work gives, and how many processors the nodes and PostgreSQL had meanwhile."""
    with psycopg.connect(address, autocommit=True) as db:
        theirs = [pid for (pid,) in db.execute("SELECT pid FROM pg_stat_activity")]
    groups = {"nodes": [each.pid for each in nodes], "PostgreSQL": theirs}
    before, begun = {name: sum(map(_seconds, pids)) for name, pids in groups.items()}, time.perf_counter()
    found = work()
    took = time.perf_counter() - begun
    shares = [
        f"{name} {(sum(map(_seconds, pids)) - before[name]) / took:.2f}" for name, pids in groups.items()
    ]
    return found, f"{', '.join(shares)} of {os.cpu_count()} processors"


def _seconds(pid: int) -> float:
    """The processor time of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def _workers(address: str, folder: Path) -> Figure:
    with _embedder() as url:
        one, two = _indexed(address, folder, url, 1), _indexed(address, folder, url, 2)
    return _figure(
        "texts indexed, two workers", f"one worker, {CALL_SECONDS * 1000:.0f} ms a call", [(one, two)]
    )


def _indexed(address: str, folder: Path, url: str, workers: int) -> float:
    """Texts a second, from the first that leaves the queue to the last."""
    with Alcove(address, embedder=None, settings=Settings(sweep_interval=0)) as memory:
        words = ("tea " * TEXT_BYTES)[:TEXT_BYTES]
        memory.batch(
            [
                Put(namespace=("user", "noop"), key=f"{workers}-{n}", value={}, index={"text": words})
                for n in range(TEXTS)
            ]
        )
    command = [*ALCOVE, "worker", "--engine", address, "--embedder", url]
    running = [subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) for _ in range(workers)]
    try:
        with psycopg.connect(address, autocommit=True) as db:
            seen = [(time.perf_counter(), TEXTS)]
            while seen[-1][1]:
                time.sleep(0.02)
                ((waiting,),) = db.execute("SELECT count(*) FROM to_index WHERE due IS NOT NULL")
                seen.append((time.perf_counter(), waiting))
    finally:
        for each in running:
            each.terminate()
            each.wait(30)
    first = next((at, waiting) for at, waiting in seen if waiting <= TEXTS * 0.8)  # all of them are at it
    return first[1] / (seen[-1][0] - first[0])


@contextmanager
def _embedder() -> Iterator[str]:
    """An embeddings service of one speed."""
    places = threading.BoundedSemaphore(CALLS_AT_ONCE)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
            with places:
                time.sleep(CALL_SECONDS)
            data = [{"index": n, "embedding": [1.0] * 48} for n in range(len(asked["input"]))]
            answer = msgspec.json.encode({"data": data})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1#steady"
    finally:
        server.shutdown()


def _figure(name: str, against: str, rounds: Sequence[tuple[float, float]]) -> Figure:
    ratios = sorted(ours / base for base, ours in rounds)
    base, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
    return Figure(
        name, against, f"{ours:,.0f}/s", f"{base:,.0f}/s",
        statistics.median(ratios), ratios[0], ratios[-1], 1.7, "reach",
    )  # fmt: skip
