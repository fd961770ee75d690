"""Locks by name that the processes of a store share."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path

_open_lock = threading.Lock()
_open: dict[Path, FileLocks] = {}
"""The locks of this process; the system releases a process's locks when it closes the file anywhere."""


class Locks(ABC):
    """The locks of one process on one store, shared by all that have it open. Thread-safe."""

    @abstractmethod
    def try_acquire(self, name: bytes) -> bool:
        """Acquires a lock, unless any thread of any process holds it."""

    @abstractmethod
    def release(self, name: bytes) -> None:
        """Releases a lock that this process holds."""

    @abstractmethod
    def close(self) -> None:
        """Releases all locks, once this process has closed the store as often as it opened it."""


class FileLocks(Locks):
    """The locks of a store in a file.

    Each name stands for one byte of an empty file next to the store's, far beyond its end. The operating
    system locks the byte, and unlocks it when the process ends, even by a crash. Nothing is written, so no
    name can be read from the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._users = 0
        self._file: int | None = None
        self._acquired: set[int] = set()
        self._mutex = threading.Lock()

    @classmethod
    def for_store(cls, store: Path) -> FileLocks:
        """Returns the locks of a store; close them once for each call."""
        path = Path(f"{store.resolve()}.turns")
        with _open_lock:
            locks = _open.setdefault(path, cls(path))
            locks._users += 1
            return locks

    def try_acquire(self, name: bytes) -> bool:
        offset = lock_number(name)
        with self._mutex:
            if offset in self._acquired:
                return False
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except (BlockingIOError, PermissionError):
                return False
            self._acquired.add(offset)
            return True

    def release(self, name: bytes) -> None:
        with self._mutex:
            offset = lock_number(name)
            self._acquired.discard(offset)
            if self._file is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, offset)

    def close(self) -> None:
        with _open_lock, self._mutex:
            self._users -= 1
            if not self._users:
                del _open[self._path]
                if self._file is not None:
                    os.close(self._file)
                self._file = None
                self._acquired.clear()


def lock_number(name: bytes, store: bytes = b"") -> int:
    """Returns a number for a name that does not reveal the name.

    `store`: distinguishes stores that share one space of numbers; at most 64 bytes.
    """
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, key=store).digest()) >> 2
