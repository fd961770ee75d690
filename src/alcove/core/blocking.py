"""Threads that must not block: an event loop, and the threads that serve readers.

A call that runs on such a thread raises `WouldBlock` before it does what would hold others up, and before it
has any effect. Whoever made the call makes it again, from the start, in a thread that may block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_UNRESTRICTED, _NO_WAITING, _QUICK_ONLY = range(3)


class WouldBlock(Exception):
    """The call would hold up others who need this thread; it has had no effect yet."""


class WouldTakeLong(WouldBlock):
    """The call takes longer than an event loop may be kept."""


class WouldWait(WouldBlock):
    """The call waits for a writer or for the index, as neither an event loop nor a reader's thread may."""


class _Thread(threading.local):
    restriction = _UNRESTRICTED


_thread = _Thread()


def on_event_loop(call: Callable[[], T]) -> T:
    """Runs a call that must be quick: it raises `WouldBlock` where it would take long or wait."""
    return _restricted(_QUICK_ONLY, call)


def without_waiting(call: Callable[[], T]) -> T:
    """Runs a call that may take long: it raises `WouldWait` where it would wait."""
    return _restricted(_NO_WAITING, call)


def before_long_work() -> None:
    """Raises `WouldTakeLong` on an event loop; called before work of more than a millisecond."""
    if _thread.restriction == _QUICK_ONLY:
        raise WouldTakeLong


def before_waiting() -> None:
    """Raises `WouldWait` on an event loop and on a reader's thread; called before waiting for others."""
    if _thread.restriction != _UNRESTRICTED:
        raise WouldWait


def _restricted(restriction: int, call: Callable[[], T]) -> T:
    before, _thread.restriction = _thread.restriction, restriction
    try:
        return call()
    finally:
        _thread.restriction = before
