"""Loads specs: from files, again whenever they change, or from data; and writes them in our own form."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import yaml

from alcove.agents.specs.reader import MAX_BYTES, InvalidSpecs, SpecFile, SpecProblem
from alcove.agents.specs.records import KINDS, Catalogue
from alcove.agents.specs.validator import SpecSet

logger = logging.getLogger(__name__)
Contents = dict[Path, bytes | str]
"""The bytes of each file, or why it cannot be read."""


def load(path: str | Path, *, max_depth: int = 5) -> Catalogue:
    """Loads a file, or the `.yaml` and `.yml` files of a folder; raises `InvalidSpecs` with every mistake."""
    return build_catalogue(Path(path), read_contents(Path(path)), max_depth)


class WatchedSpecs:
    """Specs that follow their files; while the files have mistakes, the last valid specs stay active."""

    def __init__(
        self,
        source: str | Path | bytes,
        *,
        max_depth: int = 5,
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`source`: a file or folder, or the content of a file as YAML or JSON, which never changes."""
        self._path = Path("specs" if isinstance(source, bytes) else source)
        self._contents: Contents
        if isinstance(source, bytes):
            self._contents, interval = {self._path: source}, math.inf
        else:
            self._contents = read_contents(self._path)
        self._max_depth, self._interval, self._clock = max_depth, interval, clock
        self._lock = threading.Lock()
        self._catalogue = build_catalogue(self._path, self._contents, max_depth)
        self.version = _digest(self._contents)
        """A digest of the files whose specs are active."""
        self.problems: tuple[SpecProblem, ...] = ()
        """Why the files as they are now do not load; empty when their specs are active."""
        self._next_check = clock() + interval

    def current(self) -> Catalogue:
        """The active specs; checks the files at most once an interval, and never waits for another check."""
        if self._clock() >= self._next_check:
            self.reload(wait=False)
        return self._catalogue

    def reload(self, *, wait: bool = True) -> None:
        """Checks the files now; without `wait`, not while another thread does so."""
        if not self._lock.acquire(blocking=wait):
            return
        try:
            before, self._contents = self._contents, read_contents(self._path)
            if self._contents == before:
                return
            self._catalogue = build_catalogue(self._path, self._contents, self._max_depth)
            self.problems, self.version = (), _digest(self._contents)
            logger.info("agent specs reloaded: %d agents", len(self._catalogue.agents))
        except InvalidSpecs as error:
            self.problems = error.problems
            logger.error("agent specs have mistakes, the last valid ones stay active: %s", error.message)
        finally:
            self._next_check = self._clock() + self._interval
            self._lock.release()


def build_catalogue(path: Path, contents: Contents, max_depth: int) -> Catalogue:
    """The specs in the files of `path`; raises `InvalidSpecs` with every mistake in them."""
    specs = read_specs(contents)
    specs.check_together(max_depth)
    if specs.problems:
        raise InvalidSpecs(specs.problems)
    if not (specs.agents or specs.teams or specs.knowledge):
        reason = "no file has any spec" if contents else "it has no .yaml or .yml file"
        specs.warnings.append(f"{path}: {reason}, so there are no agents")
    return Catalogue(
        {agent.name: agent for agent in specs.agents.values()},
        {team.name: team for team in specs.teams.values()},
        {source.name: source for source in specs.knowledge.values()},
        tuple(specs.warnings),
    )


def read_specs(contents: Contents) -> SpecSet:
    """Reads files and checks each spec, but not whether they fit together."""
    return SpecSet([SpecFile(file, content) for file, content in contents.items()])


def read_contents(path: Path) -> Contents:
    """Reads a file, or the spec files of a folder without hidden ones, which editors and mounts make."""
    try:
        entries = sorted(path.iterdir()) if path.is_dir() else []
    except OSError as error:
        return {path: f"expected a folder that can be read: {error.strerror}"}
    specs = (file for file in entries if file.suffix in (".yaml", ".yml") and file.name[0] != ".")
    return {file: _read_file(file) for file in (specs if path.is_dir() else [path])}


def _read_file(file: Path) -> bytes | str:
    try:
        if not file.is_file():
            return "expected a file" if file.exists() else "expected a file or folder that exists"
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        return f"expected a file that can be read: {error.strerror}"


def _digest(contents: Contents) -> str:
    parts = [(file.name, content) for file, content in contents.items()]
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()[:16]


# Our own form


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and no YAML aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def read_valid_specs(path: Path) -> SpecSet:
    """The specs of a file or a folder; raises `InvalidSpecs` with every mistake in them."""
    specs = read_specs(read_contents(path))
    if specs.problems:
        raise InvalidSpecs(specs.problems)
    return specs


def to_own_form(specs: SpecSet) -> dict[str, list[object]]:
    """The fields that the files set, in our own form; defaults are left out."""
    blocks = {kind: [draft.tree for draft in getattr(specs, kind)] for kind in KINDS}
    has_knowledge = bool(specs.knowledge_files)
    return {kind: trees for kind, trees in blocks.items() if trees or (kind == "knowledge" and has_knowledge)}


def to_yaml(specs: SpecSet) -> str:
    """The specs as one YAML document in our own form."""
    return yaml.dump(to_own_form(specs), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
