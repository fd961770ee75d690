"""Shares a number of places among users, so that no user ever occupies all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from alcove.core import cancellation
from alcove.core.errors import Unavailable

_MAX_TIMES_FREE = 4
User = str | None
Turn = TypeVar("Turn")


class Shares:
    """A number of places that users share; not thread-safe.

    A user may take another place if they then have at most four times the places that are still free. One
    user alone gets up to four fifths of all, two get four ninths each, and so on: one place always
    stays free for a new user.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._taken: dict[User, int] = {}

    def take(self, user: User, places: int = 1) -> bool:
        """Takes some places if the user may have them; returns whether it did."""
        taken, free = self._taken.get(user, 0), self._free - places
        if free < 0 or (taken and taken + places > _MAX_TIMES_FREE * free):
            return False
        self._free = free
        self._taken[user] = taken + places
        return True

    def give(self, user: User, places: int = 1) -> None:
        """Releases places."""
        self._free += places
        self._taken[user] -= places
        if not self._taken[user]:
            del self._taken[user]


class FairQueue(Generic[Turn]):
    """A queue for the places of `Shares`: users get one in turn, however many of their calls wait.

    A `Turn` identifies a waiting call and lets you wake it. Not thread-safe.
    """

    def __init__(self, places: int) -> None:
        self._shares = Shares(places)
        self._turns: dict[User, list[Turn]] = {}

    def enter(self, user: User, turn: Turn) -> bool:
        """Takes a place and returns True if the user may have one now; otherwise queues the turn."""
        if user not in self._turns and self._shares.take(user):
            return True
        self._turns.setdefault(user, []).append(turn)
        return False

    def leave(self, user: User, turn: Turn | None = None) -> Turn | None:
        """Releases a place, or removes a waiting turn; returns the turn that gets a place now."""
        if turn is not None and self.is_waiting(user, turn):
            self._remove(user, turn)
            return None
        self._shares.give(user)
        for next_user, turns in self._turns.items():
            if self._shares.take(next_user):
                next_turn = turns[0]
                self._remove(next_user, next_turn)
                if later_turns := self._turns.pop(next_user, None):
                    self._turns[next_user] = later_turns  # moves the user behind all others
                return next_turn
        return None

    def is_waiting(self, user: User, turn: Turn) -> bool:
        """True if a turn has no place yet."""
        return turn in self._turns.get(user, ())

    def _remove(self, user: User, turn: Turn) -> None:
        self._turns[user].remove(turn)
        if not self._turns[user]:
            del self._turns[user]


class FairSemaphore:
    """Admits a number of threads at once; the others wait, and their users take turns."""

    def __init__(self, places: int) -> None:
        self._queue = FairQueue[threading.Event](places)
        self._lock = threading.Lock()

    @contextmanager
    def place(self, user: User, timeout_seconds: float) -> Iterator[None]:
        """Holds a place while the block runs; raises Unavailable if none becomes free in time."""
        turn = threading.Event()
        with self._lock:
            has_place = self._queue.enter(user, turn)
        try:
            if not has_place:
                with cancellation.on_cancel(turn.set):
                    turn.wait(timeout_seconds)
                cancellation.check()
                with self._lock:
                    if self._queue.is_waiting(user, turn):
                        raise Unavailable("too many calls are in progress; try again in a moment")
            yield
        finally:
            with self._lock:
                if next_turn := self._queue.leave(user, turn):
                    next_turn.set()
