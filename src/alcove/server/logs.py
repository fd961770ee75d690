"""Logs as JSON, one line an event."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime

import msgspec

_KNOWN = {*logging.makeLogRecord({}).__dict__, "message", "taskName", "color_message"}


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


def configure(level: str, file: str | None = None) -> None:
    """Sends everything, ours and the server's, to the standard output or a file, as JSON lines."""
    write_to(file)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.access").disabled = True
    for client in ("httpx", "httpcore", "httpx2", "httpcore2", "anthropic"):
        logging.getLogger(client).setLevel(logging.WARNING)  # they tell of addresses, and of what is said


def write_to(file: str | None) -> None:
    """Makes the standard output that file, if one is given: a new one where the old one was moved away."""
    if file is not None:
        sys.stdout.flush()
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)
