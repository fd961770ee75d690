"""Stopping work that nobody waits for any more: whoever runs it says so, and it asks at each of its steps."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


class Cancelled(Exception):
    """Raised inside work that was cancelled; nobody sees it, because nobody waits."""


class Cancellation:
    """Runs work that can be told to stop from another thread."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

    def run(self, work: Callable[[], T]) -> T:
        """What the work gives; `check` raises inside it once `cancelled` is set."""
        before = _current.set(self)
        try:
            return work()
        finally:
            _current.reset(before)


_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def is_cancelled() -> bool:
    """Whether what this thread does was cancelled."""
    current = _current.get()
    return current is not None and current.cancelled


def check() -> None:
    """Raises `Cancelled` if what this thread does was cancelled; for loops whose length a caller chooses."""
    if is_cancelled():
        raise Cancelled


def run_uncancelled(work: Callable[[], T]) -> T:
    """What the work gives, cancelled or not: for what others will use, too."""
    return Cancellation().run(work)
