"""Pages of an answer: bounded in bytes, made of whole records, with a cursor to continue from."""

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
"""The most bytes of records in one answer; a larger record is returned alone."""
STREAM_CHUNK_BYTES = MAX_PAGE_BYTES // 16
"""How much is read at a time for a client that streams an answer and may be slow."""


class Page(list[T]):
    """A page of an answer; pass `after_cursor` to the same call for the next one. None after the last."""

    after_cursor: str | None = None


def take_page(
    records: Iterable[T],
    limit: int,
    size: Callable[[T], int] = attrgetter("size"),
    *,
    max_bytes: int = MAX_PAGE_BYTES,
) -> tuple[list[T], bool]:
    """Returns the first records within both limits, but at least one, and whether there are more."""
    page: list[T] = []
    total_bytes = 0
    for record in records:
        total_bytes += size(record)
        if len(page) == limit or (page and total_bytes > max_bytes):
            return page, True
        page.append(record)
    return page, False


def encode(seq: int) -> str:
    """Returns the cursor of the position after an event: opaque text that stays valid for ever."""
    return _to_text(b"\1" + seq.to_bytes(8, "big"))


def decode(cursor: object, field: str = "after_cursor") -> int:
    """Returns the position of a cursor; an altered or foreign cursor is an error, never a restart."""
    seq = int.from_bytes(_body(cursor, b"\1", field)[:8], "big")
    if seq < 2**63 and encode(seq) == cursor:
        return seq
    raise _invalid_cursor(field)


def encode_place(ns: bytes, key: bytes) -> str:
    """Returns the cursor of the place after a memory, in the order of namespaces and keys."""
    return _to_text(b"\2" + len(ns).to_bytes(2, "big") + ns + key)


def decode_place(cursor: object, field: str = "after_cursor") -> tuple[bytes, bytes]:
    """Returns the namespace and key of the memory before the cursor's place."""
    body = _body(cursor, b"\2", field)
    length = int.from_bytes(body[:2], "big")
    ns, key = body[2 : 2 + length], body[2 + length :]
    if encode_place(ns, key) == cursor:
        return ns, key
    raise _invalid_cursor(field)


def _to_text(body: bytes) -> str:
    return base64.urlsafe_b64encode(body + zlib.crc32(body).to_bytes(4, "big")).decode().rstrip("=")


def _body(cursor: object, kind: bytes, field: str) -> bytes:
    """Returns the content of a cursor of one kind, without its checksum."""
    if isinstance(cursor, str) and cursor.isascii():
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raw = b""
        if raw[:1] == kind and len(raw) > 6:
            return raw[1:-4]
    raise _invalid_cursor(field)


def _invalid_cursor(field: str) -> InvalidRequest:
    return InvalidRequest(field, "a cursor from an earlier answer")
