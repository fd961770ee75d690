"""Answers in portions: bounded in bytes, in whole records, with a cursor to go on from."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TypeVar

from alcove.core.errors import InvalidRequest

T = TypeVar("T")

MOST_BYTES = 4 * 1024 * 1024
"""What the records of one answer hold in all; a larger one is given alone."""
PIECE_BYTES = MOST_BYTES // 16
"""What is read at a time for somebody who takes an answer piece by piece, and may be slow."""


class Portion(list[T]):
    """Some of an answer; the same call goes on with `after_cursor`, which is None where nothing is left."""

    after_cursor: str | None = None


def portion(
    found: Iterable[T], limit: int, size: Callable[[T], int] = attrgetter("size"), *, most: int = MOST_BYTES
) -> tuple[list[T], bool]:
    """The first records, at most `limit` and as many as fit, but one at least; whether there are more."""
    taken: list[T] = []
    held = 0
    for each in found:
        held += size(each)
        if len(taken) == limit or (taken and held > most):
            return taken, True
        taken.append(each)
    return taken, False


def encode(seq: int) -> str:
    """The cursor of the position after an event: opaque text that can be kept for ever."""
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
