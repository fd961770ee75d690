"""Cursors: positions in the timeline as opaque text that can be kept for ever."""

from __future__ import annotations

import base64
import binascii
import zlib

from alcove.core.errors import InvalidRequest


def encode(seq: int) -> str:
    """The cursor of the position after an event."""
    body = b"\1" + seq.to_bytes(8, "big")
    return base64.urlsafe_b64encode(body + zlib.crc32(body).to_bytes(4, "big")).decode().rstrip("=")


def decode(cursor: object, field: str = "after_cursor") -> int:
    """The position a cursor stands for; an altered or foreign one is an error, never a restart."""
    if isinstance(cursor, str) and cursor.isascii():
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raw = b""
        seq = int.from_bytes(raw[1:9], "big")
        if seq < 2**63 and encode(seq) == cursor:
            return seq
    raise InvalidRequest(field, "a cursor that an earlier answer gave")
