"""Checks that specs fit together: unique names, rooms that stay apart, workers and sources that exist."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path as FilePath
from typing import Any, TypeAlias

from alcove.agents.rooms import OWNERS, Pattern, overlap, private_template, shared_room
from alcove.agents.specs.catalogue import GROUP, allowed_names
from alcove.agents.specs.problems import Path
from alcove.agents.specs.records import Agent, Team
from alcove.agents.specs.spec_set import LocatedSpec, SpecSet
from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace

Problem: TypeAlias = tuple[LocatedSpec[Any], Path, str]
"""A spec, a path in it, and a message."""
_FACTS_NAMESPACE = re.compile(r"[a-z][a-z0-9-]*")
_DEPTHS = {"conversation": 5, "session_memory": 5, "knowledge": 3, "facts": 4, "long_term": 5}
"""Segments of the rooms of each memory block, or of the runs that open them."""
_SCRATCH_DEPTHS = {"global": 1, "workflow": 5, "swarm": 5, "debate": 5, "session": 4, "agent": 5}


def find_problems(specs: SpecSet, max_depth: int) -> Iterator[Problem]:
    """Everything that does not fit together."""
    for specs_of_kind in (specs.agents, specs.teams, specs.knowledge):
        yield from _check_names_and_groups(specs_of_kind)
    for agent in specs.agents:
        yield from _check_memory(agent, max_depth)
        yield from _check_sources(agent, specs)
    names = {agent.spec.name for agent in specs.agents} | specs.invalid_agents
    for team in specs.teams:
        for index, worker in enumerate(team.spec.workers):
            if worker not in names:
                message = f"expected the name of an agent ({_join(sorted(names))}), not {worker!r}"
                yield team, ("workers", index), message
        yield from _check_repeated(team, ("workers",), team.spec.workers, "worker")
    yield from _check_rooms(specs, max_depth)


def find_warnings(specs: SpecSet) -> Iterator[Problem]:
    """What loads, but may surprise."""
    for agent in specs.agents:
        yield from _check_sources(agent, specs, warn=True)
    for source in specs.knowledge:
        if not FilePath(source.spec.path).exists():
            yield source, ("path",), f"{source.spec.path} does not exist, so it is empty"
    rooms = {room: (spec, path) for spec, path, room in _shared_rooms(specs) if isinstance(room, Namespace)}
    for room, (spec, path) in rooms.items():
        for length in range(1, len(room)):
            if (outer := Namespace(room[:length])) in rooms:
                yield spec, path, f"every reader of {str(outer)!r} also reads {str(room)!r}"


def _check_names_and_groups(specs: Sequence[LocatedSpec[Any]]) -> Iterator[Problem]:
    first: dict[str, LocatedSpec[Any]] = {}
    for spec in specs:
        name = spec.spec.name
        if name in OWNERS:
            yield spec, ("name",), f"expected another name: in namespaces, a user follows {name!r}"
        elif name != name.strip() or not name.isprintable() or name in (".", ".."):
            yield spec, ("name",), "expected a printable name without blanks around it, not '.' or '..'"
        if (other := first.setdefault(name, spec)) is not spec:
            conflict = f"{name!r} is taken by {other.file}: {other.locate(())}"
            yield spec, ("name",), f"expected a name of its own; {conflict}"
        for index, user in enumerate(getattr(spec.spec, "shared_with", None) or ()):
            if user == GROUP:
                yield spec, ("shared_with", index), "expected a group's name after 'group:'"


def _check_memory(agent: LocatedSpec[Agent], max_depth: int) -> Iterator[Problem]:
    memory = agent.spec.memory
    if (name := memory.facts.namespace) is not None:
        path: Path = ("memory", "facts", "namespace")
        if not _FACTS_NAMESPACE.fullmatch(name):
            yield agent, path, "expected a name like [a-z][a-z0-9-]*"
        elif name in OWNERS:
            yield agent, path, f"expected another name: in namespaces, a user follows {name!r}"
    yield from _check_repeated(agent, ("memory", "scratch"), memory.scratch, "kind")
    depths: dict[Path, int] = {
        **{(block,): depth for block, depth in _DEPTHS.items() if getattr(memory, block).enabled},
        **{("scratch", index): _SCRATCH_DEPTHS[kind] for index, kind in enumerate(memory.scratch)},
    }
    for path, depth in depths.items():
        if depth > max_depth:
            yield agent, ("memory", *path), f"expected a max_depth of at least {depth}; it is {max_depth}"


def _check_repeated(
    spec: LocatedSpec[Any], path: Path, items: Sequence[object], noun: str
) -> Iterator[Problem]:
    for index, item in enumerate(items):
        if item in items[:index]:
            yield spec, (*path, index), f"expected each {noun} once; {str(item)!r} is here twice"


def _check_sources(agent: LocatedSpec[Agent], specs: SpecSet, *, warn: bool = False) -> Iterator[Problem]:
    """Sources that do not exist: a problem if the agent's own file configures any, otherwise a warning."""
    knowledge, in_file = agent.spec.memory.knowledge, agent.file in specs.knowledge_files
    if not knowledge.enabled or in_file == warn:
        return
    names = [source.spec.name for source in specs.knowledge if warn or source.file == agent.file]
    for index, name in enumerate(knowledge.sources):
        if name not in names:
            expected = f"expected a source of this file's knowledge block ({_join(names)}), not {name!r}"
            message = f"no file configures {name!r}, so it is empty" if warn else expected
            yield agent, ("memory", "knowledge", "sources", index), message


def _check_rooms(specs: SpecSet, max_depth: int) -> Iterator[Problem]:
    """Private rooms that overlap each other, and shared rooms that overlap private ones or admit too many."""
    private = _PrivateRooms()
    for agent in specs.agents:
        name, path = agent.spec.name, ("memory", "private", "namespace")
        if not agent.spec.memory.private.enabled or name in OWNERS:
            continue
        try:
            pattern = _private_pattern(agent.spec, max_depth)
        except InvalidRequest as error:
            yield agent, path, f"expected {error.expected}"
            continue
        if (owner := private.find_overlap(pattern)) not in (None, name):
            yield agent, path, f"expected a room apart from that of {owner!r}: they are the same or nested"
        private.add(pattern, name)
    shared = [*_shared_rooms(specs)]
    teams: dict[Namespace | str, list[Team]] = defaultdict(list)
    for spec, _, room in shared:
        if isinstance(spec.spec, Team):
            teams[room].append(spec.spec)
    for spec, place, room in shared:
        if isinstance(room, str):
            yield spec, place, room
        elif len(room) > max_depth:
            yield spec, place, f"expected at most {max_depth} segments"
        elif nested := private.find_overlap(tuple(room)):
            yield spec, place, f"expected a namespace apart from the private rooms of {nested!r}"
        elif team := next((team for team in teams[room] if _admits_more(spec.spec, team)), None):
            reason = "which does not admit everybody who could read it here"
            yield spec, place, f"expected another namespace than the room of the team {team.name!r}, {reason}"


def _admits_more(spec: Agent | Team, team: Team) -> bool:
    """Whether anybody may use the spec who may not use the team."""
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


def _shared_rooms(specs: SpecSet) -> Iterator[tuple[LocatedSpec[Any], Path, Namespace | str]]:
    """Every pool and team room, or the message of what is wrong with it."""
    for agent in specs.agents:
        pools = [_shared_room(text, "agent_name", agent.spec.name) for text in agent.spec.memory.pools]
        for index, room in enumerate(pools):
            is_repeated = isinstance(room, Namespace) and room in pools[:index]
            message = f"expected each pool once; {str(room)!r} is here twice" if is_repeated else room
            yield agent, ("memory", "pools", index), message
    for team in specs.teams:
        template, name = team.spec.shared_memory_namespace, team.spec.name
        if template is not None and name not in OWNERS:
            yield team, ("shared_memory_namespace",), _shared_room(template, "team_name", name)


def _shared_room(template: str, placeholder: str, name: str) -> Namespace | str:
    try:
        return Namespace.checked(shared_room(template, placeholder, name))
    except InvalidRequest as error:
        return f"expected {error.expected}"


def _join(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


class _PrivateRooms:
    """The private rooms of agents, indexed so that a thousand agents need not be compared pairwise.

    Two rooms can only overlap if the fixed beginning of one is the beginning of the other.
    """

    def __init__(self) -> None:
        self._exact: dict[Pattern, list[tuple[Pattern, str]]] = defaultdict(list)
        self._below: dict[Pattern, list[tuple[Pattern, str]]] = defaultdict(list)

    def add(self, pattern: Pattern, agent: str) -> None:
        beginning = _fixed_beginning(pattern)
        self._exact[beginning].append((pattern, agent))
        for length in range(len(beginning)):
            self._below[beginning[:length]].append((pattern, agent))

    def find_overlap(self, pattern: Pattern) -> str | None:
        """An agent whose private rooms are, contain or lie inside this one."""
        beginning = _fixed_beginning(pattern)
        outer = (self._exact[beginning[:length]] for length in range(len(beginning) + 1))
        candidates = chain(*outer, self._below[beginning])
        return next((agent for other, agent in candidates if overlap(pattern, other)), None)


def _fixed_beginning(pattern: Pattern) -> Pattern:
    return tuple(takewhile(lambda segment: isinstance(segment, str), pattern))
