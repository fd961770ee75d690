"""Loads specs from files: every mistake at once, and again whenever a file changes."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path as FilePath

from alcove.agents.specs import consistency
from alcove.agents.specs.catalogue import Catalogue
from alcove.agents.specs.problems import InvalidSpecs, SpecProblem
from alcove.agents.specs.spec_set import SpecSet
from alcove.agents.specs.yaml_documents import MAX_BYTES

logger = logging.getLogger(__name__)
Contents = dict[FilePath, bytes | str]
"""The bytes of each file, or why it cannot be read."""


def load(path: str | FilePath, *, max_depth: int = 5) -> Catalogue:
    """Loads a file, or the `.yaml` and `.yml` files of a folder; raises `InvalidSpecs` with every mistake."""
    return build_catalogue(FilePath(path), read_contents(FilePath(path)), max_depth)


class InlineSpecs:
    """Specs that a program passes as data; they never change."""

    problems: tuple[SpecProblem, ...] = ()

    def __init__(self, content: bytes, *, max_depth: int = 5) -> None:
        """`content`: what a spec file would contain, as YAML or JSON."""
        path = FilePath("specs")
        self._catalogue = build_catalogue(path, {path: content}, max_depth)

    def current(self) -> Catalogue:
        """The specs."""
        return self._catalogue


class WatchedSpecs:
    """Specs that follow their files; while the files have mistakes, the last valid specs stay active."""

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
        self._contents = read_contents(self._path)
        self._catalogue = build_catalogue(self._path, self._contents, max_depth)
        self.version = _digest(self._contents)
        """A digest of the files whose specs are active."""
        self.problems: tuple[SpecProblem, ...] = ()
        """Why the files as they are now do not load; empty when their specs are active."""
        self._next_check = clock() + interval

    def current(self) -> Catalogue:
        """The active specs; checks the files at most once an interval, and never waits for another check."""
        if self._clock() >= self._next_check and self._lock.acquire(blocking=False):
            try:
                self._reload()
            finally:
                self._next_check = self._clock() + self._interval
                self._lock.release()
        return self._catalogue

    def reload(self) -> None:
        """Checks the files now."""
        with self._lock:
            self._reload()

    def _reload(self) -> None:
        before, self._contents = self._contents, read_contents(self._path)
        if self._contents == before:
            return
        try:
            self._catalogue = build_catalogue(self._path, self._contents, self._max_depth)
        except InvalidSpecs as error:
            self.problems = error.problems
            logger.error("agent specs have mistakes, the last valid ones stay active: %s", error.message)
        else:
            self.problems, self.version = (), _digest(self._contents)
            logger.info("agent specs reloaded: %d agents", len(self._catalogue.agents))


def build_catalogue(path: FilePath, contents: Contents, max_depth: int) -> Catalogue:
    """The specs in the files of `path`; raises `InvalidSpecs` with every mistake in them."""
    specs = read_specs(contents)
    for spec, place, message in consistency.find_problems(specs, max_depth):
        specs.problems.append(SpecProblem(spec.file, spec.locate(place), message))
    if specs.problems:
        raise InvalidSpecs(specs.problems)
    if not (specs.agents or specs.teams or specs.knowledge):
        reason = "no file has any spec" if contents else "it has no .yaml or .yml file"
        specs.warnings.append(f"{path}: {reason}, so there are no agents")
    warnings = (
        f"{spec.file}: {spec.locate(place)}: {message}"
        for spec, place, message in consistency.find_warnings(specs)
    )
    return Catalogue(
        {agent.spec.name: agent.spec for agent in specs.agents},
        {team.spec.name: team.spec for team in specs.teams},
        {source.spec.name: source.spec for source in specs.knowledge},
        (*sorted(specs.warnings), *warnings),
    )


def read_specs(contents: Contents) -> SpecSet:
    """Reads files, without checking that their specs fit together."""
    specs = SpecSet()
    for file, content in contents.items():
        if isinstance(content, str):
            specs.problems.append(SpecProblem(str(file), "", content))
        else:
            specs.read(file, content)
    return specs


def read_contents(path: FilePath) -> Contents:
    """Reads a file, or the spec files of a folder."""
    try:
        return {file: _read_file(file) for file in _spec_files(path)}
    except OSError as error:
        return {path: f"expected a folder that can be read: {error.strerror}"}


def _read_file(file: FilePath) -> bytes | str:
    try:
        if not file.is_file():
            return "expected a file" if file.exists() else "expected a file or folder that exists"
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        return f"expected a file that can be read: {error.strerror}"


def _spec_files(path: FilePath) -> list[FilePath]:
    """The file itself, or the spec files of a folder without hidden ones, which editors and mounts make."""
    if not path.is_dir():
        return [path]
    files = (file for file in path.iterdir() if file.suffix in (".yaml", ".yml"))
    return sorted(file for file in files if not file.name.startswith("."))


def _digest(contents: Contents) -> str:
    digest = hashlib.sha256()
    for file, content in contents.items():
        for part in (file.name.encode(), content if isinstance(content, bytes) else content.encode()):
            digest.update(b"%d:%b" % (len(part), part))
    return digest.hexdigest()[:16]
