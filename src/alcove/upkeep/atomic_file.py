"""A file that gets its name only when it is whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from alcove.core.errors import StoreError, Unavailable

_COMPANIONS = ("-wal", "-shm", "-journal")


class Partial:
    """A file beside its target for the length of a `with`; unless completed, nothing is left of it.

    Its name is always the same and it is locked, so that what a killed process left is known for what
    it is: the next attempt removes it.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(target.name + ".partial")

    def __enter__(self) -> Self:
        if not self.target.parent.is_dir():
            raise StoreError(f"{self.target} cannot be written: the folder {self.target.parent} is not there")
        for path in (self.target, *_companions(self.target)):
            if os.path.lexists(path):
                raise StoreError(f"{path} is already there; nothing is written over it")
        with self._explained():
            self._descriptor = self._claim()
        return self

    def write(self, chunk: bytes) -> None:
        """Adds to the end."""
        with self._explained():
            while chunk:
                chunk = chunk[os.write(self._descriptor, chunk) :]

    def sync(self) -> None:
        """What was written is on the disk when this returns."""
        with self._explained():
            os.fsync(self._descriptor)

    def complete(self) -> None:
        """Puts the file on the disk and gives it its name, unless something else has it meanwhile."""
        with self._explained():
            os.fsync(self._descriptor)
            try:
                os.link(self.path, self.target)  # unlike a rename, it never replaces a file
                self.path.unlink()
            except FileExistsError:
                raise StoreError(f"{self.target} is already there; nothing is written over it") from None
            except OSError:  # a file system without links
                if os.path.lexists(self.target):
                    raise StoreError(f"{self.target} is already there; nothing is written over it") from None
                self.path.rename(self.target)
            _sync_folder(self.target.parent)

    def __exit__(self, *_: object) -> None:
        for path in (self.path, *_companions(self.path)):
            path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _claim(self) -> int:
        """A new, empty, locked file of that name, once what a killed process left of it is gone."""
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = os.fstat(descriptor)
                if found.st_nlink and not found.st_size:
                    for path in _companions(self.path):
                        path.unlink(missing_ok=True)
                    return descriptor
                # Not emptied but removed: it may be another name of a file that was completed.
                if found.st_nlink:
                    self.path.unlink()
            except BlockingIOError:
                os.close(descriptor)
                raise Unavailable(f"{self.path} is being written by another process") from None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(f"{self.target} cannot be written: {error.strerror}") from None


def _companions(path: Path) -> list[Path]:
    """What SQLite keeps beside a file; found beside none, it would be taken for part of a new one."""
    return [path.with_name(path.name + suffix) for suffix in _COMPANIONS]


def _sync_folder(folder: Path) -> None:
    """The file's name is to last, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
