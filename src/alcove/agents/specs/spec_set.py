"""The specs of all files, in our own form or a published spelling, and every mistake in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Generic, TypeVar

from msgspec import structs

from alcove.agents.specs.aliases import OTHER_PROGRAMS, Translation, ignored_fields, snake, unknown_field
from alcove.agents.specs.fields import describe_type, find_mistakes
from alcove.agents.specs.problems import Path, SpecProblem, dotted
from alcove.agents.specs.records import Agent, Conversation, Knowledge, Team
from alcove.agents.specs.yaml_documents import read_yaml
from alcove.core.decoding import convert

T = TypeVar("T", Agent, Team, Knowledge)
KINDS: dict[str, Any] = {"agents": Agent, "teams": Team, "knowledge": Knowledge}
RESOURCES = {"Agent": "agents", "Team": "teams"}
"""The kinds of documents with `apiVersion`, `kind`, `metadata` and `spec`, and the list each belongs to."""
_RESOURCE_FIELDS = ("api_version", "kind", "metadata", "spec")


@dataclass(frozen=True)
class LocatedSpec(Generic[T]):
    """A spec, and where its file has each field."""

    spec: T
    file: str
    translation: Translation

    def locate(self, path: Path) -> str:
        """The path in the file of a path of the spec."""
        return dotted(self.translation.locate(path))


@dataclass
class SpecSet:
    """The valid specs of all files, and the problems of the others."""

    agents: list[LocatedSpec[Agent]] = field(default_factory=list)
    teams: list[LocatedSpec[Team]] = field(default_factory=list)
    knowledge: list[LocatedSpec[Knowledge]] = field(default_factory=list)
    invalid_agents: set[str] = field(default_factory=set)
    """Names of agents that are left out because of a mistake; a team may still name them."""
    knowledge_files: set[str] = field(default_factory=set)
    """Files with a `knowledge` block."""
    problems: list[SpecProblem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def read(self, file: FilePath, content: bytes) -> None:
        """Adds every document of a file."""
        _FileReader(self, file).read(content)


class _FileReader:
    """Adds the documents of one file to a set of specs."""

    def __init__(self, specs: SpecSet, file: FilePath) -> None:
        self._specs, self._file = specs, file

    def read(self, content: bytes) -> None:
        documents, mistakes = read_yaml(content)
        for path, message in mistakes:
            self._refuse(path, message)
        for number, document in enumerate(documents, 1):
            self._read_document(document, (f"document {number}: ",) if len(documents) > 1 else ())

    def _read_document(self, document: object, root: Path) -> None:
        if document is None:
            return
        if not isinstance(document, dict):
            self._refuse(root, f"expected a block with {', '.join(KINDS)}")
        elif "kind" in document or "apiVersion" in document:
            self._read_resource(document, root)
        elif "name" in document and not document.keys() & KINDS.keys():
            self._read_spec("teams" if "workers" in document else "agents", document, root)
        else:
            for key, items in document.items():
                if key not in KINDS:
                    self._refuse((*root, key), unknown_field(key, KINDS))
                elif isinstance(items, list):
                    for index, item in enumerate(items):
                        self._read_spec(key, item, (*root, key, index))
                elif items is not None:
                    self._refuse((*root, key), "expected a list")
            if isinstance(document.get("knowledge"), list):
                self._specs.knowledge_files.add(str(self._file))

    def _read_spec(self, kind: str, block: object, root: Path) -> None:
        if not isinstance(block, dict):
            return self._refuse(root, f"expected {describe_type(KINDS[kind])}")
        problem_count, translation = len(self._specs.problems), Translation(self._refuse, self._warn, root)
        translation.read(block, root, ignored=ignored_fields(block) if kind == "agents" else ())
        return self._add(kind, translation, problem_count)

    def _read_resource(self, document: dict[str, Any], root: Path) -> None:
        """Reads a document with a `kind`, whose metadata has the name of the spec."""
        if (kind := document.get("kind")) not in [*RESOURCES]:
            return self._refuse((*root, "kind"), f"expected one of {', '.join(RESOURCES)}")
        problem_count = len(self._specs.problems)
        translation = Translation(self._refuse, self._warn, (*root, "spec"))
        for key, value in document.items():
            name, place = snake(key), (*root, key)
            if name == "metadata":
                translation.read(value, place, ("resource", "metadata"))
            elif name == "spec" and isinstance(value, dict):
                translation.read(value, place, ignored=OTHER_PROGRAMS if kind == "Agent" else ())
            elif name == "spec" and value is not None:
                self._refuse(place, "expected a block of fields, or nothing")
            elif name == "api_version" and not isinstance(value, str | None):
                self._refuse(place, "expected text")
            elif name not in _RESOURCE_FIELDS:
                self._refuse(place, unknown_field(key, _RESOURCE_FIELDS))
        translation.origins.setdefault(("name",), (*root, "metadata", "name"))
        return self._add(RESOURCES[kind], translation, problem_count)

    def _add(self, kind: str, translation: Translation, problem_count: int) -> None:
        """Adds a spec unless it has a problem; `problem_count` is the number of problems before it."""
        tree = translation.tree
        for path, message in find_mistakes(tree, KINDS[kind]):
            self._refuse(translation.locate(path), message)
        if len(self._specs.problems) > problem_count:
            if kind == "agents" and isinstance(name := tree.get("name"), str):
                self._specs.invalid_agents.add(name)
            return
        spec = convert(tree, KINDS[kind])
        if isinstance(spec, Knowledge):
            spec = structs.replace(spec, path=str((self._file.parent / spec.path).absolute()))
        elif isinstance(spec, Agent) and spec.auto_memory and "conversation" not in tree.get("memory", {}):
            # auto_memory stores turns, and the conversation block loads them.
            spec = structs.replace(spec, memory=structs.replace(spec.memory, conversation=Conversation()))
        getattr(self._specs, kind).append(LocatedSpec(spec, str(self._file), translation))

    def _refuse(self, path: Path, message: str) -> None:
        self._specs.problems.append(SpecProblem(str(self._file), dotted(path), message))

    def _warn(self, path: Path, message: str) -> None:
        self._specs.warnings.append(f"{self._file}: {dotted(path)}: {message}")
