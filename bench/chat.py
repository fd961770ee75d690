"""What a turn costs beside the model: an agent with every tier, over REST, and a model that answers at once.

    python bench/chat.py [--turns 100] [--streams 100]

The service and the model are processes of their own on this machine, and the store is filled as in
`context.py`. Every figure stands beside the same call to the model with nothing in between.

1. Turns one after the other: their time, without that of a bare call and of embedding the message.
2. So many sessions that stream at once, begun over five seconds and then all in one moment: the time to the
   first piece, without that of the model; and the memory of the service before, during and after.
3. One answer of 20,000 pieces: the memory of the service while it streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt

from alcove import Alcove, Settings
from context import SPECS, SUBJECTS, fill
from sample import folder

FIRST, BETWEEN, PIECES = 0.05, 0.05, 100
"""Of an answer that streams: seconds before its first piece and each other, and how many there are."""
LONG = 20_000
SECRET = "a secret that is long enough for HS256 to be taken seriously"
TOKEN = jwt.encode({"sub": "alice", "exp": int(time.time()) + 86_400}, SECRET, algorithm="HS256")
ALICE = {"authorization": f"Bearer {TOKEN}"}
USAGE = {"prompt_tokens": 3000, "completion_tokens": 100}


def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def model(at: int) -> None:
    """A model that answers at once, or, where it is to stream, piece by piece."""

    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: %b\n\n" % json.dumps({"choices": [choice], "usage": USAGE}).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).lower():
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                if not body.get("stream"):
                    message = {"role": "assistant", "content": "I see what you mean."}
                    whole = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE}
                    told = json.dumps(whole).encode()
                    writer.write(
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                        % (len(told), told)
                    )
                    continue
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
                )
                long = "long answer" in json.dumps(body["messages"][-1])
                await asyncio.sleep(FIRST)
                for n in range(LONG if long else PIECES):
                    writer.write(chunk({"content": f"word {n} "}))
                    await writer.drain()
                    await asyncio.sleep(0 if long else BETWEEN)
                writer.write(chunk({}, "stop") + b"data: [DONE]\n\n")
                writer.close()
                return
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", at, backlog=512) as server:
            await server.serve_forever()

    asyncio.run(main())


@contextmanager
def running(at: Path) -> Iterator[tuple[str, str, int]]:
    """The addresses of the service and of the model, and the service's process."""
    upstream, here = port(), port()
    played = multiprocessing.get_context("spawn").Process(target=model, args=(upstream,), daemon=True)
    played.start()
    url = f"http://127.0.0.1:{upstream}/v1"
    words = ["serve", "--port", here, "--at", at / "memory.db", "--agents", at / "agents.yaml"]
    words += ["--llm-url", url, "--llm-model", "bench", "--log-level", "warning"]
    words += ["--auth", "jwt", "--jwt-secret", SECRET]
    service = subprocess.Popen(
        [sys.executable, "-c", "from alcove.cli import main; main()", *map(str, words)],
        stdout=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{here}"
        while True:
            try:
                if httpx.get(f"{address}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield address, url, service.pid
    finally:
        service.terminate()
        service.wait()
        played.kill()


def resident(pid: int) -> float:
    """Megabytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def told(what: str, values: Sequence[float]) -> None:
    ordered = sorted(values)
    middle, late = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    print(f"{what:58} p50 {middle:8.1f} ms   p99 {late:8.1f} ms")


def turns(service: str, upstream: str, count: int) -> None:
    """Turns one after the other, and bare calls in between."""
    bare, whole, embedding = list[float](), list[float](), list[float]()
    stages: dict[str, list[float]] = {}
    with httpx.Client(timeout=60, headers=ALICE) as client:
        for n in range(count + 5):
            message = f"What does the user like about {SUBJECTS[n % 10]}?"
            body = {"session_id": "now", "message": message}
            context = client.post(f"{service}/v1/agents/all/context", json=body).json()["messages"]
            started = time.perf_counter()
            reply = client.post(f"{service}/v1/agents/all/chat", json=body).json()
            took = (time.perf_counter() - started) * 1000
            started = time.perf_counter()
            client.post(f"{upstream}/chat/completions", json={"model": "m", "messages": context})
            if n >= 5:
                bare.append((time.perf_counter() - started) * 1000)
                whole.append(took)
                embedding.append(reply["receipt"]["timings_ms"]["embedding"])
                parts = {f"context: {name}": ms for name, ms in reply["receipt"]["timings_ms"].items()}
                for name, ms in {**reply["timings_ms"], **parts}.items():
                    stages.setdefault(name, []).append(ms)
    told("a turn", whole)
    told("a bare call of the model with the same messages", bare)
    told("embedding the message", embedding)
    for name, values in stages.items():
        told(f"  of a turn, {name}", values)
    beside = [a - b - c for a, b, c in zip(whole, bare, embedding, strict=True)]
    told("overhead of a turn beside model and embedding (bar 25)", beside)


async def first_piece(client: httpx.AsyncClient, url: str, body: dict[str, Any], after: float) -> float:
    """How long the first piece of an answer takes, in milliseconds; the rest of it is read, too."""
    await asyncio.sleep(after)
    started, first = time.perf_counter(), 0.0
    async with client.stream("POST", url, json=body) as response:
        async for line in response.aiter_lines():
            if not first and line.startswith("data:"):
                first = (time.perf_counter() - started) * 1000
    return first


async def at_once(
    url: str, bodies: Sequence[dict[str, Any]], spread: float, pid: int
) -> tuple[list[float], float]:
    """The first pieces of as many streams, begun over some seconds, and the most memory meanwhile."""
    most = 0.0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, resident(pid))
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    async with httpx.AsyncClient(
        timeout=120, headers=ALICE, limits=httpx.Limits(max_connections=None)
    ) as client:
        work = [first_piece(client, url, body, spread * n / len(bodies)) for n, body in enumerate(bodies)]
        found = await asyncio.gather(*work)
    watching.cancel()
    return found, most


def streams(service: str, upstream: str, count: int, pid: int) -> None:
    def bodies(name: str) -> list[dict[str, Any]]:
        return [
            {"session_id": f"{name}-{n}", "message": f"What about {SUBJECTS[n % 10]}?", "stream": True}
            for n in range(count)
        ]

    asked = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    chat = f"{service}/v1/agents/all/chat"
    asyncio.run(at_once(chat, bodies("warm")[:5], 0, pid))
    for name, spread in (("over five seconds", 5.0), ("in one moment", 0.0)):
        before = resident(pid)
        bare, _ = asyncio.run(at_once(f"{upstream}/chat/completions", [asked] * count, spread, pid))
        found, most = asyncio.run(at_once(chat, bodies(name), spread, pid))
        told(f"{count} streams begun {name}: first piece", found)
        told("  the model's own first piece, as many at once", bare)
        base = statistics.median(bare)
        told("  overhead of the first piece", [each - base for each in found])
        print(f"  memory: {before:.0f} MB before, {most:.0f} at most, {resident(pid):.0f} after")


def long_answer(service: str, pid: int) -> None:
    samples = []
    body = {"session_id": "long", "message": "A long answer, please.", "stream": True}
    with httpx.stream(
        "POST", f"{service}/v1/agents/all/chat", json=body, headers=ALICE, timeout=300
    ) as response:
        for n, line in enumerate(response.iter_lines()):
            if n % 4000 == 0 and line is not None:
                samples.append(resident(pid))
    print(f"one answer of {LONG:,} pieces: memory {', '.join(f'{each:.0f}' for each in samples)} MB along it")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--streams", type=int, default=100)
    given = parser.parse_args()
    with folder() as at:
        (at / "manuals").mkdir()
        (at / "agents.yaml").write_text(SPECS)
        with Alcove(at / "memory.db", settings=Settings()) as memory:
            fill(memory, at, memory.agents(at / "agents.yaml"))
        print(f"load {os.getloadavg()[0]:.2f}")
        with running(at) as (service, upstream, pid):
            turns(service, upstream, given.turns)
            streams(service, upstream, given.streams, pid)
            long_answer(service, pid)


if __name__ == "__main__":
    main()
