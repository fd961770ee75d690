"""Specs from a file or a folder: all that is wrong at once, and reloaded when they change."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path as FilePath

from alcove.agents import spec_consistency
from alcove.agents.spec_reading import MAX_BYTES, AllSpecs, SpecFile
from alcove.agents.specs import Catalogue, InvalidSpecs, Trouble

logger = logging.getLogger(__name__)
RECENT = 2.0
"""Seconds in which a file may change again and keep its times, on coarse clocks."""


def load(path: str | FilePath, *, max_depth: int = 5) -> Catalogue:
    """The agents and teams of a file, or of the `.yaml` and `.yml` files of a folder."""
    return _load(FilePath(path), _contents(FilePath(path)), max_depth)


class Given:
    """Specs that a program gives as data, in the words of a file; they stay as they are."""

    troubles: tuple[Trouble, ...] = ()

    def __init__(self, content: bytes, *, max_depth: int = 5) -> None:
        """`content`: what a file would have; JSON is YAML, too."""
        path = FilePath("specs")
        self._catalogue = _load(path, {path: content}, max_depth)

    def current(self) -> Catalogue:
        """The specs."""
        return self._catalogue


class Watched:
    """Specs that follow their files; what does not load leaves the last good version in force."""

    def __init__(
        self,
        path: str | FilePath,
        *,
        max_depth: int = 5,
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._max_depth = FilePath(path), max_depth
        self._interval, self._clock = interval, clock
        self._lock = threading.Lock()
        self._stamp = _stamp(self._path)
        self._contents = _contents(self._path)
        self._catalogue = _load(self._path, self._contents, max_depth)
        self.version = _version(self._contents)
        """A digest of the files whose specs are in force."""
        self.troubles: tuple[Trouble, ...] = ()
        """Why the files as they are now do not load; empty when they are in force."""
        self._next = clock() + interval

    def current(self) -> Catalogue:
        """The specs in force; looks at the files at most once an interval, and never waits for a look."""
        if self._clock() >= self._next and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._next = self._clock() + self._interval
                self._lock.release()
        return self._catalogue

    def look(self) -> None:
        """Looks at the files now."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp and not _recent(stamp):
            return
        before, self._contents, self._stamp = self._contents, _contents(self._path), stamp
        if self._contents == before:
            return
        try:
            self._catalogue = _load(self._path, self._contents, self._max_depth)
        except InvalidSpecs as error:
            self.troubles = error.troubles
            logger.error("agent specs are broken, the last good ones stay in force: %s", error.message)
        else:
            self.troubles, self.version = (), _version(self._contents)
            logger.info("agent specs reloaded: %d agents", len(self._catalogue.agents))


def _files(path: FilePath) -> list[FilePath]:
    """The files themselves; hidden ones are editors' and mounts' own business."""
    if not path.is_dir():
        return [path]
    files = (each for each in path.iterdir() if each.suffix in (".yaml", ".yml"))
    return sorted(each for each in files if not each.name.startswith("."))


def _contents(path: FilePath) -> dict[FilePath, bytes | str]:
    """What is in each file, or why it could not be read."""
    found: dict[FilePath, bytes | str] = {}
    try:
        for file in _files(path):
            found[file] = _content(file)
    except OSError as error:
        found[path] = f"a folder that can be read: {error.strerror}"
    return found


def _version(contents: dict[FilePath, bytes | str]) -> str:
    digest = hashlib.sha256()
    for file, content in contents.items():
        for each in (file.name.encode(), content if isinstance(content, bytes) else content.encode()):
            digest.update(b"%d:%b" % (len(each), each))
    return digest.hexdigest()[:16]


def _content(file: FilePath) -> bytes | str:
    try:
        if not file.is_file():
            return "a file" if file.exists() else "a file or folder that exists"
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        return f"a file that can be read: {error.strerror}"


def _stamp(path: FilePath) -> tuple[tuple[str, int, int, int, int], ...]:
    """What changes when a file does, without reading it."""
    stamps = []
    try:
        for file in _files(path):
            stat = file.stat()
            stamps.append((file.name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino))
    except OSError:
        return (("", 0, 0, 0, 0), *stamps)
    return tuple(stamps)


def _recent(stamp: tuple[tuple[str, int, int, int, int], ...]) -> bool:
    return any(abs(time.time() - max(each[1:3]) / 1e9) < RECENT for each in stamp)


def _load(path: FilePath, contents: dict[FilePath, bytes | str], max_depth: int) -> Catalogue:
    specs = AllSpecs()
    for file, content in contents.items():
        if isinstance(content, str):
            specs.troubles.append(Trouble(str(file), "", content))
        else:
            SpecFile(specs, file).read(content)
    for each, place, expected in spec_consistency.troubles(specs, max_depth):
        specs.troubles.append(Trouble(each.file, each.place(place), expected))
    if specs.troubles:
        raise InvalidSpecs(specs.troubles)
    if not (specs.agents or specs.teams or specs.knowledge):
        why = "no file says anything" if contents else "it has no .yaml or .yml file"
        specs.warnings.append(f"{path}: {why}, so there are no agents")
    found = spec_consistency.warnings(specs)
    surprises = (f"{each.file}: {each.place(place)}: {text}" for each, place, text in found)
    return Catalogue(
        {each.spec.name: each.spec for each in specs.agents},
        {each.spec.name: each.spec for each in specs.teams},
        {each.spec.name: each.spec for each in specs.knowledge},
        (*sorted(specs.warnings), *surprises),
    )
