"""Qdrant's client in its local mode, behind the few REST endpoints that are used here.

It is no Qdrant: what filters and scores mean is the client's own imitation of the server. But it is a process
that is reached over a socket, hangs when it is stopped and is gone when it is killed. Tests that stop nothing
run against a real server where `ALCOVE_TEST_QDRANT` has its address.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from qdrant_client import QdrantClient, models

KEY = "a-key-of-the-tests"


class Server:
    """One such process; with a folder, what it holds is there when it is killed and started again."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder or ":memory:"
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"qdrant://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", __name__, str(self._folder), str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with self.process.stdout as told:  # type: ignore[union-attr]
            self.port = int(told.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(folder: Path | None = None) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.kill()


class Handler(BaseHTTPRequestHandler):
    """Takes a request, asks the client, and answers as the server would."""

    protocol_version = "HTTP/1.1"
    client: QdrantClient
    one_at_a_time = threading.Lock()

    def handle_request(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        body, parts = self.rfile.read(size), self.path.partition("?")[0].split("/")[2:]
        status, result = 401, "no such key"
        if self.headers.get("api-key") == KEY:
            try:
                with self.one_at_a_time:
                    status, result = 200, self.answer(self.command, *parts, body=body)
            except ValueError as error:
                status, result = 404, str(error)
        answer = json.dumps({"result": result, "status": "ok", "time": 0.0}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815  as the standard library calls them

    def answer(self, method: str, name: str = "", *what: str, body: bytes) -> Any:
        client: Any = self.client
        match method, *what:
            case ("GET",):
                return client.get_collections().model_dump()
            case ("PUT",):
                made = models.CreateCollection.model_validate_json(body)
                return client.create_collection(name, made.vectors)
            case ("DELETE",):
                return client.delete_collection(name)
            case "PUT", "index":
                return {"operation_id": 0, "status": "completed"}  # it has none, and looks at everything
            case "PUT", "points":
                points = models.PointsList.model_validate_json(body).points
                return client.upsert(name, points).model_dump()
            case "POST", "points", "delete":
                chosen = models.FilterSelector.model_validate_json(body).filter
                return client.delete(name, chosen).model_dump()
            case "POST", "points", "query":
                asked = models.QueryRequest.model_validate_json(body)
                found = client.query_points(name, asked.query, query_filter=asked.filter, limit=asked.limit)
                return found.model_dump()
            case "POST", "points", "scroll":
                wanted = models.ScrollRequest.model_validate_json(body)
                points, then = client.scroll(
                    name, limit=wanted.limit, offset=wanted.offset,
                    with_payload=wanted.with_payload, with_vectors=wanted.with_vector,
                )  # fmt: skip
                return {"points": [each.model_dump() for each in points], "next_page_offset": then}
        raise ValueError(f"{method} {what}: not here")

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    kept: dict[str, Any] = {"location": ":memory:"} if sys.argv[1] == ":memory:" else {"path": sys.argv[1]}
    Handler.client = QdrantClient(**kept, force_disable_check_same_thread=True)
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler) as served:
        print(served.server_address[1], flush=True)
        served.serve_forever()
