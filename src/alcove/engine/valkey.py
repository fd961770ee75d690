"""A Valkey or Redis server, or a cluster of them, which may be away: a call then soon gives None."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from alcove.core.addresses import without_password
from alcove.core.errors import InvalidRequest, requires_extra

if TYPE_CHECKING:
    import redis

log = logging.getLogger("alcove")
PATIENCE = 0.2
"""Seconds that a connection, or an answer, may take."""
PAUSE = 1.0
"""Seconds for which it is not asked again once it did not answer."""


class Valkey:
    """Commands to a server or to a cluster, from any thread."""

    def __init__(self, address: str) -> None:
        """`address`: `redis://`, `rediss://` (TLS) or `valkey://`, with `?cluster=true` for a cluster."""
        with requires_extra("a session store", extra="valkey"):
            import redis.backoff  # noqa: PLC0415  for who has one
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

        def connect() -> redis.Redis:
            return kind.from_url(  # type: ignore[no-any-return]
                url, socket_connect_timeout=PATIENCE, socket_timeout=PATIENCE, retry=retry, protocol=2
            )

        self._connect: Callable[[], redis.Redis] = connect
        self._client: redis.Redis | None = None
        self._connecting = threading.Lock()
        self._ask_again = 0.0
        self.trouble: str | None = None
        """Why it did not answer the last time; None where it did."""
        try:
            if not cluster:
                self._client = connect()
        except ValueError as error:
            raise InvalidRequest("session_store", f"redis://HOST:PORT/NUMBER ({error})") from None

    def __call__(self, *command: str | bytes | int | float) -> Any:
        """What a command answers; None where it cannot be had in time."""
        if time.monotonic() < self._ask_again:
            return None
        try:
            if self._client is None:
                with self._connecting:
                    self._client = self._client or self._connect()  # asks a cluster for its nodes
            answer = self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except self._errors as error:
            self._ask_again = time.monotonic() + PAUSE
            if self.trouble is None:
                log.warning("the session store %s is away, and done without: %s", self._place, error)
            self.trouble = str(error) or type(error).__name__
            return None
        if self.trouble is not None:
            self.trouble = None
            log.info("the session store %s is back", self._place)
        return answer

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
