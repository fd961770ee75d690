"""A client for a Valkey or Redis server or cluster; while it is down, calls quickly return None."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from alcove.core.addresses import without_password
from alcove.core.errors import InvalidRequest, requires_extra

if TYPE_CHECKING:
    import redis

log = logging.getLogger("alcove")
TIMEOUT_SECONDS = 0.2
"""For a connection, and for each answer."""
PAUSE_SECONDS = 1.0
"""How long it sends nothing after a failure."""


class Valkey:
    """Sends commands to a server or to a cluster, from any thread."""

    def __init__(self, address: str) -> None:
        """`address`: `redis://`, `rediss://` (TLS) or `valkey://`, with `?cluster=true` for a cluster."""
        with requires_extra("a session store", extra="valkey"):
            import redis.backoff  # noqa: PLC0415  of an extra
            import redis.retry  # noqa: PLC0415
        self._errors = (redis.RedisError, OSError)
        self._place = without_password(address)
        parts = urlsplit(address)
        options = dict(parse_qsl(parts.query))
        cluster = options.pop("cluster", "false") == "true"
        url = parts._replace(
            scheme=parts.scheme.replace("valkey", "redis"), query=urlencode(options)
        ).geturl()
        kind: Any = redis.RedisCluster if cluster else redis.Redis
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1 if cluster else 0)

        self._connect: Callable[[], redis.Redis] = partial(
            kind.from_url,
            url,
            socket_connect_timeout=TIMEOUT_SECONDS,
            socket_timeout=TIMEOUT_SECONDS,
            retry=retry,
            protocol=2,
        )
        self._client: redis.Redis | None = None
        self._connecting = threading.Lock()
        self._retry_at = 0.0
        self.problem: str | None = None
        """Why the last command failed; None if it did not."""
        try:
            if not cluster:
                self._client = self._connect()
        except ValueError as error:
            raise InvalidRequest("session_store", f"redis://HOST:PORT/NUMBER ({error})") from None

    def __call__(self, *command: str | bytes | int | float) -> Any:
        """Returns the answer to a command; None if the server is down or too slow."""
        if time.monotonic() < self._retry_at:
            return None
        try:
            if self._client is None:
                with self._connecting:
                    self._client = (
                        self._client or self._connect()
                    )  # connecting to a cluster requests its nodes
            answer = self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except self._errors as error:
            self._retry_at = time.monotonic() + PAUSE_SECONDS
            if self.problem is None:
                log.warning(
                    "the session store %s does not answer; continuing without it: %s", self._place, error
                )
            self.problem = str(error) or type(error).__name__
            return None
        if self.problem is not None:
            self.problem = None
            log.info("the session store %s answers again", self._place)
        return answer

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
