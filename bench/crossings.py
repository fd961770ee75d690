"""How many files and functions of the package one request crosses, from the ASGI application to the disk.

    python bench/crossings.py [--list put]

Each request is made three times on a warm application; a profiler in every thread watches the last one.
Lambdas and comprehensions count as part of the function that they stand in.

A PUT and a GET run without an embedder, so that no indexer runs at the same time. The hybrid search and
the chat turn run with the built-in one; the LLM is a server in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import alcove

PACKAGE = str(Path(alcove.__file__).parent)
ROOM = ["user", "noop", "notes"]
BODY = {"namespace": ROOM, "key": "k", "value": {"text": "tea"}, "index": {"text": "tea"}}
Request = tuple[str, str, str, dict[str, Any] | None]
WITHOUT_EMBEDDER: dict[str, Request] = {
    "put": ("PUT", "/v1/memories", "", BODY),
    "get": ("GET", "/v1/memories", "&".join(f"ns={each}" for each in ROOM) + "&key=k", None),
}
WITH_EMBEDDER: dict[str, Request] = {
    "search": ("POST", "/v1/memories/search", "", {"namespace_prefix": ROOM, "query": "tea"}),
    "chat": ("POST", "/v1/agents/helper/chat", "", {"session_id": "s", "message": "Which tea do I like?"}),
}
SPECS = "agents: [{name: helper, memory: {conversation: {}, long_term: {}}}]"


class Watch:
    """Takes down every function of the package that is called while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.seen: set[CodeType] = set()
        sys.setprofile(self._called)
        threading.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.seen.add(frame.f_code)


async def send(application: Any, method: str, path: str, query: str, body: dict[str, Any] | None) -> int:
    """Sends one request to the application and returns the status of its answer."""
    content = json.dumps(body).encode() if body is not None else b""
    statuses: list[int] = []
    requests = iter([{"type": "http.request", "body": content, "more_body": False}])
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": query.encode(), "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080),
        "headers": [(b"host", b"127.0.0.1:8080"), (b"content-type", b"application/json")],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        for request in requests:
            return request
        await asyncio.Event().wait()
        raise AssertionError("the client never disconnects")

    async def respond(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await application(scope, receive, respond)
    return statuses[0]


class LLM(BaseHTTPRequestHandler):
    """An OpenAI-compatible LLM that always gives the same answer."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "Green tea."}
        usage = {"prompt_tokens": 10, "completion_tokens": 3}
        answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def llm() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), LLM) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


async def crossed(application: Any, watch: Watch, request: Request) -> set[CodeType]:
    for _ in range(2):
        assert await send(application, *request) == 200
    await asyncio.sleep(1)  # the indexer and other background threads finish what the request began
    watch.seen.clear()
    watch.on = True
    assert await send(application, *request) == 200
    watch.on = False
    return {code for code in watch.seen if not code.co_name.startswith("<")}


def report(name: str, found: set[CodeType], *, listed: bool) -> None:
    print(f"{name:8}{len({code.co_filename for code in found}):>7}{len(found):>11}", file=sys.__stdout__)
    files = defaultdict(list)
    for code in found if listed else ():
        files[code.co_filename.removeprefix(PACKAGE)].append(code.co_qualname)
    for file, names in sorted(files.items()):
        print(f"  {file}: {', '.join(sorted(names))}", file=sys.__stdout__)


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", choices=WITHOUT_EMBEDDER | WITH_EMBEDDER, help="name its functions")
    options = parser.parse_args()
    watch = Watch()
    from alcove.server.config import ServeConfig  # noqa: PLC0415  after the profiler, for the threads it starts
    from alcove.server.startup import build  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder, llm() as url:
        (Path(folder) / "agents.yaml").write_text(SPECS, encoding="utf-8")
        shared: dict[str, Any] = {
            "sweep_interval": 0,
            "log_level": "error",
            "agents": f"{folder}/agents.yaml",
        }
        shared |= {"llm_url": url, "llm_model": "bench"}
        print(f"{'':8}{'files':>7}{'functions':>11}", file=sys.__stdout__)
        for embedder, requests in ("none", WITHOUT_EMBEDDER), ("minilm", WITH_EMBEDDER):
            config = ServeConfig(at=f"{folder}/{embedder}.db", embedder=embedder, **shared)
            application = build(config)
            assert await send(application, *WITHOUT_EMBEDDER["put"]) == 200
            for name, request in requests.items():
                report(name, await crossed(application, watch, request), listed=name == options.list)


if __name__ == "__main__":
    with Path(os.devnull).open("w", encoding="utf-8") as requests_log, redirect_stdout(requests_log):
        asyncio.run(main())
