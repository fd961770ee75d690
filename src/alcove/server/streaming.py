"""What comes and goes in pieces: bodies, answers, and the end of the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from alcove.core.errors import PayloadTooLarge, Unavailable
from alcove.store.reading import SMALL_BYTES

ASK_AGAIN_SECONDS = 2.0
"""How long something open goes on before it is asked again whether it may."""
_POLL_SECONDS = 0.05
PART_BYTES = 64 * 1024
"""What a connection takes without waiting for its reader."""
LEAST_BYTES = 16 * 1024
"""Of a body of any length, in the time that a request has: one that trickles would never end."""

Allowed = Callable[[], Awaitable[None]]
"""Raises once whoever opened something may no longer have it open."""


class Stream(Struct):
    """An answer that is sent piece by piece, as long as it is allowed."""

    pieces: AsyncIterator[bytes]
    media_type: bytes
    allowed: Allowed
    last_words: bytes | None = None
    """What is sent, around the error, before an answer ends that is no longer allowed; None breaks it off."""
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ((b"cache-control", b"no-store"),)


async def whole(
    receive: Any, headers: Mapping[bytes, bytes], most: int, hold: Callable[[int], None]
) -> bytearray:
    """The body, refused as soon as it is known to have more bytes than `most`.

    One that may not be small is counted by `hold` before it is read, by what its head says of its length.
    """
    declared = headers.get(b"content-length", b"0")
    expected = int(declared[:20]) if declared.isdigit() else 0
    if b"transfer-encoding" in headers:
        expected = most
    if SMALL_BYTES < expected <= most:
        hold(expected)
    body, more = bytearray(), True
    while more and max(expected, len(body)) <= most:
        piece, more = await _piece(receive)
        body += piece
    if max(expected, len(body)) > most:
        raise PayloadTooLarge("body", f"at most {most} bytes")
    return body


async def in_pieces(receive: Any, seconds: float) -> AsyncIterator[bytes]:
    """The body as it comes, as long as some of it comes in that time."""
    got, left, more = 0, seconds, True
    while more:
        started = time.monotonic()
        async with asyncio.timeout(left):
            piece, more = await _piece(receive)
        got, left = got + len(piece), left - (time.monotonic() - started)
        if got >= LEAST_BYTES:
            got, left = 0, seconds
        yield piece


async def _piece(receive: Any) -> tuple[bytes, bool]:
    """What came, and whether there is more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Unavailable("the client went away")
    return message.get("body", b""), message.get("more_body", False)


async def pour(pieces: AsyncIterator[bytes], receive: Any, send: Any, patience: float) -> None:
    """Sends every piece, unless the client goes away.

    A reader that does not take a part of one in time is cut off and may resume. Nothing is read ahead for it,
    and a piece is let go of once all but its last part was taken.
    """
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        async for piece in pieces:
            for at in range(0, len(piece), PART_BYTES):
                async with asyncio.timeout(patience):
                    part = piece[at : at + PART_BYTES]
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                if gone.done():
                    return
        async with asyncio.timeout(patience):
            await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()
        await pieces.aclose()  # type: ignore[attr-defined]


async def while_allowed(pieces: AsyncIterator[bytes], allowed: Allowed) -> AsyncIterator[bytes]:
    """The same pieces; whether that is still allowed is asked before each, and every few seconds between."""
    coming: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(pieces, None))
            while not coming.done():
                await asyncio.wait((coming,), timeout=ASK_AGAIN_SECONDS)
                await allowed()
            piece = await coming
            if piece is None:
                return
            yield piece
    finally:
        if coming:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await pieces.aclose()  # type: ignore[attr-defined]


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Tail:
    """The end of the log, as every reader in this process waits for it to move.

    It is asked for rather than told, because another process may have written; once for all readers.
    """

    def __init__(self, last: Callable[[], int]) -> None:
        self._last = last
        self._end = 0
        self._asked = 0.0
        self.stopping = False

    def stop(self) -> None:
        """Ends every stream, so that a server that is told to stop can."""
        self.stopping = True

    def end(self) -> int:
        """The highest sequence number, as it was a moment ago at most."""
        now = time.monotonic()
        if now - self._asked >= _POLL_SECONDS:
            self._end, self._asked = self._last(), now
        return self._end

    async def beyond(self, position: int, seconds: float) -> bool:
        """Waits until the log goes beyond a position; False where it did not within that time."""
        deadline = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < deadline:
            if self.end() > position:
                return True
            await asyncio.sleep(_POLL_SECONDS)
        return False


def gathered(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Small parts together and large ones alone: what a reader does not take is held for as long."""
    piece = bytearray()
    for part in parts:
        piece += part
        if len(piece) >= PART_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)
