"""Reading what a request sends: all of it where it is bounded, piece by piece where it is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from alcove.core.errors import PayloadTooLarge, Unavailable

LEAST_BYTES = 16 * 1024
"""Of a body of any length, in the time that a request has: one that trickles would never end."""


def expected_bytes(headers: Mapping[bytes, bytes], most: int) -> int:
    """How long a body will be, at most; one that says it is too long is refused."""
    if b"transfer-encoding" in headers:
        return most
    declared = headers.get(b"content-length", b"0")
    expected = int(declared[:20]) if declared.isdigit() else 0
    if expected > most:
        raise _too_large(most)
    return expected


async def whole(receive: Any, most: int) -> bytearray:
    """The body, refused as soon as it is known to be too large."""
    body, more = bytearray(), True
    while more:
        piece, more = await _piece(receive)
        body += piece
        if len(body) > most:
            raise _too_large(most)
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


def _too_large(most: int) -> PayloadTooLarge:
    return PayloadTooLarge("body", f"at most {most} bytes")
