"""Published spellings of agents, as a table of aliases for the fields of our own form.

Other programs publish four spellings: `primitives.memory` on an agent, `systemPrompt` for its instructions,
`memory.types` with ids and configs, and documents with `apiVersion`, `kind`, `metadata` and `spec`. To read
one more, add its fields to `ALIASES`; the loader, `alcove agents convert` and the schema for editors use it.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from alcove.agents.specs.problems import Path, dotted

ALIASES = {
    "system_prompt": "instructions",
    "hooks.auto_memory": "auto_memory",
    "primitives.memory": "memory.private",
    "primitives.memory.shared_namespaces": "memory.pools",
    "memory.types.working_memory": "memory.conversation",
    "memory.types.working_memory.config": "memory.conversation",
    "memory.types.working_memory.config.compaction_strategy": "memory.conversation.summarize",
    "memory.types.long_term": "memory.long_term",
    "memory.types.long_term.config": "memory.long_term",
    "memory.types.long_term.config.max_memories": "memory.long_term.recall_budget",
    "resource.metadata.name": "name",
    "resource.metadata.version": "version",
}
"""Our own path for each published one. `memory.types` is a list of blocks named by their `id`;
`resource.metadata` is the `metadata` of a document with a `kind`. Other fields of a block stay."""
CONVERTERS: dict[str, Callable[[Any], object]] = {
    "version": lambda value: str(value) if type(value) in (int, float) else value,
    "memory.session_memory": lambda value: {"enabled": value} if isinstance(value, bool) else value,
}
"""For a path of our own form: converts the value in the file into ours."""
ACCEPTED_TOO = {"version": "a number", "memory.session_memory": "true or false"}
"""What converters accept, for error messages."""
CHOICES: dict[str, dict[str, object]] = {
    "memory.types.working_memory.config.compaction_strategy": {"summarize": True, "truncate": False}
}
"""For a published path: our value for each value that a file may have."""
NULLABLE = (
    "memory", "primitives.memory", "memory.types.working_memory.config", "memory.types.long_term.config",
)  # fmt: skip
"""Where null means the same as leaving the field out."""
IF_ENABLED = ("primitives.memory.shared_namespaces",)
"""Fields that are ignored if their block says `enabled: false`."""
OTHER_PROGRAMS = (
    "annotations", "description", "display_name", "labels", "max_iterations", "max_tokens", "max_turns",
    "mcp_servers", "metadata", "model", "model_config", "provider", "provider_overrides", "tags",
    "temperature", "tools", "top_p",
)  # fmt: skip
"""Fields of a published spelling that are for other programs: ignored with a warning."""
GROUPS: dict[str, tuple[str, ...] | None] = {
    "primitives": None,
    "hooks": None,
    "memory.types": (),
    "resource.metadata": (*OTHER_PROGRAMS, "namespace"),
}
"""Blocks that only group aliases, and the other fields to ignore in each; None ignores all others."""
_TARGETS: dict[Path, Path] = {
    tuple(path.split(".")): tuple(target.split(".")) for path, target in ALIASES.items()
}
Report = Callable[[Path, str], None]
"""Notes a mistake or a warning at a path of the file."""


class Translation:
    """A spec in our own form, and where in its file each part of it is."""

    def __init__(self, refuse: Report, warn: Report, root: Path) -> None:
        """`root` is the path in the file below which the spec's fields are."""
        self.tree: dict[str, Any] = {}
        self.origins: dict[Path, Path] = {(): root}
        """The path in the file for each path of the tree that was read."""
        self._refuse, self._warn = refuse, warn

    def locate(self, path: Path) -> Path:
        """The path in the file of a path of the tree, also of a field that is missing there."""
        size = next(size for size in range(len(path), -1, -1) if path[:size] in self.origins)
        return (*self.origins[path[:size]], *path[size:])

    def read(self, value: object, origin: Path, path: Path = (), ignored: Collection[str] = ()) -> None:
        """Translates the value at `path` of some spelling; warns of the fields named in `ignored`."""
        name, target = _name(path), own_path(path)
        if name == "memory.types":
            self._read_types(value, origin, path)
        elif name in GROUPS and not isinstance(value, dict):
            self._refuse(origin, f"expected a block with {', '.join(alias_names(path))}")
        elif name in GROUPS:
            self._read_fields(value, origin, path, GROUPS[name])
        elif name in CHOICES and value not in [*CHOICES[name]]:
            self._refuse(origin, f"expected one of {', '.join(CHOICES[name])}")
        elif value is not None or name not in NULLABLE:
            value = CHOICES[name][str(value)] if name in CHOICES else value
            value = CONVERTERS[_name(target)](value) if _name(target) in CONVERTERS else value
            if self._put(target, value, origin) and isinstance(value, dict):
                self._read_fields(value, origin, path, ignored)

    def _read_fields(self, block: Any, origin: Path, path: Path, ignored: Collection[str] | None) -> None:
        for key, value in block.items():
            field, place = (*path, snake(key)), (*origin, key)
            is_alias = own_path(field) != field or _name(field) in GROUPS
            if not is_alias and (ignored is None or field[-1] in ignored):
                self._warn(place, "not used here")
            elif not is_alias and _name(path) in GROUPS:
                self._refuse(place, unknown_field(key, alias_names(path)))
            elif not (_name(field) in IF_ENABLED and block.get("enabled") is False):
                self.read(value, place, field)

    def _read_types(self, blocks: object, origin: Path, path: Path) -> None:
        """Translates a list of blocks, each named by its `id`."""
        ids = alias_names(path)
        if not isinstance(blocks, list):
            return self._refuse(origin, "expected a list")
        for index, block in enumerate(blocks):
            if isinstance(block, dict) and (id := block.get("id")) in ids:
                fields = {name: value for name, value in block.items() if name != "id"}
                self.read(fields, (*origin, index), (*path, id))
            else:
                self._refuse((*origin, index, "id"), f"expected one of {', '.join(ids)}")
        return None

    def _put(self, target: Path, value: object, origin: Path) -> bool:
        """Stores a value at a path of the tree, unless it was read from another place in the file."""
        other = self.origins.setdefault(target, origin)
        if other != origin[: len(other)]:
            self._refuse(origin, f"expected this once, not also as {dotted(other)}")
            return False
        block: Any = self.tree
        for step in target[:-1]:
            block = block.setdefault(step, {}) if isinstance(block, dict) else None
        if target and isinstance(block, dict):  # otherwise the block itself is refused
            if isinstance(value, dict):
                block.setdefault(target[-1], {})
            else:
                block[target[-1]], self.origins[target] = value, origin
        return True


def ignored_fields(block: Mapping[str, Any]) -> Collection[str]:
    """The fields of an agent that are for other programs; in our own spelling, they are mistakes."""
    memory, marks = block.get("memory"), {*alias_names()} - {"memory"}
    is_typed = isinstance(memory, dict) and "types" in memory
    return OTHER_PROGRAMS if is_typed or marks & {*map(snake, block)} else ()


def own_path(path: Path) -> Path:
    """The path in our own form of a path in a published spelling."""
    for size in range(len(path), 0, -1):
        if target := _TARGETS.get(path[:size]):
            return (*target, *path[size:])
    return path


def alias_names(path: Path = ()) -> list[str]:
    """The fields that published spellings add below a path, in the order of the table."""
    size = len(path)
    names = (str(alias[size]) for alias in _TARGETS if len(alias) > size and alias[:size] == path)
    return [name for name in dict.fromkeys(names) if name != "resource"]


def _name(path: Path) -> str:
    """A path as the tables name it; empty where a field has a dot in its name, which is in no table."""
    return "" if any("." in str(step) for step in path) else ".".join(map(str, path))


def unknown_field(name: str, names: Iterable[str]) -> str:
    """The message for a field that is none of `names`."""
    names = [*names]
    similar = difflib.get_close_matches(snake(name), names, 1)
    hint = f" Did you mean {similar[0]!r}?" if similar else ""
    return f"unknown field.{hint} The fields here are {', '.join(names)}"


@functools.lru_cache(4096)
def snake(name: str) -> str:
    """A camelCase name in snake_case."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), name)
