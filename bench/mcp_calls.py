"""A tool call over MCP against the same call over REST, as ratios in one run.

    python bench/mcp_calls.py [--calls 500] [--rounds 7]

One service on this machine, one worker, and tokens as in production. The same thin client (httpx, one
connection that it keeps) sends the JSON-RPC of a call to `/mcp/{agent}`, in the words of 2025-11-25 and of
2026-07-28, and the REST request to `/v1/agents/{agent}/tools/{tool}`; calls of the three take turns, so that
whatever else the machine does falls on all of them alike. Then the official client does, whose own cost is
most of what it takes. The bar: 1.5 times REST.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from chat import ALICE, SECRET, port
from sample import folder

SPECS = "agents: [{name: researcher, memory: {private: {}}}]\n"
AGENT = "/v1/agents/researcher/tools"
MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
TOOLS: dict[str, dict[str, Any]] = {
    "recall": {"key": "tea"},
    "remember": {"key": "tea", "content": "Green tea, in the afternoon, without sugar."},
}
BAR = 1.5


@contextmanager
def running(at: Path) -> Iterator[str]:
    """The address of a service."""
    here = port()
    (at / "agents.yaml").write_text(SPECS)
    words = ["serve", "--port", here, "--at", at / "memory.db", "--agents", at / "agents.yaml"]
    words += ["--auth", "jwt", "--jwt-secret", SECRET, "--log-level", "warning"]
    service = subprocess.Popen(
        [sys.executable, "-c", "from alcove.cli import main; main()", *map(str, words)],
        stdout=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{here}"
    try:
        while True:
            try:
                if httpx.get(f"{address}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield address
    finally:
        service.terminate()
        service.wait()


def ways(client: httpx.Client, tool: str) -> dict[str, Callable[[], bytes]]:
    """How a call is made, by name; each gives the answer's body."""
    arguments = TOOLS[tool]

    def post(path: str, body: dict[str, Any], headers: dict[str, str]) -> bytes:
        return client.post(path, json=body, headers=headers).raise_for_status().content

    def rpc(version: str, **meta: Any) -> Callable[[], bytes]:
        params = {"name": tool, "arguments": arguments, **meta}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": version}
        if meta:
            headers |= {"mcp-method": "tools/call", "mcp-name": tool}
        return lambda: post("/mcp/researcher", body, headers)

    return {
        "REST": lambda: post(f"{AGENT}/{tool}", {"arguments": arguments}, {}),
        "MCP of 2025-11-25": rpc("2025-11-25"),
        "MCP of 2026-07-28": rpc(MODERN, _meta=META),
    }


def thin(address: str, tool: str, calls: int) -> dict[str, float]:
    """The middle of each way's times, in milliseconds."""
    took: dict[str, list[float]] = {}
    with httpx.Client(base_url=address, headers=ALICE, timeout=60) as client:
        known = ways(client, tool)
        for n in range(calls + 20):
            for name, call in known.items():
                started = time.perf_counter()
                answer = call()
                if n >= 20:
                    took.setdefault(name, []).append((time.perf_counter() - started) * 1000)
                assert b'"isError":true' not in answer
    return {name: statistics.median(times) for name, times in took.items()}


async def official(address: str, tool: str, calls: int) -> dict[str, float]:
    """The same with the SDK's client, and REST beside it with the library that it is made with."""
    took: dict[str, list[float]] = {"REST by httpx2": []}
    async with httpx2.AsyncClient(headers=ALICE, timeout=60) as http:
        for mode in ("legacy", "auto"):
            transport = streamable_http_client(f"{address}/mcp/researcher", http_client=http)
            async with Client(transport, mode=mode) as client:
                times = took[f"official client, {client.protocol_version}"] = []
                for n in range(calls // 4 + 5):
                    started = time.perf_counter()
                    assert not (await client.call_tool(tool, TOOLS[tool])).is_error
                    middle = time.perf_counter()
                    (await http.post(f"{address}{AGENT}/{tool}", json={"arguments": TOOLS[tool]})).json()
                    if n >= 5:
                        times.append((middle - started) * 1000)
                        took["REST by httpx2"].append((time.perf_counter() - middle) * 1000)
    return {name: statistics.median(times) for name, times in took.items()}


def told(tool: str, rounds: list[dict[str, float]], *, bar: bool) -> None:
    """Every run, and the middle of all; ratios are to the first way."""
    base, *_ = rounds[0]
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        ratios = [each[name] / each[base] for each in rounds]
        runs = " ".join(f"{each:.3f}" for each in values)
        middle = statistics.median(ratios)
        verdict = f"   bar {BAR}: {'met' if middle <= BAR else 'missed'}" if bar and name != base else ""
        print(f"{tool:9} {name:30} {statistics.median(values):7.3f} ms   x {middle:.2f}{verdict}")
        print(f"{'':40} runs {runs}   ratios {' '.join(f'{each:.2f}' for each in ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with folder() as at, running(at) as address:
        thin(address, "remember", 1)
        print(f"load {os.getloadavg()[0]:.2f}")
        for tool in TOOLS:
            told(tool, [thin(address, tool, given.calls) for _ in range(given.rounds)], bar=True)
        for tool in TOOLS:
            rounds = [asyncio.run(official(address, tool, given.calls)) for _ in range(given.rounds)]
            told(tool, rounds, bar=False)


if __name__ == "__main__":
    main()
