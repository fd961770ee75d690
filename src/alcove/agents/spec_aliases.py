"""Other programs' spellings of the same ideas, brought into ours; each error still names the file's own path.

camelCase names, and four published forms: `primitives.memory` on an agent, a camelCase `memory` block with
`systemPrompt`, `memory.types` with ids and configs, and `apiVersion / kind / metadata / spec`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from alcove.agents.spec_parsing import Path, spell

LISTS = ("agents", "teams", "knowledge")
KINDS = {"Agent": "agents", "Team": "teams"}
FOREIGN = frozenset(
    {"description", "display_name", "model", "model_config", "provider", "temperature", "max_tokens", "top_p",
     "tools", "mcp_servers", "tags", "labels", "annotations", "metadata", "max_iterations"}
)  # fmt: skip
"""What published specs say to other programs: left out with a warning, in those spellings only."""
TYPES: dict[str, dict[str, tuple[str, str]]] = {
    "working_memory": {"max_tokens": ("conversation", "max_tokens"),
                       "compaction_strategy": ("conversation", "summarize")},
    "long_term": {"max_memories": ("long_term", "recall_budget")},
}  # fmt: skip
"""What `memory.types` can be, and the field of ours that each of its settings means."""
STRATEGIES = {"summarize": True, "truncate": False}
Block = dict[str, Any]


@dataclass
class Spelled:
    """One document in our spelling, and the way back to where each part of it was written."""

    tree: Block = field(default_factory=dict)
    wrong: list[tuple[Path, str]] = field(default_factory=list)
    """What stands in the way, by path in the document."""
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


def normalise(document: object) -> Spelled:
    """The document as `{agents, teams, knowledge}` in snake_case, whichever spelling it has."""
    out = Spelled()
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


def _resource(document: Block, out: Spelled) -> None:
    """`apiVersion / kind / metadata / spec`: the name and version from one, all else from the other."""
    kind, metadata, spec = document.get("kind"), document.get("metadata"), document.get("spec")
    out.wrong += [
        ((name,), "no such field; there are apiVersion, kind, metadata, spec")
        for name in document
        if name not in ("apiVersion", "kind", "metadata", "spec")
    ]
    if not isinstance(kind, str) or kind not in KINDS:
        out.wrong.append((("kind",), f"one of {', '.join(KINDS)}"))
        return
    if not isinstance(document.get("apiVersion"), str | None):
        out.wrong.append((("apiVersion",), "text"))
    if not isinstance(metadata, dict):
        out.wrong.append((("metadata",), "a block with name"))
        return
    if not isinstance(spec, dict | None):
        out.wrong.append((("spec",), "a block of fields, or nothing"))
        return
    path: Path = (KINDS[kind], 0)
    out.moved(path, ("spec",))
    item = _snake(spec or {}, path, out)
    for name, value in metadata.items():
        if name in ("name", "version"):
            _set(item, path, (name,), value, ("metadata", name), out)
        elif name in FOREIGN or name == "namespace":
            out.warnings.append((("metadata", name), "not used here"))
        else:
            out.wrong.append((("metadata", name), "no such field; there are name, version"))
    out.moved((*path, "name"), ("metadata", "name"))
    out.tree = {KINDS[kind]: [item]}


def _agent(agent: Block, path: Path, out: Spelled) -> None:
    memory = agent.get("memory")
    types = isinstance(memory, dict) and "types" in memory
    if types or "primitives" in agent or "system_prompt" in agent or out.written(path)[:1] == ("spec",):
        for name in sorted(FOREIGN & agent.keys()):
            out.warnings.append((out.written((*path, name)), "not used here"))
            del agent[name]
    if "system_prompt" in agent:
        _move(agent, path, ("system_prompt",), ("instructions",), out)
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


def _primitives(agent: Block, path: Path, out: Spelled) -> None:
    """`primitives.memory.{enabled, namespace, shared_namespaces}`: a private room and pools."""
    primitives = agent.pop("primitives")
    here = (*path, "primitives")
    if not isinstance(primitives, dict):
        out.wrong.append((out.written(here), "a block with memory"))
        return
    for name in primitives.keys() - {"memory"}:
        out.warnings.append((out.written((*here, name)), "not used here"))
    memory = primitives.get("memory")
    if memory is None:
        return
    here = (*here, "memory")
    if not isinstance(memory, dict):
        out.wrong.append((out.written(here), "a block with enabled, namespace, shared_namespaces"))
        return
    names: dict[str, tuple[str, ...]] = {
        "enabled": ("private", "enabled"),
        "namespace": ("private", "namespace"),
    }
    if memory.get("enabled") is not False:  # off is off for the pools, too
        names["shared_namespaces"] = ("pools",)
        _set(agent, path, ("memory", "private"), {}, out.written(here), out)
    for name, value in memory.items():
        if name in names:
            _set(agent, path, ("memory", *names[name]), value, out.written((*here, name)), out)
        elif name != "shared_namespaces":
            known = "enabled, namespace, shared_namespaces"
            out.wrong.append((out.written((*here, name)), f"no such field; there are {known}"))


def _types(memory: Block, path: Path, out: Spelled) -> None:
    """`types: [{id, enabled, config}]`: working memory is the conversation, and long-term is itself."""
    listed = memory.pop("types")
    if not isinstance(listed, list):
        out.wrong.append((out.written((*path, "types")), "a list"))
        return
    for place, each in enumerate(listed):
        here = (*path, "types", place)
        if not isinstance(each, dict) or not isinstance(each.get("id"), str) or each["id"] not in TYPES:
            out.wrong.append((out.written((*here, "id")), f"one of {', '.join(TYPES)}"))
            continue
        names = TYPES[each["id"]]
        block = next(iter(names.values()))[0]
        _set(memory, path, (block,), {}, out.written(here), out)
        for name in each.keys() - {"id", "enabled", "config"}:
            out.wrong.append((out.written((*here, name)), "no such field; there are id, enabled, config"))
        if "enabled" in each:
            _set(memory, path, (block, "enabled"), each["enabled"], out.written((*here, "enabled")), out)
        config = each.get("config")
        if not isinstance(config, dict | None):
            out.wrong.append((out.written((*here, "config")), f"a block with {', '.join(names)}"))
            continue
        for name, value in (config or {}).items():
            written = out.written((*here, "config", name))
            if name not in names:
                out.wrong.append((written, f"no such field; there are {', '.join(names)}"))
            elif name != "compaction_strategy":
                _set(memory, path, names[name], value, written, out)
            elif isinstance(value, str) and value in STRATEGIES:
                _set(memory, path, names[name], STRATEGIES[value], written, out)
            else:
                out.wrong.append((written, f"one of {', '.join(STRATEGIES)}"))


def _move(block: Block, path: Path, old: tuple[str, ...], new: tuple[str, ...], out: Spelled) -> None:
    _set(block, path, new, block.pop(old[0]), out.written((*path, *old)), out)


def _set(
    block: Block, path: Path, steps: tuple[str, ...], value: object, written: Path, out: Spelled
) -> None:
    """Puts a value where our spelling has it, unless the document says the same thing in ours, too."""
    for step in steps[:-1]:
        path = (*path, step)
        if block.get(step) is None:
            block[step] = {}
        if not isinstance(block[step], dict):
            return  # of the wrong type, which is found later
        block = block[step]
    path, step = (*path, steps[-1]), steps[-1]
    if step in block:
        out.wrong.append((written, f"this once, not also as {spell(out.written(path))}"))
        return
    block[step] = value
    out.moved(path, written)


def _snake(value: Any, path: Path, out: Spelled) -> Any:
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
