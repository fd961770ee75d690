"""Reads spec files: YAML in our own form or a published spelling, translated into our own form.

YAML is read safely: UTF-8, no field twice, and a limit on bytes, levels and values. `aliases.toml` lists the
published spellings. Every part of a spec keeps its place in the file, so that an error can name it as its
author wrote it. `validator.py` checks the fields.
"""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from alcove.agents.specs.records import KINDS
from alcove.core.errors import AlcoveError

MAX_BYTES = 1024 * 1024
MAX_VALUES = 50_000
"""Values in a file once its aliases are followed: ten lines of aliases can stand for a billion."""
MAX_LEVELS = 24
FieldPath: TypeAlias = tuple[str | int, ...]
"""A place in a file or in a spec: names of fields and indexes of lists."""
Mistake: TypeAlias = tuple[FieldPath, str]
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """Without dates: `2024-01-01` is a version or a name here."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(content: bytes) -> tuple[list[object], list[Mistake]]:
    """Returns the documents of a file, or the mistakes in it."""
    if len(content) > MAX_BYTES:
        return [], [((), f"expected at most {MAX_BYTES} bytes")]
    try:
        nodes = [*filter(None, yaml.compose_all(content.decode("utf-8-sig"), _Loader))]
        mistakes: list[Mistake] = []
        if any(_count_values(node, (), (), {}, mistakes) > MAX_VALUES for node in nodes):
            return [], [((), f"expected at most {MAX_VALUES} values once aliases are followed")]
        loader = _Loader("")
        return [loader.construct_document(node) for node in nodes if not mistakes], mistakes
    except UnicodeDecodeError as error:
        return [], [((), f"expected UTF-8 (byte {error.start} is not)")]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        return [], [((), f"not valid YAML: {error.problem or error.context}{line}")]
    except RecursionError:
        return [], [((), f"expected at most {MAX_LEVELS} levels")]
    except (yaml.YAMLError, ValueError) as error:  # a character YAML refuses, a number of 5,000 digits
        return [], [((), f"not valid YAML: {' '.join(str(error).split())}")]


def _count_values(
    node: yaml.Node,
    path: FieldPath,
    above: tuple[int, ...],
    counts: dict[int, int],
    mistakes: list[Mistake],
) -> int:
    """Counts the values under a node with its aliases followed, and notes each mistake once.

    `above` has the ids of the nodes around it, `counts` the results so far by id.
    """
    if id(node) in above:
        problem = "an alias inside the block that it names"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    if len(above) >= MAX_LEVELS:
        raise RecursionError
    if id(node) in counts:
        return counts[id(node)]
    children: list[tuple[yaml.Node, FieldPath]] = []
    lines: dict[str, int] = {}
    if isinstance(node, yaml.SequenceNode):
        children += ((child, (*path, index)) for index, child in enumerate(node.value))
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        line = key.start_mark.line + 1
        inside = path if key.tag == _MERGE else (*path, str(key.value))
        children += ((key, path), (value, inside))
        if key.tag not in (_MERGE, _TEXT):
            hint = f"quote {key.value!r} if it is a name"
            mistakes.append((path, f"expected fields named by text (line {line}; {hint})"))
        elif key.value in lines and key.tag == _TEXT:
            mistakes.append((inside, f"expected each field once (lines {lines[key.value]} and {line})"))
        elif key.tag == _TEXT:
            lines[key.value] = line
    if isinstance(node, yaml.ScalarNode) and re.search("[\ud800-\udfff]", node.value):
        mistakes.append((path, "expected text without lone surrogates"))
    below = (*above, id(node))
    totals = (_count_values(child, place, below, counts, mistakes) for child, place in children)
    counts[id(node)] = 1 + sum(totals)
    return counts[id(node)]


def _paths(names: Iterable[str]) -> list[FieldPath]:
    return [tuple(name.split(".")) for name in names]


_TABLE: dict[str, Any] = tomllib.loads((files("alcove.agents.specs") / "aliases.toml").read_text("utf-8"))
OTHER_PROGRAMS: list[str] = _TABLE["other_programs"]
ALIASES = dict(zip(_paths(_TABLE["aliases"]), _paths(_TABLE["aliases"].values()), strict=True))
GROUPS = dict(zip(_paths(_TABLE["groups"]), _TABLE["groups"].values(), strict=True))
_CHOICES = dict(zip(_paths(_TABLE["choices"]), _TABLE["choices"].values(), strict=True))
_NULLABLE, _IF_ENABLED = _paths(_TABLE["nullable"]), _paths(_TABLE["if_enabled"])
_TYPES: FieldPath = ("memory", "types")
"""A group whose blocks are the items of a list, named by their `id`."""
_RESOURCES = {"Agent": "agents", "Team": "teams"}
"""The kinds of documents with `apiVersion`, `kind`, `metadata` and `spec`, and the list each belongs to."""
_RESOURCE_FIELDS = ("api_version", "kind", "metadata", "spec")
_CONVERTERS: dict[FieldPath, Callable[[Any], object]] = {
    ("version",): lambda value: str(value) if type(value) in (int, float) else value,
    ("memory", "session_memory"): lambda value: {"enabled": value} if isinstance(value, bool) else value,
}
"""For a path of our own form: converts the value in the file into ours."""
ACCEPTED_TOO: dict[FieldPath, str] = {("version",): "a number", ("memory", "session_memory"): "true or false"}
"""What converters accept, for error messages."""


@dataclass(frozen=True, slots=True, order=True)
class SpecProblem:
    """One mistake in one file."""

    file: str
    path: str
    message: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.file, self.path, self.message)))


class InvalidSpecs(AlcoveError):
    """Specs that do not load; the message has every problem, a line each."""

    code = "invalid_request"

    def __init__(self, problems: Sequence[SpecProblem]) -> None:
        lines = [str(problem) for problem in problems]
        super().__init__("\n".join(lines), details={"errors": lines})
        self.problems = tuple(problems)


class Draft:
    """A spec of a file in our own form, not yet checked, and where in the file each part of it is."""

    def __init__(self, file: Path, kind: str, root: FieldPath) -> None:
        """`root`: the place in the file below which the spec's fields are."""
        self.file, self.kind = file, kind
        self.tree: Any = {}
        self.places: dict[FieldPath, FieldPath] = {(): root}
        """The place in the file of each path of the tree that was read."""
        self.problems: list[SpecProblem] = []
        self.warnings: list[str] = []

    def refuse(self, place: FieldPath, message: str) -> None:
        """Notes a mistake at a place in the file."""
        self.problems.append(SpecProblem(str(self.file), format_path(place), message))

    def locate(self, path: FieldPath) -> str:
        """The place in the file of a path of the tree, also of a field that is missing there."""
        size = next(size for size in range(len(path), -1, -1) if path[:size] in self.places)
        return format_path((*self.places[path[:size]], *path[size:]))

    def problem(self, path: FieldPath, message: str) -> SpecProblem:
        """A mistake at a path of the tree."""
        return SpecProblem(str(self.file), self.locate(path), message)

    def read(self, value: Any, place: FieldPath, path: FieldPath = (), ignored: Collection[str] = ()) -> None:
        """Translates the value at `path` of some spelling; warns of the fields named in `ignored`."""
        target = own_path(path)
        if path == _TYPES and not isinstance(value, list):
            self.refuse(place, "expected a list")
        elif path in GROUPS and path != _TYPES and not isinstance(value, dict):
            self.refuse(place, f"expected a block with {', '.join(alias_names(path))}")
        elif path in GROUPS:
            self._read_fields(value, place, path, [*OTHER_PROGRAMS, *GROUPS[path]])
        elif path in _CHOICES and value not in [*_CHOICES[path]]:
            self.refuse(place, f"expected one of {', '.join(_CHOICES[path])}")
        elif value is not None or path not in _NULLABLE:
            value = _CHOICES[path][value] if path in _CHOICES else value
            value = _CONVERTERS[target](value) if target in _CONVERTERS else value
            if self._put(target, value, place) and isinstance(value, dict):
                self._read_fields(value, place, path, ignored)

    def _read_fields(self, block: Any, place: FieldPath, path: FieldPath, ignored: Collection[str]) -> None:
        for name, value, field_place in self._list_fields(block, place, path):
            field = (*path, name)
            is_alias = own_path(field) != field or field in GROUPS
            if not is_alias and (name in ignored or "*" in ignored):
                self.warnings.append(f"{self.file}: {format_path(field_place)}: not used here")
            elif not is_alias and path in GROUPS:
                self.refuse(field_place, unknown_field(name, alias_names(path)))
            elif field not in _IF_ENABLED or block.get("enabled") is not False:
                self.read(value, field_place, field)

    def _list_fields(
        self, block: Any, place: FieldPath, path: FieldPath
    ) -> Iterator[tuple[str, Any, FieldPath]]:
        """The fields of a block, each with its name in snake_case and its place."""
        if path != _TYPES:
            yield from ((snake_case(key), value, (*place, key)) for key, value in block.items())
            return
        ids = alias_names(path)
        for index, each in enumerate(block):
            if isinstance(each, dict) and (id := each.get("id")) in ids:
                yield id, {key: value for key, value in each.items() if key != "id"}, (*place, index)
            else:
                self.refuse((*place, index, "id"), f"expected one of {', '.join(ids)}")

    def _put(self, target: FieldPath, value: Any, place: FieldPath) -> bool:
        """Stores a value at a path of the tree, unless it was read from another place in the file."""
        first = self.places.setdefault(target, place)
        if first != place[: len(first)]:
            self.refuse(place, f"expected this once, not also as {format_path(first)}")
            return False
        if not target:
            self.tree = self.tree if isinstance(value, dict) else value
            return True
        block = self.tree
        for step in target[:-1]:
            block = block.setdefault(step, {}) if isinstance(block, dict) else None
        if isinstance(value, dict) and isinstance(block, dict):
            block.setdefault(target[-1], {})
        elif isinstance(block, dict):  # otherwise the block itself is refused
            block[target[-1]], self.places[target] = value, place
        return True


class SpecFile:
    """The drafts of one file, and the mistakes outside of them."""

    def __init__(self, file: Path, content: bytes | str) -> None:
        """`content`: the bytes of the file, or why it cannot be read."""
        self.file, self.has_knowledge = file, False
        self.drafts: list[Draft] = []
        self.problems: list[SpecProblem] = []
        documents, mistakes = ([], [((), content)]) if isinstance(content, str) else read_yaml(content)
        for place, message in mistakes:
            self._refuse(place, message)
        for number, document in enumerate(documents, 1):
            self._read_document(document, (f"document {number}: ",) if len(documents) > 1 else ())

    def _refuse(self, place: FieldPath, message: str) -> None:
        self.problems.append(SpecProblem(str(self.file), format_path(place), message))

    def _read_document(self, document: Any, root: FieldPath) -> None:
        if document is None:
            return
        if not isinstance(document, dict):
            self._refuse(root, f"expected a block with {', '.join(KINDS)}")
        elif "kind" in document or "apiVersion" in document:
            self._read_resource(document, root)
        elif "name" in document and not document.keys() & KINDS.keys():
            self._read_spec("teams" if "workers" in document else "agents", document, root)
        else:
            for kind, blocks in document.items():
                if kind not in KINDS:
                    self._refuse((*root, kind), unknown_field(kind, KINDS))
                elif isinstance(blocks, list):
                    self.has_knowledge |= kind == "knowledge"
                    for index, block in enumerate(blocks):
                        self._read_spec(kind, block, (*root, kind, index))
                elif blocks is not None:
                    self._refuse((*root, kind), "expected a list")

    def _read_spec(self, kind: str, block: Any, root: FieldPath) -> None:
        draft = Draft(self.file, kind, root)
        self.drafts.append(draft)
        is_published = kind == "agents" and isinstance(block, dict) and _is_published(block)
        draft.read(block, root, ignored=OTHER_PROGRAMS if is_published else ())

    def _read_resource(self, document: dict[str, Any], root: FieldPath) -> None:
        """Reads a document with a `kind`, whose metadata has the name of the spec."""
        if (kind := document.get("kind")) not in [*_RESOURCES]:
            return self._refuse((*root, "kind"), f"expected one of {', '.join(_RESOURCES)}")
        draft = Draft(self.file, _RESOURCES[kind], (*root, "spec"))
        self.drafts.append(draft)
        for key, value in document.items():
            name, place = snake_case(key), (*root, key)
            if name == "metadata":
                draft.read(value, place, ("resource", "metadata"))
            elif name == "spec" and isinstance(value, dict):
                draft.read(value, place, ignored=OTHER_PROGRAMS if kind == "Agent" else ())
            elif name == "spec" and value is not None:
                draft.refuse(place, "expected a block of fields, or nothing")
            elif name == "api_version" and not isinstance(value, str | None):
                draft.refuse(place, "expected text")
            elif name not in _RESOURCE_FIELDS:
                draft.refuse(place, unknown_field(key, _RESOURCE_FIELDS))
        draft.places.setdefault(("name",), (*root, "metadata", "name"))
        return None


def _is_published(block: Mapping[str, Any]) -> bool:
    """Whether an agent is in a published spelling, so that its fields for other programs are ignored."""
    memory, marks = block.get("memory"), {*alias_names()} - {"memory"}
    return (isinstance(memory, dict) and "types" in memory) or bool(marks & {*map(snake_case, block)})


def own_path(path: FieldPath) -> FieldPath:
    """The path in our own form of a path in a published spelling."""
    for size in range(len(path), 0, -1):
        if target := ALIASES.get(path[:size]):
            return (*target, *path[size:])
    return path


def alias_names(path: FieldPath = ()) -> list[str]:
    """The fields that published spellings add below a path, in the order of the table."""
    size = len(path)
    names = (str(alias[size]) for alias in ALIASES if len(alias) > size and alias[:size] == path)
    return [name for name in dict.fromkeys(names) if name != "resource"]


def unknown_field(name: str, names: Iterable[str]) -> str:
    """The message for a field that is none of `names`."""
    names = [*names]
    similar = difflib.get_close_matches(snake_case(name), names, 1)
    hint = f" Did you mean {similar[0]!r}?" if similar else ""
    return f"unknown field.{hint} The fields here are {', '.join(names)}"


@functools.lru_cache(4096)
def snake_case(name: str) -> str:
    """A camelCase name in snake_case."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), name)


def format_path(path: FieldPath) -> str:
    """A path as text: `agents[0].memory.pools[1]`, or `document 2: name` where a step ends with a colon."""
    text = ""
    for step in path:
        dot = "." if text and not text.endswith(": ") else ""
        text += f"[{step}]" if isinstance(step, int) else f"{dot}{step}"
    return text.removesuffix(": ")
