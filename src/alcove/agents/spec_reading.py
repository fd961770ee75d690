"""Spec files read: all that is wrong with one at once, where a decoder stops at the first.

YAML is taken as UTF-8, with no key twice, and bounded in bytes, levels and values. What it says is checked
against the forms of `spec_formats` and becomes our own records, with a note of where each part was written.
"""

from __future__ import annotations

import difflib
import functools
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from msgspec import Meta, Struct, structs

from alcove.agents.spec_formats import LISTS, RESOURCES, At, Unused, agent_form, snake
from alcove.agents.specs import Agent, Knowledge, Path, Team, Trouble, dotted
from alcove.core.decoding import convert

T = TypeVar("T", Agent, Team, Knowledge)
MAX_BYTES = 1024 * 1024
MAX_NODES = 50_000
"""Values in a file once its aliases are followed: ten lines of aliases can stand for a billion."""
MAX_DEPTH = 24
MERGE = "tag:yaml.org,2002:merge"
TEXT = "tag:yaml.org,2002:str"
_fields = functools.cache(structs.fields)
KINDS: dict[str, Any] = {"agents": Agent, "teams": Team, "knowledge": Knowledge}


@dataclass(frozen=True)
class Located(Generic[T]):
    """A spec and where it was written."""

    spec: T
    file: str
    origins: dict[Path, Path]
    """Where in the file stands what our records have at a path."""

    def place(self, path: Path) -> str:
        """A path inside the spec as one in the file."""
        known: int = next(n for n in range(len(path), -1, -1) if path[:n] in self.origins)
        return dotted((*self.origins[path[:known]], *path[known:]))


@dataclass
class AllSpecs:
    """What all files say: the specs that are well formed, and what is wrong with the others."""

    agents: list[Located[Agent]] = field(default_factory=list)
    teams: list[Located[Team]] = field(default_factory=list)
    knowledge: list[Located[Knowledge]] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Agents that are not well formed; a team may still name them."""
    configuring: set[str] = field(default_factory=set)
    """Files with a `knowledge` block."""
    troubles: list[Trouble] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class SpecFile:
    """One file, whose specs are added to those of all, with what is wrong in it."""

    def __init__(self, specs: AllSpecs, file: FilePath) -> None:
        self._specs, self._file = specs, file

    def read(self, content: bytes) -> None:
        """Reads every document."""
        documents, wrong = read_yaml(content)
        for path, expected in wrong:
            self.refuse(path, expected)
        for number, document in enumerate(documents, 1):
            self._document(document, (f"document {number}: ",) if len(documents) > 1 else ())

    def _document(self, document: object, root: Path) -> None:
        if document is None:
            return
        if not isinstance(document, dict):
            self.refuse(root, f"a block with {', '.join(KINDS)}")
        elif "kind" in document or "apiVersion" in document:
            if (kind := document.get("kind")) in (*RESOURCES,):
                self._add(f"{kind.lower()}s", document, root, RESOURCES[kind], (*root, "spec"))
            else:
                self.refuse((*root, "kind"), f"one of {', '.join(RESOURCES)}")
        elif "name" in document and not any(name in document for name in KINDS):
            self._add("teams" if "workers" in document else "agents", document, root)
        else:
            for name, kind, items, path in self.fields(document, LISTS, root):
                if not isinstance(items, list | None):
                    self.refuse(path, expectation(kind))
                    continue
                for place, item in enumerate(items or ()):
                    self._add(name, item, (*path, place))
            if isinstance(document.get("knowledge"), list):
                self._specs.configuring.add(str(self._file))

    def _add(self, name: str, item: object, path: Path, form: Any = None, root: Path | None = None) -> None:
        """Adds what is at a path if nothing is wrong with it; what it does not say would stand at `root`."""
        before = len(self._specs.troubles)
        found = _Form(self, path)
        found.read(item, form or (agent_form(item) if name == "agents" else KINDS[name]), path, ())
        if len(self._specs.troubles) > before:
            if name == "agents" and "name" in found.tree:
                self._specs.broken.add(found.tree["name"])
            return
        if found.tree.get("auto_memory") and "conversation" not in found.tree.get("memory", {}):
            found.tree.setdefault("memory", {})["conversation"] = {}  # stored turns are loaded, too
        spec = convert(found.tree, KINDS[name])
        if isinstance(spec, Knowledge):
            spec = structs.replace(spec, path=str((self._file.parent / spec.path).absolute()))
        located: Any = Located(spec, str(self._file), {**found.origins, (): path if root is None else root})
        getattr(self._specs, name).append(located)

    def fields(
        self, block: dict[str, Any], form: type[Struct], path: Path
    ) -> Iterator[tuple[str, Any, Any, Path]]:
        """The fields of a form that a block has: the name, type, value and path of each."""
        fields, config = _fields(form), form.__struct_config__
        known = {each.name for each in fields} | {config.tag_field}
        written: dict[str, str] = {}
        for name in sorted(block, key=lambda name: name != snake(name)):
            if snake(name) in written:
                self.refuse((*path, name), f"this once, not also as {written[snake(name)]}")
            elif snake(name) in known:
                written[snake(name)] = name
            elif config.forbid_unknown_fields:
                close = difflib.get_close_matches(snake(name), names := _used(form), 1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                self.refuse((*path, name), f"no such field{hint}; there are {', '.join(names)}")
            else:
                self.unused((*path, name))
        for each in fields:
            at = _at(each.type)
            if each.name not in written:
                if each.required:
                    self.refuse((*path, each.name), f"{expectation(each.type)}; it is required")
            elif not (at and at.unless_off and block.get("enabled") is False):
                name = written[each.name]
                yield each.name, each.type, block[name], (*path, name)

    def refuse(self, path: Path, expected: str) -> None:
        """Notes that something else was expected at a path."""
        self._specs.troubles.append(Trouble(str(self._file), dotted(path), expected))

    def unused(self, path: Path) -> None:
        """Warns that what is at a path has no effect."""
        self._specs.warnings.append(f"{self._file}: {dotted(path)}: not used here")


class _Form:
    """What is written in some form, checked and laid out as our own records have it."""

    def __init__(self, file: SpecFile, path: Path) -> None:
        self._file = file
        self.tree: dict[str, Any] = {}
        self.origins: dict[Path, Path] = {(): path}
        """Where in the file stands what is at a path of the tree."""

    def read(self, value: object, kind: Any, origin: Path, target: Path) -> None:
        """Reads a value of a type; it goes to `target`, unless the type says where it belongs."""
        at, options = _at(kind), _options(kind)
        place = at.path if at else target
        forms = [each for each in options if _is_form(each)]
        item = next((get_args(each)[0] for each in options if get_origin(each) is tuple), None)
        if isinstance(value, bool) and forms and bool in options:
            value = {"enabled": value}
        if kind == Unused:
            self._file.unused(origin)
        elif len(forms) > 1:
            self._tagged(value, forms, origin, target)
        elif forms and isinstance(value, dict):
            if self._put(place, {}, origin):
                for name, inner, each, path in self._file.fields(value, _bare(forms[0]), origin):
                    self.read(each, inner, path, (*place, name))
        elif item is not None and isinstance(value, list):
            for number, each in enumerate(value):
                self.read(each, item, (*origin, number), ())
            if value or _fits(value, kind):
                self._put(place, value, origin)
            else:
                self._file.refuse(origin, "a list that is not empty")
        elif not _fits(value, kind):
            self._file.refuse(origin, expectation(kind))
        elif not forms:
            self._put(place, at.means(value) if at else value, origin)

    def _tagged(self, value: object, forms: list[Any], origin: Path, target: Path) -> None:
        """Reads a block that says itself which of several forms it has."""
        known = {_bare(form).__struct_config__.tag: form for form in forms}
        tag = value.get("id") if isinstance(value, dict) else None
        if tag in [*known]:
            self.read(value, known[tag], origin, target)
        else:
            self._file.refuse((*origin, "id"), f"one of {', '.join(known)}")

    def _put(self, target: Path, value: object, origin: Path) -> bool:
        """Lays out a value at its place, unless something else in the document says what is there."""
        other = self.origins.get(target)
        if other is None:
            self.origins[target] = origin
            block: Any = self.tree
            for step in target[:-1]:
                block = block.setdefault(step, {})
            block[target[-1]] = value
        elif other != origin[: len(other)]:  # not what this is a part of
            self._file.refuse(origin, f"this once, not also as {dotted(other)}")
            return False
        return True


def expectation(kind: Any) -> str:
    """What a field takes, in words."""
    bare, at, options = _bare(kind), _at(kind), _options(kind)
    metas = [each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Meta)]
    if at and at.expected:
        return at.expected
    if len(options) > 1:
        return " or ".join(map(expectation, options))
    if _is_form(bare):
        return f"a block with {', '.join(_used(bare))}"
    if get_origin(bare) is Literal:
        return "one of " + ", ".join(get_args(bare))
    if get_origin(bare) is tuple:
        return "a list"
    between = next((f" from {meta.ge} to {meta.le}" for meta in metas if meta.ge is not None), "")
    longest = next((meta.max_length for meta in metas if meta.max_length), None)
    names = {bool: "true or false", int: f"a whole number{between}", float: f"a number{between}"}
    names |= {type(None): "nothing", str: f"text of 1 to {longest} characters" if longest else "text"}
    return names[bare]


def _fits(value: object, kind: Any) -> bool:
    try:
        convert(value, kind)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def _bare(kind: Any) -> Any:
    """A type without its annotations."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _options(kind: Any) -> tuple[Any, ...]:
    """The types that a value may have, one of which is enough."""
    bare = _bare(kind)
    return get_args(bare) if get_origin(bare) in (Union, types.UnionType) else (bare,)


def _at(kind: Any) -> At | None:
    return next((each for each in getattr(kind, "__metadata__", ()) if isinstance(each, At)), None)


def _is_form(kind: Any) -> bool:
    return isinstance(_bare(kind), type(Struct))


def _used(form: type[Struct]) -> list[str]:
    """The names of the fields that have an effect."""
    tag = form.__struct_config__.tag_field
    return [*filter(None, (tag,)), *(each.name for each in _fields(form) if each.type != Unused)]


class _Loader(yaml.SafeLoader):
    """Without dates: `2024-01-01` is a version or a name here."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(content: bytes) -> tuple[list[object], list[tuple[Path, str]]]:
    """The documents of a file, or what is wrong with it."""
    if len(content) > MAX_BYTES:
        return [], [((), f"at most {MAX_BYTES} bytes")]
    try:
        nodes = [*filter(None, yaml.compose_all(content.decode("utf-8-sig"), _Loader))]
        wrong: list[tuple[Path, str]] = []
        if any(_measured(node, (), (), {}, wrong) > MAX_NODES for node in nodes):
            return [], [((), f"at most {MAX_NODES} values once aliases are followed")]
        loader = _Loader("")
        return [loader.construct_document(node) for node in nodes if not wrong], wrong
    except UnicodeDecodeError as error:
        return [], [((), f"UTF-8 (byte {error.start} is not)")]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        return [], [((), f"YAML: {error.problem or error.context}{where}")]
    except RecursionError:
        return [], [((), f"at most {MAX_DEPTH} levels")]
    except (yaml.YAMLError, ValueError) as error:  # a character YAML refuses, a number of 5,000 digits
        return [], [((), f"YAML: {' '.join(str(error).split())}")]


def _measured(
    node: yaml.Node, path: Path, above: tuple[int, ...], known: dict[int, int], wrong: list[tuple[Path, str]]
) -> int:
    """How many values are under a node with aliases followed; each is looked at once for what is wrong."""
    if id(node) in above:
        problem = "an alias that stands inside what it names"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    if len(above) >= MAX_DEPTH:
        raise RecursionError
    if id(node) in known:
        return known[id(node)]
    children: list[tuple[yaml.Node, Path]] = []
    names: dict[str, int] = {}
    if isinstance(node, yaml.SequenceNode):
        children += ((child, (*path, place)) for place, child in enumerate(node.value))
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        line = key.start_mark.line + 1
        inside = path if key.tag == MERGE else (*path, str(key.value))
        children += ((key, path), (value, inside))
        if key.tag not in (MERGE, TEXT):
            wrong.append((path, f"fields named by text (line {line}; quote {key.value!r} if it is a name)"))
        elif key.value in names and key.tag == TEXT:
            wrong.append((inside, f"each field once (lines {names[key.value]} and {line})"))
        elif key.tag == TEXT:
            names[key.value] = line
    if isinstance(node, yaml.ScalarNode) and re.search("[\ud800-\udfff]", node.value):
        wrong.append((path, "text without lone surrogates"))
    below = (*above, id(node))
    known[id(node)] = 1 + sum(_measured(child, at, below, known, wrong) for child, at in children)
    return known[id(node)]
