"""The ledger of wipes: kept outside the database, so that a restored backup can forget again."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from alcove.core.clock import checked_moment
from alcove.core.errors import StoreError, Unavailable
from alcove.core.records import Shared


class Note(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: when, and a pseudonym of whom, or which single memory or API key an admin took away."""

    wiped_at: Annotated[datetime, Meta(tz=True)]
    position: int | None = None
    """How far the log was: what was taken away is not later. Older lines do not say, and go by their time."""
    user: str | None = None
    shared: Shared | None = None
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
        moment = checked_moment(self.wiped_at, "wiped_at")
        assert moment is not None
        return moment


_note = msgspec.json.Decoder(Note).decode


class Ledger:
    """One line of JSON for every wipe.

    A line is on the disk before its wipe is committed. So half a line at the end, without the line
    break that was to be written with it, is of a wipe that never happened, and is passed over; damage
    anywhere else may hide a wipe, and is refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def beside(cls, store: Path) -> Ledger:
        """The ledger of the store at a path."""
        return cls(store.with_name(store.name + ".wipes"))

    def record(self, note: Note) -> None:
        """Notes what is about to be taken away; it is on the disk when this returns."""
        self._append([note])

    def include(self, notes: Iterable[Note]) -> None:
        """Adds the notes of another ledger that this one does not have yet."""
        known = set(map(_line, self.read()))
        if missing := [note for note in notes if _line(note) not in known]:
            self._append(missing)

    def read(self) -> list[Note]:
        """Every note; none where there is no file. A damaged line is an error that names it."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unavailable(f"the ledger {self.path} cannot be read: {error.strerror}") from None
        *lines, tail = content.split(b"\n")
        notes = [self._parsed(line, number) for number, line in enumerate(lines, 1) if line.strip()]
        return notes if _is_torn(tail) else [*notes, self._parsed(tail, len(lines) + 1)]

    def _parsed(self, line: bytes, number: int) -> Note:
        try:
            return _note(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(
                f"the ledger {self.path} is damaged in line {number} ({error}): mend the line from another "
                "copy; without it, somebody who was forgotten could come back"
            ) from None

    def _append(self, notes: list[Note]) -> None:
        lines = b"".join(map(_line, notes))
        try:
            with self._locked() as descriptor:
                size = _mended(descriptor)
                if os.write(descriptor, lines) < len(lines):
                    os.ftruncate(descriptor, size)  # half a line would spoil the next one
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
        except OSError as error:
            raise Unavailable(f"the ledger {self.path} cannot be written: {error.strerror}") from None

    @contextmanager
    def _locked(self) -> Iterator[int]:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


def _line(note: Note) -> bytes:
    return msgspec.json.encode(note) + b"\n"


def _is_torn(tail: bytes) -> bool:
    """Whether what follows the last line break is no whole note; one that is whole counts."""
    try:
        _note(tail)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return True
    return False


def _mended(descriptor: int) -> int:
    """The size, once the last line ends: a torn one goes, a whole one gets the line break it lacks."""
    size = os.fstat(descriptor).st_size
    tail = _tail(descriptor, size)
    while tail and _is_torn(tail):
        size -= len(tail)
        os.ftruncate(descriptor, size)
        tail = _tail(descriptor, size)
    if tail:
        size += os.write(descriptor, b"\n")
    return size


def _tail(descriptor: int, size: int) -> bytes:
    """What follows the last line break, or as much of it as any line has."""
    return os.pread(descriptor, 4096, max(0, size - 4096)).rpartition(b"\n")[2]
