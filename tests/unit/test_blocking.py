"""Threads that must not block: a call says that it would before it does."""

from __future__ import annotations

import threading

import pytest

from alcove.core.threads import (
    WouldTakeLong,
    WouldWait,
    before_long_work,
    before_waiting,
    on_event_loop,
    without_waiting,
)


def test_an_ordinary_thread_may_do_anything() -> None:
    before_long_work()
    before_waiting()


def test_an_event_loop_neither_works_for_long_nor_waits() -> None:
    with pytest.raises(WouldTakeLong):
        on_event_loop(before_long_work)
    with pytest.raises(WouldWait):
        on_event_loop(before_waiting)
    assert on_event_loop(lambda: "quick") == "quick"


def test_a_readers_thread_may_work_for_long_but_not_wait() -> None:
    without_waiting(before_long_work)
    with pytest.raises(WouldWait):
        without_waiting(before_waiting)


def test_a_restriction_ends_with_its_call_however_that_ends() -> None:
    with pytest.raises(WouldWait):
        on_event_loop(before_waiting)
    before_waiting()

    def nested() -> None:
        without_waiting(before_long_work)
        before_long_work()

    with pytest.raises(WouldTakeLong):
        on_event_loop(nested)


def test_a_restriction_is_of_one_thread() -> None:
    done = []

    def elsewhere() -> None:
        before_waiting()
        done.append(True)

    def call() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    on_event_loop(call)
    assert done == [True]
