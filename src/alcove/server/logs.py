"""Logs as JSON, one line for each event."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime

import msgspec

_STANDARD_FIELDS = {*logging.makeLogRecord({}).__dict__, "message", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON: its time, level and text, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line.update((name, value) for name, value in record.__dict__.items() if name not in _STANDARD_FIELDS)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure(level: str, file: str | None = None) -> None:
    """Sends all logs, also uvicorn's, to the standard output or a file, as lines of JSON."""
    write_to(file)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.access").disabled = True
    for client in ("httpx", "httpcore", "httpx2", "httpcore2", "anthropic"):
        logging.getLogger(client).setLevel(logging.WARNING)  # they log addresses and contents


def write_to(file: str | None) -> None:
    """Redirects the standard output to a file, if one is given; opens a new one if the old one was moved."""
    if file is not None:
        sys.stdout.flush()
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)
