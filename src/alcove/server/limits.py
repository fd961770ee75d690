"""What one request, one user and the whole server may take."""

from __future__ import annotations

import time
from contextvars import ContextVar

from alcove.core.errors import RateLimited, Unavailable
from alcove.core.principal import Principal

_MOST_BUCKETS = 100_000
_TIMES_WHAT_IS_FREE = 4

current_user: ContextVar[str | None] = ContextVar("current_user", default=None)
"""The user whose request the running task answers; None where nobody has said who they are."""


class Shares:
    """A number of places that users share; only for use on the event loop.

    A user may have more as long as they have at most four times what is then left. One alone gets up to
    four fifths of all, two get four ninths each, and so on: something is left for whoever has none yet.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._held: dict[str | None, int] = {}

    def take(self, user: str | None, places: int = 1) -> bool:
        """Takes some places, if the user may have them."""
        held, left = self._held.get(user, 0), self._free - places
        if left < 0 or (held and held + places > _TIMES_WHAT_IS_FREE * left):
            return False
        self._free = left
        self._held[user] = held + places
        return True

    def give(self, user: str | None, places: int = 1) -> None:
        """Gives places back."""
        self._free += places
        self._held[user] -= places
        if not self._held[user]:
            del self._held[user]


class Reservations:
    """The places that one request holds, of whatever is shared."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: list[tuple[Shares, str | None, int]] = []

    def take(self, shares: Shares, user: str | None, places: int = 1) -> None:
        """Takes places for this request, or refuses it."""
        if not shares.take(user, places):
            raise Unavailable("more is under way than you or the server may have; try again in a moment")
        self._places.append((shares, user, places))

    def give_back(self) -> None:
        while self._places:
            shares, user, places = self._places.pop()
            shares.give(user, places)


class RateLimiter:
    """A bucket of requests for each principal, filled at the rate; one for each worker process."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._buckets: dict[tuple[str, str | None], tuple[float, float]] = {}

    def take(self, principal: Principal) -> None:
        """Takes one request out of the principal's bucket, or refuses it."""
        if not self._per_second:
            return
        now, most = time.monotonic(), max(1.0, self._per_second)
        who = principal.user_id, principal.client_id
        left, since = self._buckets.get(who, (most, now))
        left = min(most, left + (now - since) * self._per_second)
        if left < 1:
            raise RateLimited(f"more than {self._per_second:g} requests a second")
        if len(self._buckets) >= _MOST_BUCKETS:
            self._buckets.clear()
        self._buckets[who] = left - 1, now
