"""The texts of a value by which it is to be found: all of them, or those at some dotted paths.

A list adds nothing to a path: the texts of `{"tags": ["sweet", "hot"]}` are one text at `tags`, a line each,
and `{"turns": [{"said": "a"}, {"said": "b"}]}` has one at `turns.said`. Numbers are no texts, and blank ones
are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_PATH_LENGTH = 1024
"""Characters after which a path is not spelled on, whatever lies below: no field has such a name."""
_Wanted = dict[str, Any]
"""Names, each with what is wanted below it; an empty one stands for everything."""


def extract_texts(value: Mapping[str, object], paths: Sequence[str] | None = None) -> dict[str, str]:
    """The texts of a value by their paths; only those at `paths`, or below them, where these are given.

    A path that leads nowhere gives nothing: not every memory of a kind has every field.
    """
    found: dict[str, list[str]] = {}
    if paths is None or paths:
        _gather(dict(value), _tree(paths or ()), "", found)
    return {path: "\n".join(texts) for path, texts in found.items()}


def _tree(paths: Sequence[str]) -> _Wanted:
    """Paths as names below names, so that a value is walked once, however many there are."""
    tree: _Wanted = {}
    for path in sorted(paths, key=lambda path: -path.count(".")):  # a shorter one takes in what is below it
        *above, last = path.split(".")
        here = tree
        for name in above:
            here = here.setdefault(name, {})
        here[last] = {}
    return tree


def _gather(node: object, wanted: _Wanted, path: str, found: dict[str, list[str]]) -> None:
    if isinstance(node, str):
        if not wanted and node.strip():
            found.setdefault(path, []).append(node)
    elif isinstance(node, list):
        for each in node:
            _gather(each, wanted, path, found)
    elif isinstance(node, dict):
        for name in filter(node.__contains__, wanted) if wanted else node:
            below = f"{path}.{name}" if path else name
            _gather(node[name], wanted.get(name, {}), path if len(path) > MAX_PATH_LENGTH else below, found)
