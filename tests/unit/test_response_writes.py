"""Answers that go to the socket in one write, and those that take uvicorn's own road."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from alcove.server.protocol import send_whole
from alcove.server.routes import NO_CONTENT, Page


class Written(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def transport() -> Written:
    return Written()


def cycle(transport: Written, *, method: str = "GET", keep_alive: bool = True) -> RequestResponseCycle:
    log, scope = logging.getLogger("unused"), {"type": "http", "method": method}
    return RequestResponseCycle(
        scope=scope,  # type: ignore[arg-type]
        transport=transport,
        flow=FlowControl(transport),
        logger=log,
        access_logger=log,
        access_log=False,
        default_headers=[(b"date", b"today")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: transport.pieces.append(b"done"),
    )


def test_head_and_body_are_one_write(transport: Written) -> None:
    answering = cycle(transport)
    assert send_whole(answering.send, Page(b"{}"), "id")
    ours = b"x-request-id: id\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n"
    head = b"date: today\r\n" + ours
    assert transport.pieces == [b"HTTP/1.1 200 OK\r\n" + head + b"{}", b"done"]
    assert answering.response_complete
    assert not transport.closed


def test_a_connection_that_is_not_kept_is_closed_and_says_so(transport: Written) -> None:
    assert send_whole(cycle(transport, keep_alive=False).send, NO_CONTENT, "id")
    assert transport.pieces[0].endswith(b"connection: close\r\n\r\n")
    assert transport.closed


def test_what_uvicorn_must_see_to_is_left_to_it(transport: Written) -> None:
    slow, gone, begun = (cycle(transport) for _ in range(3))
    slow.flow.pause_writing()
    gone.disconnected = True
    begun.response_started = True

    async def wrapped(message: Any) -> None:
        """Stands for a middleware that adds headers."""

    for send in (slow.send, gone.send, begun.send, cycle(transport, method="HEAD").send, wrapped):
        assert not send_whole(send, Page(b"{}"), "id")
    assert not transport.pieces
