"""A hundred sessions that stream at once share one process, and each hears its own answer to its end."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import httpx

from tests.support.llm_server import llm_server, text
from tests.support.service import serving
from tests.support.waiting import PATIENCE, until

SPECS = "agents: [{name: talk, memory: {conversation: {}}}]"
STREAMS, PIECES = 100, 20


async def listen(client: httpx.AsyncClient, n: int) -> str:
    """What one session hears."""
    body = {"session_id": f"s{n}", "message": f"I am number {n}.", "stream": True}
    heard = ""
    async with client.stream("POST", "/v1/agents/talk/chat", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                heard += json.loads(line[6:]).get("text", "")
    return heard


async def everybody(url: str) -> list[str]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits, trust_env=False) as client:
        return await asyncio.gather(*(listen(client, n) for n in range(STREAMS)))


def test_a_hundred_sessions_stream_at_once(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    flags = ["--agents", specs, "--embedder", "none"]
    with llm_server(tmp_path) as llm, serving(tmp_path, *flags, "--llm-url", llm.url) as service:
        answers = [
            text(f"You are number {n}. " + "Well. " * PIECES, pieces=PIECES, delay=0.2, when=f"number {n}.")
            for n in range(STREAMS)
        ]
        llm.play(*answers)
        heard: list[str] = []
        talking = threading.Thread(target=lambda: heard.extend(asyncio.run(everybody(service.url))))
        talking.start()
        until(lambda: llm.waiting == STREAMS)
        assert service.call("GET", "/healthz").status_code == 200
        talking.join(PATIENCE)
        assert heard == [f"You are number {n}. " + "Well. " * PIECES for n in range(STREAMS)]
        kept = service.call("GET", "/v1/agents/talk/sessions", params={"limit": 1000}).json()["sessions"]
        assert [each["messages"] for each in kept] == [2] * STREAMS
        assert len(llm.requests) == STREAMS
