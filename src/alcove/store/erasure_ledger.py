"""The ledger of wipes: kept outside the database, so that a restored backup can forget again."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from alcove.core.clock import parse_moment
from alcove.core.errors import StoreError, Unavailable
from alcove.core.records import SharedHandling


class LedgerEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: when, and a pseudonym of whom, or which single memory or API key an admin took away."""

    wiped_at: Annotated[datetime, Meta(tz=True)]
    position: int | None = None
    """How far the log was: what was taken away is not later. Older lines do not say, and go by their time."""
    user: str | None = None
    shared: SharedHandling | None = None
    """What became of the user's part in shared rooms; lines of older versions do not say: anonymised."""
    rooms: tuple[str, ...] = ()
    """Pseudonyms of the rooms without an owner out of which the user's part was taken all the same."""
    receipt: str | None = None
    """A keyed digest of the receipt."""
    memory: str | None = None
    """The id of the version that was taken away, and with it all that its key held until then."""
    place: str | None = None
    """A pseudonym of its namespace and key: an older backup knows the key under another version's id."""
    api_key: str | None = None
    """The id of an API key that was revoked."""

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.user, self.memory, self.api_key)) != 1:
            raise ValueError("it does not name one of a user, a memory and an API key")
        if self.memory is not None:
            UUID(self.memory)

    @property
    def moment(self) -> int:
        """When, as engines count."""
        moment = parse_moment(self.wiped_at, "wiped_at")
        assert moment is not None
        return moment


_note = msgspec.json.Decoder(LedgerEntry).decode


class ErasureLedger:
    """One line of JSON for every wipe.

    A line is on the disk before its wipe is committed. So half a line at the end, without the line
    break that was to be written with it, is of a wipe that never happened, and is passed over; damage
    anywhere else may hide a wipe, and is refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def beside(cls, store: Path) -> ErasureLedger:
        """The ledger of the store at a path."""
        return cls(store.with_name(store.name + ".wipes"))

    def record(self, *notes: LedgerEntry) -> None:
        """Notes what is about to be taken away; it is on the disk when this returns."""
        lines = msgspec.json.Encoder().encode_lines(notes)
        try:
            with open(self.path, "ab+", buffering=0, opener=partial(os.open, mode=0o600)) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                size = _mended(file)
                if file.write(lines) < len(lines):
                    file.truncate(size)  # half a line would spoil the next one
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file)
            if size == 0:
                sync_folder(self.path.resolve().parent)
        except OSError as error:
            raise Unavailable(f"the ledger {self.path} cannot be written: {error.strerror}") from None

    def include(self, notes: Iterable[LedgerEntry]) -> None:
        """Adds the notes of another ledger that this one does not have yet."""
        known = {*self.read()}
        if missing := [note for note in notes if note not in known]:
            self.record(*missing)

    def read(self) -> list[LedgerEntry]:
        """Every note; none where there is no file. A damaged line is an error that names it."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unavailable(f"the ledger {self.path} cannot be read: {error.strerror}") from None
        if _is_torn(lines[-1]):
            lines.pop()
        return [self._parsed(line, number) for number, line in enumerate(lines, 1) if line.strip()]

    def _parsed(self, line: bytes, number: int) -> LedgerEntry:
        try:
            return _note(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(
                f"the ledger {self.path} is damaged in line {number} ({error}): mend the line from another "
                "copy; without it, somebody who was forgotten could come back"
            ) from None


def _is_torn(tail: bytes) -> bool:
    """Whether what follows the last line break is no whole note; one that is whole counts."""
    try:
        _note(tail)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return True
    return False


def _mended(file: FileIO) -> int:
    """The size, once the last line ends: a torn one goes, a whole one gets the line break it lacks."""
    file.seek(0)
    content = file.readall()
    tail = content.rpartition(b"\n")[2]
    if _is_torn(tail):
        file.truncate(len(content) - len(tail))
    else:
        file.write(b"\n")
    return os.fstat(file.fileno()).st_size


def sync_folder(folder: Path) -> None:
    """Puts the names of a folder's files on the disk: a new file is to be found after a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
