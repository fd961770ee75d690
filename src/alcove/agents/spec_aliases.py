"""Spec aliases: other programs' names and forms for the same ideas, brought into our schema.

Each error still names the path that the file has.

camelCase names, and four published forms: `primitives.memory` on an agent, a camelCase `memory` block with
`systemPrompt`, `memory.types` with ids and configs, and `apiVersion / kind / metadata / spec`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from alcove.agents.specs import Path, dotted

LISTS = ("agents", "teams", "knowledge")
KINDS = {"Agent": "agents", "Team": "teams"}
FOREIGN = frozenset(
    {"description", "display_name", "model", "model_config", "provider", "temperature", "max_tokens", "top_p",
     "tools", "mcp_servers", "tags", "labels", "annotations", "metadata", "max_iterations"}
)  # fmt: skip
"""What published specs say to other programs: left out with a warning, in the published forms only."""
TYPES: dict[str, dict[str, tuple[str, str]]] = {
    "working_memory": {"max_tokens": ("conversation", "max_tokens"),
                       "compaction_strategy": ("conversation", "summarize")},
    "long_term": {"max_memories": ("long_term", "recall_budget")},
}  # fmt: skip
"""What `memory.types` can be, and the field of ours that each of its settings means."""
STRATEGIES = {"summarize": True, "truncate": False}
Block = dict[str, Any]
_RESOURCE = ("apiVersion", "kind", "metadata", "spec")
_PRIMITIVES = ("enabled", "namespace", "shared_namespaces")


@dataclass
class Normalised:
    """One document as the schema has it, and the way back to where each part of it was written."""

    tree: Block = field(default_factory=dict)
    wrong: list[tuple[Path, str]] = field(default_factory=list)
    """What was expected where, by path in the document."""
    warnings: list[tuple[Path, str]] = field(default_factory=list)
    _moved: dict[Path, Path] = field(default_factory=dict)

    def written(self, path: Path) -> Path:
        """Where the document says what is at `path` in the tree."""
        for length in range(len(path), 0, -1):
            if (origin := self._moved.get(path[:length])) is not None:
                return (*origin, *path[length:])
        return path

    def moved(self, path: Path, origin: Path) -> None:
        """Notes that what is at `path` stands at `origin` in the document."""
        self._moved[path] = origin

    def refuse(self, path: Path, expected: str) -> None:
        """Notes that something else was expected at a path."""
        self.wrong.append((self.written(path), expected))

    def unknown(self, path: Path, known: Iterable[str]) -> None:
        """Notes that there is no such field, only the known ones."""
        self.refuse(path, f"no such field; there are {', '.join(known)}")

    def unused(self, path: Path) -> None:
        """Warns that what is at a path has no effect."""
        self.warnings.append((self.written(path), "not used here"))

    def put(self, block: Block, path: Path, steps: tuple[str, ...], value: object, origin: Path) -> None:
        """Puts what stands at `origin` where the schema has it: `steps` below the block, which is at `path`.

        Refused where the document says the same thing there, too.
        """
        for step in steps[:-1]:
            path = (*path, step)
            if block.get(step) is None:
                block[step] = {}
            if not isinstance(block[step], dict):
                return  # of the wrong type, which is found later
            block = block[step]
        path, step = (*path, steps[-1]), steps[-1]
        if step in block:
            self.refuse(origin, f"this once, not also as {dotted(self.written(path))}")
            return
        block[step] = value
        self.moved(path, self.written(origin))


def normalise(document: object) -> Normalised:
    """The document as `{agents, teams, knowledge}` in snake_case, whichever form it has."""
    out = Normalised()
    if document is None:
        return out
    if not isinstance(document, dict):
        out.wrong.append(((), f"a block with {', '.join(LISTS)}"))
    elif "kind" in document or "apiVersion" in document:
        _resource(document, out)
    elif "name" in document and not any(name in document for name in LISTS):
        name = "teams" if "workers" in document else "agents"
        out.moved((name, 0), ())
        out.tree = {name: [_snake(document, (name, 0), out)]}
    else:
        named = _snake(document, (), out)
        out.tree = {name: each for name, each in named.items() if each is not None or name not in LISTS}
    for place, agent in enumerate(_items(out.tree.get("agents"))):
        if isinstance(agent, dict):
            _agent(agent, ("agents", place), out)
    return out


def _resource(document: Block, out: Normalised) -> None:
    """`apiVersion / kind / metadata / spec`: the name and version from one, all else from the other."""
    kind, metadata, spec = document.get("kind"), document.get("metadata"), document.get("spec")
    for name in document:
        if name not in _RESOURCE:
            out.unknown((name,), _RESOURCE)
    if not isinstance(kind, str) or kind not in KINDS:
        out.refuse(("kind",), f"one of {', '.join(KINDS)}")
        return
    if not isinstance(document.get("apiVersion"), str | None):
        out.refuse(("apiVersion",), "text")
    if not isinstance(metadata, dict):
        out.refuse(("metadata",), "a block with name")
        return
    if not isinstance(spec, dict | None):
        out.refuse(("spec",), "a block of fields, or nothing")
        return
    path: Path = (KINDS[kind], 0)
    out.moved(path, ("spec",))
    item = _snake(spec or {}, path, out)
    for name, value in metadata.items():
        if name in ("name", "version"):
            out.put(item, path, (name,), value, ("metadata", name))
        elif name in FOREIGN or name == "namespace":
            out.unused(("metadata", name))
        else:
            out.unknown(("metadata", name), ("name", "version"))
    out.moved((*path, "name"), ("metadata", "name"))
    out.tree = {KINDS[kind]: [item]}


def _agent(agent: Block, path: Path, out: Normalised) -> None:
    memory = agent.get("memory")
    types = isinstance(memory, dict) and "types" in memory
    if types or "primitives" in agent or "system_prompt" in agent or out.written(path)[:1] == ("spec",):
        for name in sorted(FOREIGN & agent.keys()):
            out.unused((*path, name))
            del agent[name]
    if "system_prompt" in agent:
        out.put(agent, path, ("instructions",), agent.pop("system_prompt"), (*path, "system_prompt"))
    if isinstance(version := agent.get("version"), int | float) and not isinstance(version, bool):
        agent["version"] = str(version)
    if "primitives" in agent:
        _primitives(agent, path, out)
    memory = agent.get("memory")
    if isinstance(memory, dict):
        if isinstance(on := memory.get("session_memory"), bool):
            memory["session_memory"] = {"enabled": on}
        if "types" in memory:
            _types(memory, (*path, "memory"), out)
    elif memory is None:
        agent.pop("memory", None)


def _primitives(agent: Block, path: Path, out: Normalised) -> None:
    """`primitives.memory.{enabled, namespace, shared_namespaces}`: a private room and pools."""
    primitives = agent.pop("primitives")
    here = (*path, "primitives")
    if not isinstance(primitives, dict):
        out.refuse(here, "a block with memory")
        return
    for name in primitives.keys() - {"memory"}:
        out.unused((*here, name))
    memory = primitives.get("memory")
    if memory is None:
        return
    here = (*here, "memory")
    if not isinstance(memory, dict):
        out.refuse(here, f"a block with {', '.join(_PRIMITIVES)}")
        return
    names: dict[str, tuple[str, ...]] = {
        "enabled": ("private", "enabled"),
        "namespace": ("private", "namespace"),
    }
    if memory.get("enabled") is not False:  # off is off for the pools, too
        names["shared_namespaces"] = ("pools",)
        out.put(agent, path, ("memory", "private"), {}, here)
    for name, value in memory.items():
        if name in names:
            out.put(agent, path, ("memory", *names[name]), value, (*here, name))
        elif name != "shared_namespaces":
            out.unknown((*here, name), _PRIMITIVES)


def _types(memory: Block, path: Path, out: Normalised) -> None:
    """`types: [{id, enabled, config}]`: working memory is the conversation, and long-term is itself."""
    listed = memory.pop("types")
    if not isinstance(listed, list):
        out.refuse((*path, "types"), "a list")
        return
    for place, each in enumerate(listed):
        here = (*path, "types", place)
        if not isinstance(each, dict) or not isinstance(each.get("id"), str) or each["id"] not in TYPES:
            out.refuse((*here, "id"), f"one of {', '.join(TYPES)}")
            continue
        names = TYPES[each["id"]]
        block = next(iter(names.values()))[0]
        out.put(memory, path, (block,), {}, here)
        for name in each.keys() - {"id", "enabled", "config"}:
            out.unknown((*here, name), ("id", "enabled", "config"))
        if "enabled" in each:
            out.put(memory, path, (block, "enabled"), each["enabled"], (*here, "enabled"))
        config = each.get("config")
        if not isinstance(config, dict | None):
            out.refuse((*here, "config"), f"a block with {', '.join(names)}")
            continue
        for name, value in (config or {}).items():
            origin = (*here, "config", name)
            if name not in names:
                out.unknown(origin, names)
            elif name != "compaction_strategy":
                out.put(memory, path, names[name], value, origin)
            elif isinstance(value, str) and value in STRATEGIES:
                out.put(memory, path, names[name], STRATEGIES[value], origin)
            else:
                out.refuse(origin, f"one of {', '.join(STRATEGIES)}")


def _snake(value: Any, path: Path, out: Normalised) -> Any:
    """A copy with names in snake_case."""
    if isinstance(value, list):
        return [_snake(each, (*path, place), out) for place, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    copy: Block = {}
    for name, each in value.items():
        snake = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: "_" + m[1].lower(), name)
        written = (*out.written(path), name)
        if snake in copy or (snake != name and snake in value):
            out.wrong.append((written, f"this once, not also as {snake}"))
            continue
        if snake != name:
            out.moved((*path, snake), written)
        copy[snake] = _snake(each, (*path, snake), out)
    return copy


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
