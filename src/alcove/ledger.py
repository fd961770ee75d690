"""The ledger of wipes: kept outside the database, so that a restored backup can forget again."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from alcove.clock import to_datetime
from alcove.errors import Unavailable


class Ledger:
    """One line of JSON for every wipe: when, and a pseudonym of whom."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def record(self, pseudonym: str, moment: int) -> None:
        """Notes a wipe before it happens; it is on the disk when this returns."""
        line = msgspec.json.encode({"wiped_at": to_datetime(moment), "user": pseudonym}) + b"\n"
        try:
            with open(self.path, "ab", opener=_private) as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Unavailable(f"the ledger {self.path} cannot be written: {error.strerror}") from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
