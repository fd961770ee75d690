"""How many files and functions of the package one request crosses, from the ASGI application to the disk.

    python bench/crossings.py [--list put]

Each request is made three times on a warm application; the last one is watched by a profiler in every thread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import alcove

PACKAGE = str(Path(alcove.__file__).parent)
ROOM = ["user", "noop", "notes"]
BODY = {"namespace": ROOM, "key": "k", "value": {"text": "tea"}, "index": {"text": "tea"}}
REQUESTS: dict[str, tuple[str, str, str, dict[str, Any] | None]] = {
    "put": ("PUT", "/v1/memories", "", BODY),
    "get": ("GET", "/v1/memories", "&".join(f"ns={each}" for each in ROOM) + "&key=k", None),
    "search": ("POST", "/v1/memories/search", "", {"namespace_prefix": ROOM, "query": "tea"}),
}


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


async def ask(application: Any, method: str, path: str, query: str, body: dict[str, Any] | None) -> int:
    """One request to the application, and its status."""
    content = json.dumps(body).encode() if body is not None else b""
    told: list[dict[str, Any]] = []
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": query.encode(), "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080),
        "headers": [(b"host", b"127.0.0.1:8080"), (b"content-type", b"application/json")],
    }  # fmt: skip
    waiting = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if told or receive.sent:  # type: ignore[attr-defined]
            await waiting.wait()
        receive.sent = True  # type: ignore[attr-defined]
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    receive.sent = False  # type: ignore[attr-defined]
    await application(scope, receive, send)
    return int(told[0]["status"])


async def crossed(application: Any, watch: Watch, request: Any) -> set[CodeType]:
    for _ in range(2):
        assert await ask(application, *request) == 200
    watch.seen.clear()
    watch.on = True
    assert await ask(application, *request) == 200
    watch.on = False
    return set(watch.seen)


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", choices=REQUESTS, help="name the functions of one request")
    options = parser.parse_args()
    watch = Watch()
    from alcove.server.config import ServeConfig  # noqa: PLC0415  after the profiler, for the threads it starts
    from alcove.server.startup import build  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        config = ServeConfig(at=f"{folder}/memory.db", embedder="none", sweep_interval=0, log_level="error")
        application = build(config)
        print(f"{'':8}{'files':>7}{'functions':>11}")
        for name, request in REQUESTS.items():
            found = await crossed(application, watch, request)
            print(f"{name:8}{len({code.co_filename for code in found}):>7}{len(found):>11}")
            if name == options.list:
                files = defaultdict(list)
                for code in found:
                    files[code.co_filename.removeprefix(PACKAGE)].append(code.co_qualname)
                for file, names in sorted(files.items()):
                    print(f"  {file}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    asyncio.run(main())
