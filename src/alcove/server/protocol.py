"""The HTTP parser's edge: bounded heads, and what is no HTTP refused in the shape of every error."""

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

MOST_HEAD_BYTES = 64 * 1024
READ_DELAY = 0.01
"""Seconds, of which the event loop takes at least one round to read what has arrived."""
_TOO_LONG = f"expected a head of at most {MOST_HEAD_BYTES} bytes"


class Waiting(dict["Protocol", float]):
    """Connections without a request under way, and since when each waits; the first has waited longest."""

    def longest(self) -> Protocol:
        """The one that has waited longest, of the user who has most."""
        ((most, _),) = Counter(each.user for each in self).most_common(1)
        return next(each for each in self if each.user == most)

    def before(self, moment: float) -> list[Protocol]:
        """Those that have waited since then or longer."""
        return [each for each, since in self.items() if since <= moment]


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which bounds neither the size of a head nor how long it takes.

    Connections without a request under way, new ones among them, are few: of too many, one makes room. So
    who holds many open keeps nobody out.
    """

    head_seconds: ClassVar[float] = 10.0
    most_waiting: ClassVar[int] = 1000
    when_stopping: ClassVar[Callable[[], None]] = lambda: None
    _waiting: ClassVar = Waiting()
    _looking: ClassVar[asyncio.AbstractEventLoop | None] = None

    serving: asyncio.Task[None] | None = None
    """The task that answers its request; set by who does, like `user`."""
    user: str | None = None
    """Whom it served last."""
    lost = False
    _cycle: RequestResponseCycle | None = None
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
        if self._cycle:  # uvicorn tells the last that came, which may wait behind this one
            self._cycle.disconnected = True
        if self.serving:
            self.serving.cancel()

    def _wait(self) -> None:
        """Begins to wait for a head."""
        if Protocol._looking is not self.loop:
            Protocol._looking = self.loop
            self._drop_slow(self.loop)
        self._waiting[self] = self.loop.time()
        if len(self._waiting) > self.most_waiting:
            self._waiting.longest()._drop()

    @classmethod
    def _drop_slow(cls, loop: asyncio.AbstractEventLoop) -> None:
        """Drops those whose head has not come in time, now and once a second.

        What arrived while the loop was busy is read before that: a loop runs its timers first.
        """
        loop.call_later(1, cls._drop_slow, loop)
        loop.call_later(READ_DELAY, cls._drop_waiting_since, loop, loop.time() - cls.head_seconds)

    @classmethod
    def _drop_waiting_since(cls, loop: asyncio.AbstractEventLoop, moment: float) -> None:
        for each in cls._waiting.before(moment):
            unsent = each.transport.get_write_buffer_size()
            if unsent in (0, each._unsent):
                each._drop()
            else:  # it still takes its last answer
                each._unsent = unsent
                del cls._waiting[each]
                cls._waiting[each] = loop.time()

    def _drop(self) -> None:
        self._waiting.pop(self, None)
        unsent = self.transport.get_write_buffer_size()
        if self._head and self._in_head and not unsent and not self.transport.is_closing():
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

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._cycle = cycle
        super()._start_asgi_task(cycle, app)

    def on_headers_complete(self) -> None:
        if self._head > MOST_HEAD_BYTES:  # it may have come together with some of the body
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > MOST_HEAD_BYTES:
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

    def shutdown(self) -> None:
        """Called when the server is told to stop, before it waits for its requests to end."""
        Protocol.when_stopping()
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
