"""How much of an answer is given at once: bounded in bytes, in whole records, with a place to go on from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TypeVar

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
