"""Answers that go to the socket in one write, and those that uvicorn's own `send` writes."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from alcove.server.application import send_start
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


class Cycle(RequestResponseCycle):
    """A response whose own `send` notes its messages."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.messages: list[str] = []

    async def send(self, message: Any) -> None:
        self.messages.append(message["type"])


def cycle(transport: Written, *, method: str = "GET", keep_alive: bool = True) -> Cycle:
    log, scope = logging.getLogger("unused"), {"type": "http", "method": method}
    return Cycle(
        scope=scope,
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
    assert asyncio.run(send_start(answering.send, Page(b"{}"), "id"))
    ours = b"x-request-id: id\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n"
    head = b"date: today\r\n" + ours
    assert transport.pieces == [b"HTTP/1.1 200 OK\r\n" + head + b"{}", b"done"]
    assert answering.response_complete
    assert not transport.closed


def test_a_connection_that_is_not_kept_is_closed_and_says_so(transport: Written) -> None:
    assert asyncio.run(send_start(cycle(transport, keep_alive=False).send, NO_CONTENT, "id"))
    assert transport.pieces[0].endswith(b"connection: close\r\n\r\n")
    assert transport.closed


def test_uvicorn_sends_what_cannot_be_written_at_once(transport: Written) -> None:
    slow, gone, begun = (cycle(transport) for _ in range(3))
    slow.flow.pause_writing()
    gone.disconnected = True
    begun.response_started = True

    page, wrapped = Page(b"{}"), cycle(transport)

    async def send(message: Any) -> None:
        """Stands for a middleware that adds headers."""
        await wrapped.send(message)

    cycles = slow, gone, begun, cycle(transport, method="HEAD")
    for each in cycles:
        assert asyncio.run(send_start(each.send, page, "id"))
    assert asyncio.run(send_start(send, page, "id"))
    with_headers = cycle(transport)
    assert asyncio.run(send_start(with_headers.send, Page(b"{}", headers=((b"allow", b"GET"),)), "id"))
    for each in (*cycles, wrapped, with_headers):
        assert each.messages == ["http.response.start", "http.response.body"]
    assert not transport.pieces


def test_only_the_head_of_a_large_answer_is_sent_at_once(transport: Written) -> None:
    large = cycle(transport)
    assert not asyncio.run(send_start(large.send, Page(bytes(100_000)), "id"))
    assert large.messages == ["http.response.start"]
