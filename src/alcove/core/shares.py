"""Sharing a number of places among users, so that no user ever has all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from alcove.core import cancellation
from alcove.core.errors import Unavailable

_TIMES_WHAT_IS_FREE = 4
User = str | None


class Shares:
    """A number of places that users share; not thread-safe.

    A user may have more as long as they have at most four times what is then left. One alone gets up to
    four fifths of all, two get four ninths each, and so on: something is left for whoever has none yet.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._taken: dict[User, int] = {}

    def take(self, user: User, places: int = 1) -> bool:
        """Takes some places if the user may have them; returns whether it did."""
        taken, left = self._taken.get(user, 0), self._free - places
        if left < 0 or (taken and taken + places > _TIMES_WHAT_IS_FREE * left):
            return False
        self._free = left
        self._taken[user] = taken + places
        return True

    def give(self, user: User, places: int = 1) -> None:
        """Gives places back."""
        self._free += places
        self._taken[user] -= places
        if not self._taken[user]:
            del self._taken[user]


class FairSemaphore:
    """Lets a number of threads in at once; the others wait, and are let in user by user."""

    def __init__(self, places: int) -> None:
        self._shares = Shares(places)
        self._lock = threading.Lock()
        self._waiting: dict[User, list[threading.Event]] = {}

    @contextmanager
    def place(self, user: User, seconds: float) -> Iterator[None]:
        """Holds a place while the block runs; raises Unavailable if none is free in time."""
        self._take(user, seconds)
        try:
            yield
        finally:
            self._give(user)

    def _take(self, user: User, seconds: float) -> None:
        turn, end = threading.Event(), monotonic() + seconds
        with self._lock:
            if user not in self._waiting and self._shares.take(user):
                return
            self._waiting.setdefault(user, []).append(turn)
        try:
            with cancellation.on_cancel(turn.set):
                turn.wait(end - monotonic())
            cancellation.check()
            with self._lock:
                if self._is_waiting(user, turn):
                    raise Unavailable("too many calls are in progress; try again in a moment")
        except BaseException:
            self._withdraw(user, turn)
            raise

    def _is_waiting(self, user: User, turn: threading.Event) -> bool:
        return turn in self._waiting.get(user, ())

    def _withdraw(self, user: User, turn: threading.Event) -> None:
        """Leaves the line, or gives the place back that came as its user left."""
        with self._lock:
            if self._is_waiting(user, turn):
                self._leave(user, turn)
                return
        self._give(user)

    def _give(self, user: User) -> None:
        with self._lock:
            self._shares.give(user)
            for each in self._waiting:
                if self._shares.take(each):
                    turns = self._waiting[each]
                    turn = turns[0]
                    self._leave(each, turn)
                    if rest := self._waiting.pop(each, None):
                        self._waiting[each] = rest  # behind all others
                    turn.set()
                    return

    def _leave(self, user: User, turn: threading.Event) -> None:
        """Takes a turn out of the line."""
        self._waiting[user].remove(turn)
        if not self._waiting[user]:
            del self._waiting[user]
