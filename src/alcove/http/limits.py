"""What one request, one principal and the whole server may take."""

from __future__ import annotations

import time
from dataclasses import dataclass

from alcove.http.errors import RateLimited
from alcove.principal import Principal

_MOST_BUCKETS = 100_000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the HTTP edge."""

    most_body_bytes: int = 4 * 1024 * 1024
    request_seconds: float = 30.0
    most_in_flight: int = 1000
    rate_per_second: float = 0.0
    """Requests a principal may make in a second, with as much saved up; 0 for any number."""


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
