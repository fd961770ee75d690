"""An OpenAI-compatible embeddings service over real HTTP, which can be told to misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

from tests.support.hashed_embedder import Bag
from tests.support.json_service import answering
from tests.support.service import free_port

POISON = "poison"


class Embeddings:
    """`behaviour` is one of well, slow, held (until `free`), garbage, dimensions, nan, refuses, poison."""

    def __init__(self, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.behaviour = "well"
        self.free = threading.Event()
        self.embedded = 0
        """Texts that were answered well."""
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A client that did not wait is what these tests are about."""

        self._server = Server(("127.0.0.1", self.port), answering(lambda body, _: self.answer(body)))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        texts: list[str] = body["input"]
        match self.behaviour:
            case "slow":
                time.sleep(1)
            case "held":
                self.free.wait()
            case "garbage":
                return 200, b'{"data": [{"index": 0, "embedding": "what"'
            case "refuses":
                return 500, b"{}"
            case "poison" if any(POISON in text for text in texts):
                return 400, b'{"error": {"message": "no"}}'
        rows = Bag(body["model"], 24 if self.behaviour == "dimensions" else 48).embed(texts).tolist()
        if self.behaviour == "nan":
            rows[-1][0] = float("nan")
        self.embedded += len(texts)
        data = [{"index": n, "embedding": row} for n, row in enumerate(rows)]
        return 200, json.dumps({"data": data}).encode()


@contextmanager
def embeddings() -> Iterator[Embeddings]:
    """A service for the length of a `with`; it may be stopped and started in between."""
    service = Embeddings()
    service.start()
    try:
        yield service
    finally:
        service.stop()
