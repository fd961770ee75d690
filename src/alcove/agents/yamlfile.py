"""YAML as we take it: UTF-8, no key twice, no more than it looks like, and every objection at once."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from alcove.agents.spec_parsing import Path

MAX_BYTES = 1024 * 1024
MAX_NODES = 50_000
"""Values in a file once its aliases are followed: ten lines of aliases can stand for a billion."""
MAX_DEPTH = 24
MERGE = "tag:yaml.org,2002:merge"
TEXT = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """Without dates: `2024-01-01` is a version or a name here."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(content: bytes) -> tuple[list[object], list[tuple[Path, str]]]:
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
        wrong += _objections(node, (), set())
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


def _objections(node: yaml.Node, path: Path, seen: set[int]) -> Iterator[tuple[Path, str]]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for position, child in enumerate(node.value):
            yield from _objections(child, (*path, position), seen)
    elif isinstance(node, yaml.MappingNode):
        names: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == MERGE:
                yield from _objections(value, path, seen)
                continue
            if key.tag != TEXT:
                yield path, f"fields named by text (line {line}; quote {key.value!r} if it is a name)"
                continue
            if key.value in names:
                yield (*path, key.value), f"each field once (lines {names[key.value]} and {line})"
            names[key.value] = line
            yield from _objections(value, (*path, key.value), seen)
    elif not _encodes(node.value):
        yield path, "text without lone surrogates"


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
