"""Spec files read and checked: everything that is wrong with one at once, where a decoder stops at the first.

YAML is taken as UTF-8, with no key twice, and bounded in bytes, levels and values.
"""

from __future__ import annotations

import difflib
import functools
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import NODEFAULT, Meta, Struct

from alcove.agents.specs import Path

MAX_BYTES = 1024 * 1024
MAX_NODES = 50_000
"""Values in a file once its aliases are followed: ten lines of aliases can stand for a billion."""
MAX_DEPTH = 24
MERGE = "tag:yaml.org,2002:merge"
TEXT = "tag:yaml.org,2002:str"


def objections(value: object, kind: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Where `value` is not what `kind` says, and what was expected there."""
    bare = _bare(kind)
    if get_origin(bare) in (Union, types.UnionType):
        if value is None and type(None) in get_args(bare):
            return
        (bare,) = (each for each in get_args(bare) if each is not type(None))
        bare = _bare(bare)
    if isinstance(bare, type) and issubclass(bare, Struct):
        yield from _block(value, bare, path)
    elif get_origin(bare) is tuple and isinstance(value, list | tuple):
        for position, each in enumerate(value):
            yield from objections(each, get_args(bare)[0], (*path, position))
        if not value and any(meta.min_length for meta in _metas(kind)):
            yield path, "a list that is not empty"
    else:
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, OverflowError):
            yield path, expectation(kind)


def expectation(kind: Any) -> str:
    """What a field takes, in words."""
    bare, metas = _bare(kind), _metas(kind)
    if get_origin(bare) in (Union, types.UnionType):
        return " or ".join(expectation(each) for each in get_args(bare))
    if get_origin(bare) is Literal:
        return "one of " + ", ".join(get_args(bare))
    if get_origin(bare) is tuple:
        return "a list"
    low = next((meta.ge for meta in metas if meta.ge is not None), None)
    high = next((meta.le for meta in metas if meta.le is not None), None)
    between = "" if low is None else f" from {low} to {high}"
    longest = next((meta.max_length for meta in metas if meta.max_length), None)
    names = {bool: "true or false", int: f"a whole number{between}", float: f"a number{between}"}
    names |= {type(None): "nothing", str: f"text of 1 to {longest} characters" if longest else "text"}
    return names.get(bare, "a block of fields")


def _block(value: object, struct: type[Struct], path: Path) -> Iterator[tuple[Path, str]]:
    if not isinstance(value, dict):
        yield path, f"a block with {', '.join(struct.__struct_fields__)}"
        return
    hints = _hints(struct)
    for name in value:
        if name not in hints:
            close = difflib.get_close_matches(str(name), hints, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            yield (*path, str(name)), f"no such field{hint}; there are {', '.join(hints)}"
    for field in msgspec.structs.fields(struct):
        if field.name in value:
            yield from objections(value[field.name], hints[field.name], (*path, field.name))
        elif field.default is NODEFAULT and field.default_factory is NODEFAULT:
            yield (*path, field.name), f"{expectation(hints[field.name])}; it is required"


@functools.cache
def _hints(struct: type[Struct]) -> dict[str, Any]:
    return get_type_hints(struct, include_extras=True)


def _bare(kind: Any) -> Any:
    return _bare(get_args(kind)[0]) if get_origin(kind) is Annotated else kind


def _metas(kind: Any) -> list[Meta]:
    return list(get_args(kind)[1:]) if get_origin(kind) is Annotated else []


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
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return [], [((), f"UTF-8 (byte {error.start} is not)")]
    try:
        loader = _Loader(text)
        try:
            return _documents(loader)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        return [], [((), f"YAML: {error.problem or error.context}{where}")]
    except RecursionError:
        return [], [((), f"at most {MAX_DEPTH} levels")]
    except (yaml.YAMLError, ValueError) as error:  # a character YAML refuses, a number of 5,000 digits
        return [], [((), f"YAML: {' '.join(str(error).split())}")]


def _documents(loader: _Loader) -> tuple[list[object], list[tuple[Path, str]]]:
    nodes: list[yaml.Node] = []
    while loader.check_node():
        if (node := loader.get_node()) is not None:
            nodes.append(node)
    wrong: list[tuple[Path, str]] = []
    for node in nodes:
        if _size(node, {}, ()) > MAX_NODES:
            return [], [((), f"at most {MAX_NODES} values once aliases are followed")]
        wrong += _refused_nodes(node, (), set())
    if wrong:
        return [], wrong
    return [loader.construct_document(node) for node in nodes], []


def _size(node: yaml.Node, known: dict[int, int], above: tuple[int, ...]) -> int:
    """Values under a node with aliases followed, each node looked at once."""
    if id(node) in above:
        raise yaml.MarkedYAMLError(
            problem="an alias that stands inside what it names", problem_mark=node.start_mark
        )
    if len(above) >= MAX_DEPTH:
        raise RecursionError
    if id(node) not in known:
        below = (*above, id(node))
        known[id(node)] = 1 + sum(_size(child, known, below) for child in _children(node))
    return known[id(node)]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _refused_nodes(node: yaml.Node, path: Path, seen: set[int]) -> Iterator[tuple[Path, str]]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for position, child in enumerate(node.value):
            yield from _refused_nodes(child, (*path, position), seen)
    elif isinstance(node, yaml.MappingNode):
        names: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == MERGE:
                yield from _refused_nodes(value, path, seen)
                continue
            if key.tag != TEXT:
                yield path, f"fields named by text (line {line}; quote {key.value!r} if it is a name)"
                continue
            if key.value in names:
                yield (*path, key.value), f"each field once (lines {names[key.value]} and {line})"
            names[key.value] = line
            yield from _refused_nodes(value, (*path, key.value), seen)
    elif not _encodes(node.value):
        yield path, "text without lone surrogates"


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
