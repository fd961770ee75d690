"""The HTTP parser's edge: bounded heads, and what is no HTTP refused in the shape of every error."""

from __future__ import annotations

import asyncio
import random
from typing import ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from alcove.errors import AlcoveError
from alcove.http.answers import ErrorAnswer
from alcove.http.app import CONNECTION

MOST_HEAD_BYTES = 64 * 1024
_TOO_LONG = f"expected a head of at most {MOST_HEAD_BYTES} bytes"


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which bounds neither the size of a head nor how long it takes.

    Connections without a request under way, new ones among them, are few: of too many, the one that has
    waited longest makes room. So who holds many open keeps nobody out.
    """

    head_seconds: ClassVar[float] = 10.0
    most_waiting: ClassVar[int] = 1000
    _waiting: ClassVar[dict[Protocol, float]] = {}
    """Since when each has waited, the longest first."""
    _looking: ClassVar[asyncio.AbstractEventLoop | None] = None

    serving: asyncio.Task[None] | None = None
    """The task that answers its request; set by who does."""
    lost = False
    _unsent = 0
    _head = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        super().connection_lost(exc)
        self.lost = True
        if self.serving:
            self.serving.cancel()

    def _wait(self) -> None:
        """Begins to wait for a head."""
        if Protocol._looking is not self.loop:
            Protocol._looking = self.loop
            self._drop_slow(self.loop)
        self._waiting[self] = self.loop.time()
        if len(self._waiting) > self.most_waiting:
            next(iter(self._waiting))._drop()

    @classmethod
    def _drop_slow(cls, loop: asyncio.AbstractEventLoop) -> None:
        """Drops those whose head has not come in time, now and once a second."""
        loop.call_later(1, cls._drop_slow, loop)
        latest = loop.time() - cls.head_seconds
        for each in [each for each, since in cls._waiting.items() if since < latest]:
            unsent = each.transport.get_write_buffer_size()
            if unsent and unsent != each._unsent:  # it still takes its last answer
                each._unsent = unsent
                cls._waiting[each] = cls._waiting.pop(each) + cls.head_seconds
            else:
                each._drop()

    def _drop(self) -> None:
        del self._waiting[self]
        if self._head and self._in_head and not self.transport.is_closing():
            self.send_400_response("expected the rest of the head sooner")
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_TOO_LONG)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        if self._head > MOST_HEAD_BYTES and self._head_bytes() > MOST_HEAD_BYTES:
            raise ValueError(_TOO_LONG)  # which the parser turns into a 400
        self._head, self._in_head = 0, False
        self._waiting.pop(self, None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head, self._in_head = 0, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        more = bool(self.pipeline)
        super().on_response_complete()
        if not (more or self.lost):
            self._wait()

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
