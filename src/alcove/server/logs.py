"""Logs as JSON, one line an event."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from alcove.server.application import Exchange

_KNOWN = {*logging.makeLogRecord({}).__dict__, "message", "taskName", "color_message"}
_PIPE_TAKES = 4096
_FLUSH_SECONDS = 0.05


class JsonLines(logging.Formatter):
    """A record as one line of JSON: when, how bad, what, and whatever was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line.update((name, value) for name, value in record.__dict__.items() if name not in _KNOWN)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class AccessLog:
    """One line a request, gathered and written a few times a second: `logging` costs as much as a get.

    What is written at once is never more than a pipe takes whole, so workers do not cut one another's lines.
    """

    def __init__(self, pseudonym: Callable[[str], str] | None = None) -> None:
        self._pseudonym = pseudonym
        self._lines: list[bytes] = []
        self._size = 0

    def tell(self, exchange: Exchange) -> None:
        """Notes a request that has ended: no content, the path as it is declared, and no query.

        Called on the event loop.
        """
        who, hidden = exchange.principal, self._pseudonym
        user, client = (who.user_id, who.client_id) if who else (None, None)
        line = {
            "time": datetime.now(UTC),
            "level": "info",
            "event": "request",
            "request_id": exchange.id,
            "method": exchange.method,
            "path": exchange.path,
            "status": exchange.status,
            "ms": round((time.perf_counter() - exchange.started) * 1000, 3),
            "user": hidden(user) if hidden and user else user,
            "client": hidden(client) if hidden and client else client,
        }
        encoded = msgspec.json.encode(line) + b"\n"
        if self._size + len(encoded) > _PIPE_TAKES:
            self.flush()
        if not self._lines:
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)
        self._lines.append(encoded)
        self._size += len(encoded)

    def flush(self) -> None:
        """Writes what was noted."""
        if self._lines:
            sys.stdout.buffer.write(b"".join(self._lines))
            sys.stdout.flush()
            self._lines.clear()
            self._size = 0


def configure(level: str, file: str | None = None) -> None:
    """Sends everything, ours and the server's, to the standard output or a file, as JSON lines."""
    write_to(file)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.access").disabled = True


def write_to(file: str | None) -> None:
    """Makes the standard output that file, if one is given: a new one where the old one was moved away."""
    if file is not None:
        sys.stdout.flush()
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)
