"""Answers that come piece by piece, decoded from the bytes that arrive; whoever reads them does the I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from alcove.client.http import HttpRequest, Server

R = TypeVar("R")


class ResponseStream(Generic[R]):
    """Lines of JSON, each a record; one that is an error ends the answer early."""

    can_reconnect = False
    """True if the request is to be sent again when the connection is lost or ends."""

    def __init__(self, server: Server, request: HttpRequest, kind: type[R]) -> None:
        self.request = request
        self._server, self._kind = server, kind
        self._line = bytearray()

    def connected(self) -> None:
        """Called when an answer begins."""
        self._line.clear()

    def feed(self, chunk: bytes) -> Iterator[R]:
        """The records that are complete with the next bytes of the answer.

        Lines are ended by a line feed, and by nothing else that a text may hold.
        """
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line = bytes(self._line + end)
            self._line.clear()
            yield from self._records(line)
        self._line += rest

    def _records(self, line: bytes) -> Iterator[R]:
        if line.startswith(b'{"code":'):
            raise self._server.error(200, line)
        yield self._server.decode(line, self._kind)


class AnswerStream(ResponseStream[R]):
    """Server-sent events that are the answer to one request, and end with it."""

    def __init__(self, server: Server, request: HttpRequest, kind: type[R], media_type: str) -> None:
        request.headers |= {"Accept": media_type}
        super().__init__(server, request, kind)
        self._is_error = False

    def _records(self, line: bytes) -> Iterator[R]:
        name, _, text = line.partition(b": ")
        if name == b"data" and self._is_error:
            raise self._server.error(200, text)
        if name == b"data":
            yield self._server.decode(text, self._kind)
        self._is_error = name == b"event" and text == b"error"


class EventStream(ResponseStream[R]):
    """Server-sent events after the last one seen; a connection that is lost is made again."""

    def __init__(self, server: Server, request: HttpRequest, kind: type[R], last_id: str | None) -> None:
        super().__init__(server, request, kind)
        self._is_special = False
        self._remember(last_id)

    def connected(self) -> None:
        super().connected()
        self.can_reconnect, self._is_special = True, False

    def _remember(self, last_id: str | None) -> None:
        self.request.headers = {} if last_id is None else {"Last-Event-ID": last_id}

    def _records(self, line: bytes) -> Iterator[R]:
        name, _, text = line.partition(b": ")
        if name == b"id":
            self._remember(text.decode())
        elif name == b"data" and not self._is_special:
            yield self._server.decode(text, self._kind)
        self._is_special = name == b"event"  # about the stream, and not one of its events
