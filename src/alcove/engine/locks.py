"""Locks by name that the processes of a store share, so that something goes on once at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path

_opening = threading.Lock()
_open: dict[Path, FileLocks] = {}
"""Those of this process: a lock is the process's, and lost when it closes the file anywhere."""


class Locks(ABC):
    """The locks of one process on one store, for all who have it open. Thread-safe."""

    @abstractmethod
    def take(self, name: bytes) -> bool:
        """Takes a lock, unless anybody has it, in whichever process or thread."""

    @abstractmethod
    def give(self, name: bytes) -> None:
        """Gives a lock back that was taken here."""

    @abstractmethod
    def close(self) -> None:
        """Gives all of them back, once nobody has the store open."""


class FileLocks(Locks):
    """Those of a store that is a file.

    A name is a byte of an empty file beside the store's, far behind its end, which the operating system
    locks. It lets go when the process ends, however that happens; nothing is written, and no name can be read
    there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._users = 0
        self._file: int | None = None
        self._held: set[int] = set()
        self._mutex = threading.Lock()

    @classmethod
    def beside(cls, store: Path) -> FileLocks:
        """The locks of a store; they are closed as often as they were asked for."""
        path = Path(f"{store.resolve()}.turns")
        with _opening:
            locks = _open.setdefault(path, cls(path))
            locks._users += 1
            return locks

    def take(self, name: bytes) -> bool:
        place = lock_number(name)
        with self._mutex:
            if place in self._held:
                return False
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):
                return False
            self._held.add(place)
            return True

    def give(self, name: bytes) -> None:
        with self._mutex:
            place = lock_number(name)
            self._held.discard(place)
            if self._file is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    def close(self) -> None:
        with _opening, self._mutex:
            self._users -= 1
            if not self._users:
                del _open[self._path]
                if self._file is not None:
                    os.close(self._file)
                self._file = None
                self._held.clear()


def lock_number(name: bytes, store: bytes = b"") -> int:
    """A number that stands for a name, from which nobody can read it.

    `store`: what tells stores apart that share one space of numbers, in 64 bytes at most.
    """
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, key=store).digest()) >> 2
