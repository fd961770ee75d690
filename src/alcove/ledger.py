"""The ledger of wipes: kept outside the database, so that a restored backup can forget again."""

from __future__ import annotations

import errno
import fcntl
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
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, line) < len(line):
                os.ftruncate(descriptor, size)  # half a line would spoil the next one
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        except OSError as error:
            raise self._unavailable(error) from None
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: OSError) -> Unavailable:
        return Unavailable(f"the ledger {self.path} cannot be written: {error.strerror}")
