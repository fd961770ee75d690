"""The ledger of wipes: kept outside the database, so that a restored backup can forget again."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from alcove.clock import to_datetime


class Ledger:
    """One line of JSON for every wipe: when, and a pseudonym of whom."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def record(self, pseudonym: str, moment: int) -> None:
        """Notes a wipe before it happens; it is on the disk when this returns."""
        line = msgspec.json.encode({"wiped_at": to_datetime(moment), "user": pseudonym}) + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
