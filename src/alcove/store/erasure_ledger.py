"""The ledger of erasures, outside the database: a restored backup erases again what it lists."""

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
    """One line: when a user (as a pseudonym), one memory or one API key was erased."""

    wiped_at: Annotated[datetime, Meta(tz=True)]
    position: int | None = None
    """The end of the log then; nothing erased is later. Lines of older versions lack it."""
    user: str | None = None
    shared: SharedHandling | None = None
    """What happened to the user's memories in shared rooms. Lines of older versions lack it: anonymised."""
    rooms: tuple[str, ...] = ()
    """Pseudonyms of rooms without an owner from which the user's memories were erased as well."""
    receipt: str | None = None
    """A keyed digest of the receipt."""
    memory: str | None = None
    """The id of the newest version of an erased memory; its older versions were erased, too."""
    place: str | None = None
    """A pseudonym of its namespace and key: in an older backup the newest version has another id."""
    api_key: str | None = None
    """The id of an API key that was revoked."""

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.user, self.memory, self.api_key)) != 1:
            raise ValueError("it does not name one of a user, a memory and an API key")
        if self.memory is not None:
            UUID(self.memory)

    @property
    def moment(self) -> int:
        """`wiped_at` in microseconds since 1970."""
        moment = parse_moment(self.wiped_at, "wiped_at")
        assert moment is not None
        return moment


_decode_entry = msgspec.json.Decoder(LedgerEntry).decode


class ErasureLedger:
    """One line of JSON for every erasure.

    A line is on the disk before its erasure is committed. So an incomplete last line, which lacks its line
    break, belongs to an erasure that never happened, and is ignored. Damage anywhere else may hide an
    erasure, and is an error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_store(cls, store: Path) -> ErasureLedger:
        """The ledger of the store at a path, next to its file."""
        return cls(store.with_name(store.name + ".wipes"))

    def record(self, *entries: LedgerEntry) -> None:
        """Adds entries about what will be erased next; they are on the disk when this returns."""
        lines = msgspec.json.Encoder().encode_lines(entries)
        try:
            with open(self.path, "ab+", buffering=0, opener=partial(os.open, mode=0o600)) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                size = _repair_end(file)
                if file.write(lines) < len(lines):
                    file.truncate(size)  # half a line would spoil the next one
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file)
            if size == 0:
                sync_folder(self.path.resolve().parent)
        except OSError as error:
            raise Unavailable(f"the ledger {self.path} cannot be written: {error.strerror}") from None

    def include(self, entries: Iterable[LedgerEntry]) -> None:
        """Adds the entries of another ledger that this one lacks."""
        own = {*self.read()}
        if missing := [entry for entry in entries if entry not in own]:
            self.record(*missing)

    def read(self) -> list[LedgerEntry]:
        """All entries; none if there is no file. A damaged line raises StoreError with its number."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unavailable(f"the ledger {self.path} cannot be read: {error.strerror}") from None
        if _is_torn(lines[-1]):
            lines.pop()
        entries = []
        for number, line in enumerate(lines, 1):
            try:
                entries += [_decode_entry(line)] if line.strip() else []
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise StoreError(
                    f"the ledger {self.path} is damaged in line {number} ({error}): mend the line from "
                    "another copy; without it, data of an erased user could come back"
                ) from None
        return entries


def _is_torn(tail: bytes) -> bool:
    """Whether the text after the last line break is not a whole entry."""
    try:
        _decode_entry(tail)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return True
    return False


def _repair_end(file: FileIO) -> int:
    """Removes an incomplete last line, or adds the missing line break to a whole one; returns the size."""
    file.seek(0)
    content = file.readall()
    tail = content.rpartition(b"\n")[2]
    if _is_torn(tail):
        file.truncate(len(content) - len(tail))
    else:
        file.write(b"\n")
    return os.fstat(file.fileno()).st_size


def sync_folder(folder: Path) -> None:
    """Syncs the names of a folder's files to the disk, so that a new file survives a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
