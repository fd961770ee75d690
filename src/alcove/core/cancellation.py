"""Cancels work whose result nobody needs any more; the work notices at its next check."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


class Cancelled(Exception):
    """Raised inside cancelled work; it never reaches a caller, since none is left."""


class Cancellation:
    """Runs work that another thread can cancel."""

    __slots__ = ("_callbacks", "_lock", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def run(self, work: Callable[[], T]) -> T:
        """Returns the work's result; once cancelled, `check` raises inside the work."""
        before = _current.set(self)
        try:
            return work()
        finally:
            _current.reset(before)

    def cancel(self) -> None:
        """Cancels the work, and wakes it if it waits inside `on_cancel`."""
        with self._lock:
            self.cancelled = True
            for callback in self._callbacks:
                callback()

    @contextmanager
    def calls(self, callback: Callable[[], object]) -> Iterator[None]:
        """Calls `callback` on cancellation while the block runs, and never after it."""
        with self._lock:
            self._callbacks.append(callback)
            if self.cancelled:
                callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)


_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def is_cancelled() -> bool:
    """True if the work of this thread was cancelled."""
    current = _current.get()
    return current is not None and current.cancelled


def check() -> None:
    """Raises `Cancelled` if this thread was cancelled; call it in loops whose length a caller chooses."""
    if is_cancelled():
        raise Cancelled


@contextmanager
def on_cancel(callback: Callable[[], object]) -> Iterator[None]:
    """Calls `callback` from the thread that cancels this work; it wakes what the block waits for.

    The callback must be quick, and may be called before the block begins to wait.
    """
    current = _current.get()
    if current is None:
        yield
    else:
        with current.calls(callback):
            yield


def run_uncancelled(work: Callable[[], T]) -> T:
    """Runs work to its end even if this thread is cancelled, because other threads need the result."""
    return Cancellation().run(work)


def sleep(seconds: float) -> None:
    """Sleeps, and raises `Cancelled` as soon as this thread is cancelled."""
    woken = threading.Event()
    with on_cancel(woken.set):
        woken.wait(seconds)
    check()
