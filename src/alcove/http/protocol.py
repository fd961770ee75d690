"""The HTTP parser's edge: heads of bounded size, and what is no HTTP refused in the shape of every error."""

from __future__ import annotations

import random

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from alcove.errors import AlcoveError
from alcove.http.answers import ErrorAnswer

MOST_HEAD_BYTES = 64 * 1024
_TOO_LONG = f"expected a head of at most {MOST_HEAD_BYTES} bytes"


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which bounds no head by itself: headers without end would fill the memory."""

    _head = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_TOO_LONG)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._head > MOST_HEAD_BYTES and self._head_bytes() > MOST_HEAD_BYTES:
            raise ValueError(_TOO_LONG)  # which the parser turns into a 400
        self._head, self._in_head = 0, False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head, self._in_head = 0, True
        super().on_message_complete()

    def _head_bytes(self) -> int:
        """The head alone, where it came together with some of the body."""
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def send_400_response(self, msg: str) -> None:
        id = f"{random.getrandbits(64):016x}"
        error = AlcoveError(msg)
        error.code = "invalid_request"
        body = msgspec.json.encode(ErrorAnswer.of(error, id))
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"x-request-id: {id}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
