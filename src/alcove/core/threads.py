"""Runs several calls at once, and marks threads that must not block.

On a thread that must not block (an event loop, or a thread that serves readers), a call that would block
raises `WouldBlock` before it has any effect. The caller then repeats it in a thread that may block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")
_UNRESTRICTED, _NO_WAITING, _QUICK_ONLY = range(3)


def run_together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Runs calls at once, each in a thread of its own, and returns their results in order.

    Cancelling the caller cancels all of them. An error of one is raised once all have ended.
    """
    results = [Future[T]() for _ in calls]
    # no executor: a process cannot end before the threads of one
    for call, result in zip(calls, results, strict=True):
        work = partial(copy_context().run, _complete, call, result)
        threading.Thread(target=work, name="alcove-together", daemon=True).start()
    wait(results)
    return [each.result() for each in results]


def _complete(call: Callable[[], T], result: Future[T]) -> None:
    try:
        result.set_result(call())
    except BaseException as error:
        result.set_exception(error)


class WouldBlock(Exception):
    """The call would block this thread, which others need; it has had no effect yet."""


class WouldTakeLong(WouldBlock):
    """The call takes too long for an event loop."""


class WouldWait(WouldBlock):
    """The call would wait for a writer or for the index."""


class _Thread(threading.local):
    restriction = _UNRESTRICTED


_thread = _Thread()


def on_event_loop(call: Callable[[], T]) -> T:
    """Runs a call that must be quick: it raises `WouldBlock` if it would take long or wait."""
    return _run_restricted(_QUICK_ONLY, call)


def without_waiting(call: Callable[[], T]) -> T:
    """Runs a call that may take long: it raises `WouldWait` if it would wait."""
    return _run_restricted(_NO_WAITING, call)


def before_long_work() -> None:
    """Raises `WouldTakeLong` on an event loop; call it before work of more than a millisecond."""
    if _thread.restriction == _QUICK_ONLY:
        raise WouldTakeLong


def before_waiting() -> None:
    """Raises `WouldWait` on an event loop and on a reader's thread; call it before waiting for others."""
    if _thread.restriction != _UNRESTRICTED:
        raise WouldWait


def _run_restricted(restriction: int, call: Callable[[], T]) -> T:
    before, _thread.restriction = _thread.restriction, restriction
    try:
        return call()
    finally:
        _thread.restriction = before
