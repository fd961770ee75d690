"""Published spellings of agents: where each of their fields stands in our own form.

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
"""For a path of our own form: what makes our value of the written one."""
ACCEPTED_TOO = {"version": "a number", "memory.session_memory": "true or false"}
"""What converters accept, for error messages."""
CHOICES: dict[str, dict[str, object]] = {
    "memory.types.working_memory.config.compaction_strategy": {"summarize": True, "truncate": False}
}
"""For a published path: our value for each written one."""
NULLABLE = (
    "memory", "primitives.memory", "memory.types.working_memory.config", "memory.types.long_term.config",
)  # fmt: skip
"""Where null means the same as leaving the field out."""
IF_ENABLED = ("primitives.memory.shared_namespaces",)
"""What counts only if its block does not say `enabled: false`."""
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
"""Blocks that only group aliases, each with the other fields that are ignored in it: None for all."""
_TARGETS: dict[Path, Path] = {
    tuple(path.split(".")): tuple(target.split(".")) for path, target in ALIASES.items()
}
Report = Callable[[Path, str], None]
"""Notes a mistake or a warning at a path of the file."""


class Translation:
    """A spec in our own form, with the place in the file where each part of it is written."""

    def __init__(self, refuse: Report, warn: Report, root: Path) -> None:
        """`root`: where in the file the fields of the spec stand."""
        self.tree: dict[str, Any] = {}
        self.origins: dict[Path, Path] = {(): root}
        """Where in the file stands what is at a path of the tree."""
        self._refuse, self._warn = refuse, warn

    def origin(self, path: Path) -> Path:
        """Where in the file stands what is at a path of the tree, or would stand."""
        known = next(size for size in range(len(path), -1, -1) if path[:size] in self.origins)
        return (*self.origins[path[:known]], *path[known:])

    def read(self, value: object, origin: Path, written: Path = (), ignored: Collection[str] = ()) -> None:
        """Translates a value that stands at `written` in some spelling; `ignored` are fields to leave out."""
        name, target = _name(written), own_path(written)
        if name == "memory.types":
            return self._read_types(value, origin, written)
        if name in GROUPS and not isinstance(value, dict):
            return self._refuse(origin, f"expected a block with {', '.join(alias_names(written))}")
        if name not in GROUPS:
            if name in CHOICES and value not in [*CHOICES[name]]:
                return self._refuse(origin, f"expected one of {', '.join(CHOICES[name])}")
            value = CHOICES[name][str(value)] if name in CHOICES else value
            value = CONVERTERS[_name(target)](value) if _name(target) in CONVERTERS else value
            if (value is None and name in NULLABLE) or not self._put(target, value, origin):
                return None
        if isinstance(value, dict):
            self._read_fields(value, origin, written, GROUPS.get(name, ignored))
        return None

    def _read_fields(
        self, block: Mapping[str, Any], origin: Path, written: Path, ignored: Collection[str] | None
    ) -> None:
        for key, value in block.items():
            path, place = (*written, snake(key)), (*origin, key)
            is_alias = own_path(path) != path or _name(path) in GROUPS
            if not is_alias and (ignored is None or path[-1] in ignored):
                self._warn(place, "not used here")
            elif not is_alias and _name(written) in GROUPS:
                self._refuse(place, unknown_field(key, alias_names(written)))
            elif not (_name(path) in IF_ENABLED and block.get("enabled") is False):
                self.read(value, place, path)

    def _read_types(self, value: object, origin: Path, written: Path) -> None:
        """Translates a list of blocks that say by their `id` which aliases they are."""
        if not isinstance(value, list):
            return self._refuse(origin, "expected a list")
        ids = alias_names(written)
        for place, each in enumerate(value):
            if isinstance(each, dict) and (id := each.get("id")) in ids:
                block = {name: value for name, value in each.items() if name != "id"}
                self.read(block, (*origin, place), (*written, id))
            else:
                self._refuse((*origin, place, "id"), f"expected one of {', '.join(ids)}")
        return None

    def _put(self, target: Path, value: object, origin: Path) -> bool:
        """Stores a value at a path, unless another place in the file has it already."""
        other = self.origins.setdefault(target, origin)
        if other != origin[: len(other)]:
            self._refuse(origin, f"expected this once, not also as {dotted(other)}")
            return False
        block: Any = self.tree
        for step in target[:-1]:
            block = block.setdefault(step, {}) if isinstance(block, dict) else None
        if isinstance(value, dict) and target and isinstance(block, dict):
            block.setdefault(target[-1], {})
        elif target and isinstance(block, dict):  # else what is above is refused there
            block[target[-1]], self.origins[target] = value, origin
        return True


def ignored_fields(block: Mapping[str, Any]) -> Collection[str]:
    """The fields of an agent that are for other programs; in our own spelling, they are mistakes."""
    memory = block.get("memory")
    is_typed = isinstance(memory, dict) and "types" in memory
    marks = {*alias_names()} - {"memory"}
    return OTHER_PROGRAMS if is_typed or marks & {*map(snake, block)} else ()


def own_path(written: Path) -> Path:
    """The path in our own form of a path in a published spelling."""
    for size in range(len(written), 0, -1):
        if target := _TARGETS.get(written[:size]):
            return (*target, *written[size:])
    return written


def alias_names(path: Path = ()) -> list[str]:
    """The fields that published spellings add below a path, in the order of the table."""
    size = len(path)
    below = (str(each[size]) for each in _TARGETS if len(each) > size and each[:size] == path)
    return [name for name in dict.fromkeys(below) if name != "resource"]


def _name(path: Path) -> str:
    """A path as the tables name it; none of theirs where a field has a dot in its name."""
    return "" if any("." in str(step) for step in path) else ".".join(map(str, path))


def unknown_field(name: str, names: Iterable[str]) -> str:
    """The message for a field that is none of `names`."""
    names = [*names]
    close = difflib.get_close_matches(snake(name), names, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"unknown field.{hint} The fields here are {', '.join(names)}"


@functools.lru_cache(4096)
def snake(name: str) -> str:
    """A name in snake_case, also if it is written in camelCase."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), name)
