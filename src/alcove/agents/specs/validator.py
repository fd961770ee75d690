"""Checks specs: each field, and that all specs fit together. An error names file, path and expectation.

Together means: names are unique, rooms stay apart, and the workers and sources that a spec names exist.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import inspect, structs

from alcove.agents.specs.reader import (
    ACCEPTED_TOO,
    Draft,
    FieldPath,
    SpecFile,
    SpecProblem,
    alias_names,
    unknown_field,
)
from alcove.agents.specs.records import (
    GROUP,
    KINDS,
    Agent,
    AgentMemory,
    Conversation,
    Knowledge,
    KnowledgeUse,
    Team,
    allowed_names,
)
from alcove.agents.specs.templates import overlap, private_template, shared_room
from alcove.core.decoding import convert
from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace
from alcove.core.room_template import OWNERS, Pattern

Problem: TypeAlias = tuple[Draft, FieldPath, str]
"""A spec, a path in it, and a message."""
_PRIVATE_NAMESPACE = ("memory", "private", "namespace")
_FACTS_NAMESPACE = re.compile(r"[a-z][a-z0-9-]*")
_DEPTHS = {"conversation": 5, "session_memory": 5, "knowledge": 3, "facts": 4, "long_term": 5}
"""Segments of the rooms of each memory block, or of the runs that open them."""
_SCRATCH_DEPTHS = {"global": 1, "workflow": 5, "swarm": 5, "debate": 5, "session": 4, "agent": 5}


class SpecSet:
    """The specs of some files by their drafts, and every mistake in the files."""

    def __init__(self, files: Sequence[SpecFile]) -> None:
        """Checks the fields of each spec; one with a mistake is left out."""
        self.agents: dict[Draft, Agent] = {}
        self.teams: dict[Draft, Team] = {}
        self.knowledge: dict[Draft, Knowledge] = {}
        self.knowledge_files = {file.file for file in files if file.has_knowledge}
        """Files with a `knowledge` block."""
        self.agent_names: set[str] = set()
        """The names of all agents; a team may also name one that has a mistake."""
        self.problems: list[SpecProblem] = []
        for file in files:
            self.problems += file.problems
            for draft in file.drafts:
                self._add(draft)
        self.warnings = sorted(
            warning for file in files for draft in file.drafts for warning in draft.warnings
        )

    def _add(self, draft: Draft) -> None:
        tree, kind = draft.tree, KINDS[draft.kind]
        mistakes = [draft.problem(*mistake) for mistake in find_mistakes(tree, inspect.type_info(kind))]
        if kind is Agent and isinstance(tree, dict) and isinstance(name := tree.get("name"), str):
            self.agent_names.add(name)
        if problems := [*draft.problems, *mistakes]:
            self.problems += problems
            return
        spec = convert(tree, kind)
        if isinstance(spec, Knowledge):
            spec = structs.replace(spec, path=str((draft.file.parent / spec.path).absolute()))
        elif isinstance(spec, Agent) and spec.auto_memory and "conversation" not in tree.get("memory", {}):
            # auto_memory stores turns, and the conversation block loads them.
            spec = structs.replace(spec, memory=structs.replace(spec.memory, conversation=Conversation()))
        getattr(self, draft.kind)[draft] = spec

    def check_together(self, max_depth: int) -> None:
        """Adds the mistakes and warnings of specs that do not fit together."""
        for draft, path, message in _find_problems(self, max_depth):
            self.problems.append(draft.problem(path, message))
        if not self.problems:
            for draft, path, message in _find_warnings(self):
                self.warnings.append(str(draft.problem(path, message)))


# The fields of one spec


def find_mistakes(value: Any, kind: inspect.Type, path: FieldPath = ()) -> Iterator[tuple[FieldPath, str]]:
    """The places in a value that do not fit a type, each with a message; a decoder reports only the first."""
    options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    record = next((option for option in options if isinstance(option, inspect.StructType)), None)
    items = next((option for option in options if isinstance(option, inspect.VarTupleType)), None)
    if record and isinstance(value, dict):
        fields = {field.name: field for field in record.fields}
        aliases = alias_names(path) if record.cls in (Agent, AgentMemory) else []
        for name in value:
            if name not in fields:
                yield (*path, name), unknown_field(name, dict.fromkeys((*fields, *aliases)))
        for name, field in fields.items():
            if name in value:
                yield from find_mistakes(value[name], field.type, (*path, name))
            elif field.required:
                yield (*path, name), f"expected {_check_scalar(None, field.type)[1]}; it is required"
    elif items and isinstance(value, list):
        for index, each in enumerate(value):
            yield from find_mistakes(each, items.item_type, (*path, index))
        if len(value) < (items.min_length or 0):
            yield path, "expected a list that is not empty"
    else:
        checks = [_check_scalar(value, option) for option in options]
        expected = [*(text for _, text in checks), *filter(None, (ACCEPTED_TOO.get(path),))]
        if not any(fits for fits, _ in checks):
            yield path, f"expected {' or '.join(expected)}"


def _check_scalar(value: Any, kind: inspect.Type) -> tuple[bool, str]:
    """Whether a value that is no block or list fits a type, and what the type takes, in words."""
    match kind:
        case inspect.StructType(fields=fields):
            return False, f"a block with {', '.join(field.name for field in fields)}"
        case inspect.VarTupleType():
            return False, "a list"
        case inspect.LiteralType(values=names):
            return value in names, f"one of {', '.join(map(str, names))}"
        case inspect.BoolType():
            return isinstance(value, bool), "true or false"
        case inspect.IntType(ge=int(low), le=int(high)):
            return type(value) is int and low <= value <= high, f"a whole number from {low} to {high}"
        case inspect.FloatType(ge=low, le=high) if low is not None and high is not None:
            return type(value) in (int, float) and low <= value <= high, f"a number from {low} to {high}"
        case inspect.StrType(max_length=int(limit)):
            fits = isinstance(value, str) and 1 <= len(value) <= limit
            return fits, f"text of 1 to {limit} characters"
        case inspect.StrType(min_length=limit):
            return isinstance(value, str) and len(value) >= (limit or 0), "text"
    return value is None, "nothing"


# All specs together


def _find_problems(specs: SpecSet, max_depth: int) -> Iterator[Problem]:
    for specs_of_kind in (specs.agents, specs.teams, specs.knowledge):
        yield from _check_names_and_groups(specs_of_kind)
    for draft, agent in specs.agents.items():
        yield from _check_memory(draft, agent.memory, max_depth)
        yield from _check_sources(draft, agent.memory.knowledge, specs)
    for draft, team in specs.teams.items():
        for index, worker in enumerate(team.workers):
            if worker not in specs.agent_names:
                names = _join(sorted(specs.agent_names))
                yield draft, ("workers", index), f"expected the name of an agent ({names}), not {worker!r}"
        yield from _check_repeated(draft, ("workers",), team.workers, "worker")
    yield from _check_rooms(specs, max_depth)


def _find_warnings(specs: SpecSet) -> Iterator[Problem]:
    """What loads, but may surprise."""
    for draft, agent in specs.agents.items():
        yield from _check_sources(draft, agent.memory.knowledge, specs, warn=True)
    for draft, source in specs.knowledge.items():
        if not Path(source.path).exists():
            yield draft, ("path",), f"{source.path} does not exist, so it is empty"
    rooms = {room: (draft, path) for draft, _, path, room in _shared_rooms(specs)}
    for room, (draft, path) in rooms.items():
        for length in range(1, len(room)):
            if (outer := Namespace(room[:length])) in rooms:
                yield draft, path, f"every reader of {str(outer)!r} also reads {str(room)!r}"


def _check_names_and_groups(specs: Mapping[Draft, Agent | Team | Knowledge]) -> Iterator[Problem]:
    first: dict[str, Draft] = {}
    for draft, spec in specs.items():
        name = spec.name
        if name in OWNERS:
            yield draft, ("name",), f"expected another name: in namespaces, a user follows {name!r}"
        elif name != name.strip() or not name.isprintable() or name in (".", ".."):
            yield draft, ("name",), "expected a printable name without blanks around it, not '.' or '..'"
        if (other := first.setdefault(name, draft)) is not draft:
            place = f"{other.file}: {other.locate(())}"
            yield draft, ("name",), f"expected a name of its own; {name!r} is taken by {place}"
        for index, user in enumerate(getattr(spec, "shared_with", None) or ()):
            if user == GROUP:
                yield draft, ("shared_with", index), "expected a group's name after 'group:'"


def _check_memory(draft: Draft, memory: AgentMemory, max_depth: int) -> Iterator[Problem]:
    if (name := memory.facts.namespace) is not None:
        path = ("memory", "facts", "namespace")
        if not _FACTS_NAMESPACE.fullmatch(name):
            yield draft, path, "expected a name like [a-z][a-z0-9-]*"
        elif name in OWNERS:
            yield draft, path, f"expected another name: in namespaces, a user follows {name!r}"
    yield from _check_repeated(draft, ("memory", "scratch"), memory.scratch, "kind")
    depths: dict[FieldPath, int] = {
        **{(block,): depth for block, depth in _DEPTHS.items() if getattr(memory, block).enabled},
        **{("scratch", index): _SCRATCH_DEPTHS[kind] for index, kind in enumerate(memory.scratch)},
    }
    for block, depth in depths.items():
        if depth > max_depth:
            yield draft, ("memory", *block), f"expected a max_depth of at least {depth}; it is {max_depth}"


def _check_repeated(draft: Draft, path: FieldPath, items: Sequence[object], noun: str) -> Iterator[Problem]:
    for index, item in enumerate(items):
        if item in items[:index]:
            yield draft, (*path, index), f"expected each {noun} once; {str(item)!r} is here twice"


def _check_sources(
    draft: Draft, knowledge: KnowledgeUse, specs: SpecSet, *, warn: bool = False
) -> Iterator[Problem]:
    """Sources that do not exist: a problem if the agent's own file configures any, otherwise a warning."""
    if not knowledge.enabled or (draft.file in specs.knowledge_files) == warn:
        return
    names = [source.name for other, source in specs.knowledge.items() if warn or other.file == draft.file]
    for index, name in enumerate(knowledge.sources):
        if name not in names:
            expected = f"expected a source of this file's knowledge block ({_join(names)}), not {name!r}"
            message = f"no file configures {name!r}, so it is empty" if warn else expected
            yield draft, ("memory", "knowledge", "sources", index), message


def _check_rooms(specs: SpecSet, max_depth: int) -> Iterator[Problem]:
    """Private rooms that overlap each other, and shared rooms that overlap private ones or admit too many."""
    private = _PrivateRooms()
    for draft, agent in specs.agents.items():
        if not agent.memory.private.enabled or agent.name in OWNERS:
            continue
        try:
            pattern = _private_pattern(agent, max_depth)
        except InvalidRequest as error:
            yield draft, _PRIVATE_NAMESPACE, f"expected {error.expected}"
            continue
        if (owner := private.find_overlap(pattern)) not in (None, agent.name):
            message = f"expected a room apart from that of {owner!r}: they are the same or nested"
            yield draft, _PRIVATE_NAMESPACE, message
        private.add(pattern, agent.name)
    pools = set[tuple[Draft, Namespace | str]]()
    teams: dict[Namespace | str, list[Team]] = defaultdict(list)
    shared = [*_shared_rooms(specs)]
    for _, spec, _, room in shared:
        if isinstance(spec, Team):
            teams[room].append(spec)
    for draft, spec, path, room in shared:
        if isinstance(room, str):
            yield draft, path, room
        elif (draft, room) in pools:
            yield draft, path, f"expected each pool once; {str(room)!r} is here twice"
        elif len(room) > max_depth:
            yield draft, path, f"expected at most {max_depth} segments"
        elif nested := private.find_overlap(tuple(room)):
            yield draft, path, f"expected a namespace apart from the private rooms of {nested!r}"
        elif team := next((team for team in teams[room] if _admits_more(spec, team)), None):
            reason = "which does not admit everybody who could read it here"
            yield draft, path, f"expected another namespace than the room of the team {team.name!r}, {reason}"
        pools.add((draft, room))


def _admits_more(spec: Agent | Team, team: Team) -> bool:
    """Whether the spec has users whom the team does not admit."""
    names, team_names = allowed_names(spec), allowed_names(team)
    return team_names is not None and (names is None or not names <= team_names)


def _private_pattern(agent: Agent, max_depth: int) -> Pattern:
    """The pattern of an agent's private rooms, without the user."""
    template = private_template(agent)
    shortest = template.fill({"user_id": "x", "session_id": "x"})
    Namespace.checked((*shortest, "u", "x"))
    if agent.memory.private.session_isolated and not template.needs("session_id"):
        raise InvalidRequest("namespace", "a template with {session_id}, since session_isolated keeps it")
    if len(template.segments) + 2 > max_depth:
        raise InvalidRequest("namespace", f"at most {max_depth - 2} segments: 'u' and the user follow")
    return template.pattern


def _shared_rooms(specs: SpecSet) -> Iterator[tuple[Draft, Agent | Team, FieldPath, Namespace | str]]:
    """Every pool and team room, or an error message in its place."""
    templates: list[tuple[Draft, Agent | Team, FieldPath, str, str]] = []
    for draft, agent in specs.agents.items():
        for index, text in enumerate(agent.memory.pools):
            templates.append((draft, agent, ("memory", "pools", index), text, "agent_name"))
    for draft, team in specs.teams.items():
        if team.shared_memory_namespace is not None and team.name not in OWNERS:
            template = team.shared_memory_namespace
            templates.append((draft, team, ("shared_memory_namespace",), template, "team_name"))
    for draft, spec, path, text, placeholder in templates:
        try:
            yield draft, spec, path, Namespace.checked(shared_room(text, placeholder, spec.name))
        except InvalidRequest as error:
            yield draft, spec, path, f"expected {error.expected}"


def _join(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


class _PrivateRooms:
    """The private rooms of agents, indexed so that a thousand agents need not be compared pairwise.

    Two rooms can only overlap if the fixed beginning of one is the beginning of the other.
    """

    def __init__(self) -> None:
        self._rooms: dict[tuple[Pattern, bool], list[tuple[Pattern, str]]] = defaultdict(list)
        """Rooms by each beginning of their fixed part, and whether that is all of it."""

    def add(self, pattern: Pattern, agent: str) -> None:
        fixed = _fixed_beginning(pattern)
        for length in range(len(fixed) + 1):
            self._rooms[fixed[:length], length == len(fixed)].append((pattern, agent))

    def find_overlap(self, pattern: Pattern) -> str | None:
        """An agent whose private rooms are, contain or lie inside this one."""
        fixed = _fixed_beginning(pattern)
        outer = (self._rooms[fixed[:length], True] for length in range(len(fixed) + 1))
        candidates = chain(*outer, self._rooms[fixed, False])
        return next((agent for other, agent in candidates if overlap(pattern, other)), None)


def _fixed_beginning(pattern: Pattern) -> Pattern:
    return tuple(takewhile(lambda segment: isinstance(segment, str), pattern))
