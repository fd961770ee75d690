"""YAML read safely: UTF-8, no field twice, and a limit on bytes, levels and values."""

from __future__ import annotations

import re
from typing import TypeAlias

import yaml

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
        problem = "an alias that stands inside what it names"
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
