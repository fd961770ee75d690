"""uvicorn's HTTP protocol, with limits for heads and idle connections, and errors as JSON."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from alcove.api.messages import ErrorAnswer
from alcove.server.routes import CONNECTION

MAX_HEAD_BYTES = 64 * 1024
READ_DELAY = 0.01
"""Seconds in which the event loop certainly reads what has already arrived."""
_TOO_LONG = f"expected a head of at most {MAX_HEAD_BYTES} bytes"


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which itself limits neither the size of a head nor its time.

    The number of idle connections, new ones included, is limited: if there are too many, the user with most
    of them loses one. So a client that holds many open keeps nobody out.
    """

    head_seconds: ClassVar[float] = 10.0
    max_idle: ClassVar[int] = 1000
    on_shutdown: ClassVar[Callable[[], None]] = lambda: None
    _idle_since: ClassVar[dict[Protocol, float]] = {}
    """Connections without a request in progress, the longest idle first."""
    _timer_loop: ClassVar[asyncio.AbstractEventLoop | None] = None
    """The event loop whose timer drops slow connections."""

    serving: asyncio.Task[None] | None = None
    """The task that answers its request; the application sets it, and `user`."""
    user: str | None = None
    """The user of its last request."""
    lost = False
    _cycle: RequestResponseCycle | None = None
    _unsent = 0
    _head = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle_since.pop(self, None)
        super().connection_lost(exc)
        self.lost = True
        if self._cycle:  # uvicorn sets this for the last request only, which may wait behind this one
            self._cycle.disconnected = True
        if self.serving:
            self.serving.cancel()

    def _wait(self) -> None:
        """Waits for the next head; drops the longest idle connection of the user with most, if too many."""
        if Protocol._timer_loop is not self.loop:
            Protocol._timer_loop = self.loop
            self._drop_slow(self.loop)
        self._idle_since[self] = self.loop.time()
        if len(self._idle_since) > self.max_idle:
            ((user, _),) = Counter(each.user for each in self._idle_since).most_common(1)
            next(each for each in self._idle_since if each.user == user)._drop()

    @classmethod
    def _drop_slow(cls, loop: asyncio.AbstractEventLoop) -> None:
        """Drops connections whose head is late, now and once a second.

        An event loop runs its timers before it reads, so this first waits until it has read what arrived
        while it was busy.
        """
        loop.call_later(1, cls._drop_slow, loop)
        loop.call_later(READ_DELAY, cls._drop_idle_since, loop, loop.time() - cls.head_seconds)

    @classmethod
    def _drop_idle_since(cls, loop: asyncio.AbstractEventLoop, moment: float) -> None:
        for each in [each for each, since in cls._idle_since.items() if since <= moment]:
            unsent = each.transport.get_write_buffer_size()
            if unsent in (0, each._unsent):
                each._drop()
            else:  # the client still reads its last answer
                each._unsent = unsent
                del cls._idle_since[each]
                cls._idle_since[each] = loop.time()

    def _drop(self) -> None:
        self._idle_since.pop(self, None)
        unsent = self.transport.get_write_buffer_size()
        if self._head and self._in_head and not unsent and not self.transport.is_closing():
            self.send_400_response("expected the rest of the head sooner")
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_TOO_LONG)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._cycle = cycle
        super()._start_asgi_task(cycle, app)

    def on_headers_complete(self) -> None:
        if self._head > MAX_HEAD_BYTES:  # which may include a part of the body
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > MAX_HEAD_BYTES:
                raise ValueError(_TOO_LONG)  # which the parser turns into a 400
        self._head, self._in_head = 0, False
        self._idle_since.pop(self, None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head, self._in_head = 0, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        more = bool(self.pipeline)
        super().on_response_complete()
        if not (more or self.lost):
            self._wait()

    def shutdown(self) -> None:
        """Called when the server begins to stop, before it waits for its requests to end."""
        Protocol.on_shutdown()
        super().shutdown()

    def send_400_response(self, msg: str) -> None:
        id = f"{random.getrandbits(64):016x}"
        body = msgspec.json.encode(ErrorAnswer("invalid_request", msg, id))
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"x-request-id: {id}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
