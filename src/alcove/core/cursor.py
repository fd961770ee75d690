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

MAX_PAGE_BYTES = 4 * 1024 * 1024
"""What the records of one answer hold in all; a larger one is given alone."""
STREAM_CHUNK_BYTES = MAX_PAGE_BYTES // 16
"""What is read at a time for somebody who takes an answer piece by piece, and may be slow."""


class Page(list[T]):
    """Some of an answer; the same call goes on with `after_cursor`, which is None where nothing is left."""

    after_cursor: str | None = None


def take_page(
    found: Iterable[T],
    limit: int,
    size: Callable[[T], int] = attrgetter("size"),
    *,
    most: int = MAX_PAGE_BYTES,
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
    return _told(b"\1" + seq.to_bytes(8, "big"))


def decode(cursor: object, field: str = "after_cursor") -> int:
    """The position a cursor stands for; an altered or foreign one is an error, never a restart."""
    seq = int.from_bytes(_body(cursor, b"\1", field)[:8], "big")
    if seq < 2**63 and encode(seq) == cursor:
        return seq
    raise _foreign(field)


def encode_place(ns: bytes, key: bytes) -> str:
    """The cursor of the place after a memory, in the order of namespaces and keys."""
    return _told(b"\2" + len(ns).to_bytes(2, "big") + ns + key)


def decode_place(cursor: object, field: str = "after_cursor") -> tuple[bytes, bytes]:
    """The namespace and key of the memory that a cursor stands after."""
    body = _body(cursor, b"\2", field)
    length = int.from_bytes(body[:2], "big")
    ns, key = body[2 : 2 + length], body[2 + length :]
    if encode_place(ns, key) == cursor:
        return ns, key
    raise _foreign(field)


def _told(body: bytes) -> str:
    return base64.urlsafe_b64encode(body + zlib.crc32(body).to_bytes(4, "big")).decode().rstrip("=")


def _body(cursor: object, kind: bytes, field: str) -> bytes:
    """What a cursor of a kind holds, without its check sum."""
    if isinstance(cursor, str) and cursor.isascii():
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raw = b""
        if raw[:1] == kind and len(raw) > 6:
            return raw[1:-4]
    raise _foreign(field)


def _foreign(field: str) -> InvalidRequest:
    return InvalidRequest(field, "a cursor that an earlier answer gave")
