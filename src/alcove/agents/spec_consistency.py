"""What records alone cannot say: names used once, rooms that keep apart, workers and sources that exist."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path as FilePath
from typing import Any, TypeAlias

from alcove.agents.rooms import OWNERS, Pattern, overlap, private_template, shared_room
from alcove.agents.spec_reading import AllSpecs, Located
from alcove.agents.specs import GROUP, Agent, Path, Team, admitted
from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace

Finding: TypeAlias = tuple[Located[Any], Path, str]
"""A spec, a path in it, and what was expected there or may surprise."""
FACTS = re.compile(r"[a-z][a-z0-9-]*")
DEPTHS = {"conversation": 5, "session_memory": 5, "knowledge": 3, "facts": 4, "long_term": 5}
"""Segments of the rooms that Alcove lays out itself, or of the memberships that open them."""
SCRATCH_DEPTHS = {"global": 1, "workflow": 5, "swarm": 5, "debate": 5, "session": 4, "agent": 5}


def troubles(specs: AllSpecs, max_depth: int) -> Iterator[Finding]:
    """Everything that does not fit together."""
    for located in (specs.agents, specs.teams, specs.knowledge):
        yield from _names(located)
    for agent in specs.agents:
        yield from _sharing(agent)
        yield from _agent(agent, max_depth)
        yield from _sources(agent, specs, configured=True)
    known = {agent.spec.name for agent in specs.agents} | specs.broken
    for team in specs.teams:
        yield from _sharing(team)
        yield from _workers(team, known)
    yield from _rooms(specs, max_depth)


def warnings(specs: AllSpecs) -> Iterator[Finding]:
    """What loads and may still surprise."""
    for agent in specs.agents:
        yield from _sources(agent, specs, configured=False)
    for source in specs.knowledge:
        if not FilePath(source.spec.path).exists():
            yield source, ("path",), f"{source.spec.path} does not exist, so it is empty"
    rooms = {room: (located, path) for located, path, room in _shared(specs) if isinstance(room, Namespace)}
    for room, (located, path) in rooms.items():
        for length in range(1, len(room)):
            if (outer := Namespace(room[:length])) in rooms:
                yield located, path, f"who reads {str(outer)!r} also reads {str(room)!r}"


def _names(every: Sequence[Located[Any]]) -> Iterator[Finding]:
    first: dict[str, Located[Any]] = {}
    for each in every:
        name = each.spec.name
        if name in OWNERS:
            yield each, ("name",), f"another name: {name!r} says whose a namespace is"
        elif name != name.strip() or not name.isprintable() or name in (".", ".."):
            yield each, ("name",), "a printable name without blanks around it, not '.' or '..'"
        if (other := first.setdefault(name, each)) is not each:
            where = f"{other.file}: {other.place(())}"
            yield each, ("name",), f"a name of its own; {name!r} is taken by {where}"


def _sharing(located: Located[Any]) -> Iterator[Finding]:
    for place, each in enumerate(located.spec.shared_with or ()):
        if each == GROUP:
            yield located, ("shared_with", place), "a group's name after 'group:'"


def _agent(agent: Located[Agent], max_depth: int) -> Iterator[Finding]:
    memory = agent.spec.memory
    if (name := memory.facts.namespace) is not None:
        path: Path = ("memory", "facts", "namespace")
        if not FACTS.fullmatch(name):
            yield agent, path, "a name like [a-z][a-z0-9-]*"
        elif name in OWNERS:
            yield agent, path, "another name: it says whose a namespace is"
    on = [name for name in DEPTHS if getattr(memory, name).enabled]
    depths: dict[Path, int] = {("memory", name): DEPTHS[name] for name in on}
    for place, kind in enumerate(memory.scratch):
        path = ("memory", "scratch", place)
        depths[path] = SCRATCH_DEPTHS[kind]
        if kind in memory.scratch[:place]:
            yield agent, path, f"each kind once; {kind!r} is here twice"
    for path, depth in depths.items():
        if depth > max_depth:
            yield agent, path, f"a max_depth of at least {depth}; it is {max_depth}"


def _sources(agent: Located[Agent], specs: AllSpecs, *, configured: bool) -> Iterator[Finding]:
    """Sources that there are not: in the file itself where it configures any, otherwise in any file."""
    knowledge = agent.spec.memory.knowledge
    if not knowledge.enabled or configured != (agent.file in specs.configuring):
        return
    known = [each.spec.name for each in specs.knowledge if not configured or each.file == agent.file]
    for place, name in enumerate(knowledge.sources):
        path: Path = ("memory", "knowledge", "sources", place)
        if name not in known and configured:
            listed = ", ".join(known) or "none"
            yield agent, path, f"a source of this file's knowledge block ({listed}), not {name!r}"
        elif name not in known:
            yield agent, path, f"no file configures {name!r}, so it is empty"


def _workers(team: Located[Team], known: set[str]) -> Iterator[Finding]:
    workers = team.spec.workers
    for place, name in enumerate(workers):
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            yield team, ("workers", place), f"the name of an agent ({listed}), not {name!r}"
        elif name in workers[:place]:
            yield team, ("workers", place), f"each worker once; {name!r} is here twice"


def _rooms(specs: AllSpecs, max_depth: int) -> Iterator[Finding]:
    """Private rooms that meet each other, and shared rooms that meet private ones."""
    private = _Territory()
    for agent in specs.agents:
        name, path = agent.spec.name, ("memory", "private", "namespace")
        if not agent.spec.memory.private.enabled or name in OWNERS:
            continue
        try:
            found = _private(agent.spec, max_depth)
        except InvalidRequest as error:
            yield agent, path, error.expected
            continue
        if (met := private.meets(found)) not in (None, name):
            yield agent, path, f"a room apart from that of {met!r}: same namespace, or one in the other"
        private.add(found, name)
    shared = [*_shared(specs)]
    teams: dict[Namespace | str, list[Team]] = defaultdict(list)
    for located, _, room in shared:
        if isinstance(located.spec, Team):
            teams[room].append(located.spec)
    for located, place, room in shared:
        if isinstance(room, str):
            yield located, place, room
        elif len(room) > max_depth:
            yield located, place, f"at most {max_depth} segments"
        elif met := private.meets(tuple(room)):
            yield located, place, f"a namespace apart from the private rooms of {met!r}"
        elif team := next((each for each in teams[room] if _lets_others_in(located.spec, each)), None):
            who = "which does not admit all who would enter here"
            yield located, place, f"another namespace than the room of the team {team.name!r}, {who}"


def _lets_others_in(spec: Agent | Team, team: Team) -> bool:
    """Whether a spec admits anybody whom a team does not."""
    some, those = admitted(spec), admitted(team)
    return those is not None and (some is None or not some <= those)


def _private(agent: Agent, max_depth: int) -> Pattern:
    """The pattern of an agent's private rooms, without the user."""
    spec = agent.memory.private
    template = private_template(agent)
    shortest = template.fill({"user_id": "x", "session_id": "x"})
    Namespace.checked((*shortest, "u", "x"))
    if spec.session_isolated and not template.needs("session_id"):
        raise InvalidRequest("namespace", "a template with {session_id}, since session_isolated keeps it")
    if len(template.segments) + 2 > max_depth:
        raise InvalidRequest("namespace", f"at most {max_depth - 2} segments: 'u' and the user follow")
    return template.pattern


def _shared(specs: AllSpecs) -> Iterator[tuple[Located[Any], Path, Namespace | str]]:
    """Every pool and team room, or what was expected of it."""
    for agent in specs.agents:
        earlier: list[Namespace | str] = []
        for place, text in enumerate(agent.spec.memory.pools):
            room = _namespace(text, "agent_name", agent.spec.name)
            if isinstance(room, Namespace) and room in earlier:
                room = f"each pool once; {str(room)!r} is here twice"
            earlier.append(room)
            yield agent, ("memory", "pools", place), room
    for team in specs.teams:
        declared = team.spec.shared_memory_namespace
        if declared is not None and team.spec.name not in OWNERS:
            yield team, ("shared_memory_namespace",), _namespace(declared, "team_name", team.spec.name)


def _namespace(text: str, placeholder: str, name: str) -> Namespace | str:
    try:
        return Namespace.checked(shared_room(text, placeholder, name))
    except InvalidRequest as error:
        return error.expected


class _Territory:
    """Private rooms so far, so that a thousand agents need not each be compared with all others.

    Two rooms can only meet if what is fixed at the beginning of one is the beginning of the other.
    """

    def __init__(self) -> None:
        self._at: dict[Pattern, list[tuple[Pattern, str]]] = defaultdict(list)
        self._below: dict[Pattern, list[tuple[Pattern, str]]] = defaultdict(list)

    def add(self, pattern: Pattern, agent: str) -> None:
        fixed = _fixed(pattern)
        self._at[fixed].append((pattern, agent))
        for length in range(len(fixed)):
            self._below[fixed[:length]].append((pattern, agent))

    def meets(self, pattern: Pattern) -> str | None:
        """An agent whose private rooms this is, contains or lies inside."""
        fixed = _fixed(pattern)
        near = [self._at[fixed[:length]] for length in range(len(fixed) + 1)] + [self._below[fixed]]
        return next((agent for other, agent in chain(*near) if overlap(pattern, other)), None)


def _fixed(pattern: Pattern) -> Pattern:
    return tuple(takewhile(lambda segment: isinstance(segment, str), pattern))
