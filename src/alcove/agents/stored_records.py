"""Records that are stored as memories: decode them, read them, and repeat a write that others disturb."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from alcove.core.decoding import convert
from alcove.core.errors import Conflict, KeyDestroyed, NotFound
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import Memory
from alcove.store.session_cache import MemoryReader

T = TypeVar("T")
_MAX_ATTEMPTS = 100


def decode_value(memory: Memory | None, kind: type[T]) -> T | None:
    """Decodes a memory's value; None if it is something else, as users may write to their rooms."""
    try:
        return None if memory is None else convert(memory.value, kind)
    except (msgspec.ValidationError, OverflowError):
        return None


def read_record(
    reader: MemoryReader, principal: Principal, room: Namespace, key: str, kind: type[T]
) -> tuple[T, int]:
    """Reads a record and its revision; an empty record if there is none, revision 0 if nothing is there."""
    memory = reader.get(principal, room, key)
    return decode_value(memory, kind) or kind(), memory.revision if memory else 0


def retry_conflicts(write: Callable[[], None]) -> None:
    """Calls `write`, which computes its changes from stored data, until no other writer interferes."""
    for attempt in range(_MAX_ATTEMPTS):
        try:
            return write()
        except (Conflict, NotFound, KeyDestroyed):
            time.sleep(random.random() * min(attempt, 10) * 0.002)  # noqa: S311
    raise Conflict("too many writers change this at once: try again later")
