"""Logs as JSON, one line an event."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

_KNOWN = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "taskName"}


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


def configure(level: str) -> None:
    """Sends everything, ours and the server's, to the standard output as JSON lines."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.access").disabled = True
