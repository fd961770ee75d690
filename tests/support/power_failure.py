"""A disk that forgets, when the power fails, whatever it was not asked to sync."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw


class Disk(apsw.VFS):
    """Remembers each file of SQLite as it was at its last sync; all databases are opened on it meanwhile."""

    def __init__(self) -> None:
        self.synced: dict[Path, bytes] = {}
        self._usual = apsw.vfs_names()[0]
        super().__init__("forgetful", self._usual, makedefault=True)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  its names
        return _File(self._usual, self.synced, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self.synced.pop(Path(filename), None)

    def after_power_failure(self, database: Path, into: Path) -> Path:
        """A copy of the database and its log as one would find them then, in another folder."""
        for path, content in self.synced.items():
            if path.parent == database.parent and path.name.startswith(database.name):
                (into / path.name).write_bytes(content)
        return into / database.name


class _File(apsw.VFSFile):
    def __init__(
        self, usual: str, synced: dict[Path, bytes], name: apsw.URIFilename | str | None, flags: list[int]
    ) -> None:
        super().__init__(usual, name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._path = Path(path) if path else None
        self._synced = synced

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        if self._path:
            self._synced[self._path] = self.xRead(self.xFileSize(), 0)


@contextmanager
def forgetful_disk() -> Iterator[Disk]:
    """Every database that is opened meanwhile is on such a disk."""
    disk = Disk()
    try:
        yield disk
    finally:
        disk.unregister()
