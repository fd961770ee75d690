"""What a small HTTP service of a test is made of: JSON is posted, and a function answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any


def answering(answer: Callable[[dict[str, Any], Message], tuple[int, bytes]]) -> type[BaseHTTPRequestHandler]:
    """A handler that answers every POST with a status and bytes, from its body and headers, and logs none."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, answered = answer(body, self.headers)
            self.send_response(status)
            self.send_header("content-length", str(len(answered)))
            self.end_headers()
            self.wfile.write(answered)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
