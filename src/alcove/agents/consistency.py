"""What records alone cannot say: names used once, rooms that keep apart, workers and sources that exist."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Generic, TypeVar

from alcove.agents import templates
from alcove.agents.access import GROUP, admitted
from alcove.agents.specs import Agent, Knowledge, Path, Team, Trouble
from alcove.agents.templates import OWNERS, Pattern
from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace

T = TypeVar("T", Agent, Team, Knowledge)
FACTS = re.compile(r"[a-z][a-z0-9-]*")
DEPTHS = {"facts": 4, "long_term": 5}
"""Segments of the rooms that Alcove lays out itself, or of the memberships that open them."""
SCRATCH_DEPTHS = {"global": 1, "workflow": 5, "swarm": 5, "debate": 5, "session": 4, "agent": 5}


@dataclass(frozen=True)
class Located(Generic[T]):
    """A spec and where it was written."""

    spec: T
    file: str
    place: Callable[[Path], str]
    """Turns a path inside the spec into one in the file."""

    def trouble(self, path: Path, expected: str) -> Trouble:
        """What is wrong at this path of the spec."""
        return Trouble(self.file, self.place(path), expected)

    def warning(self, path: Path, text: str) -> str:
        """What may surprise at this path of the spec."""
        return f"{self.file}: {self.place(path)}: {text}"


@dataclass
class AllSpecs:
    """What all files say: the specs that are well formed, and what is wrong with the others."""

    agents: list[Located[Agent]] = field(default_factory=list)
    teams: list[Located[Team]] = field(default_factory=list)
    knowledge: list[Located[Knowledge]] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    """Agents that are not well formed; a team may still name them."""
    configuring: set[str] = field(default_factory=set)
    """Files with a `knowledge` block."""
    troubles: list[Trouble] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def troubles(specs: AllSpecs, max_depth: int) -> Iterator[Trouble]:
    """Everything that does not fit together."""
    yield from _names(specs.agents)
    yield from _names(specs.teams)
    yield from _names(specs.knowledge)
    for agent in specs.agents:
        yield from _sharing(agent)
        yield from _agent(agent, max_depth)
        yield from _sources(agent, specs)
    known = {agent.spec.name for agent in specs.agents} | specs.broken
    for team in specs.teams:
        yield from _sharing(team)
        yield from _workers(team, known)
    yield from _rooms(specs, max_depth)


def warnings(specs: AllSpecs) -> Iterator[str]:
    """What loads and may still surprise."""
    sources = {source.spec.name for source in specs.knowledge}
    for agent in specs.agents:
        knowledge = agent.spec.memory.knowledge
        if knowledge.enabled and agent.file not in specs.configuring:
            for place, name in enumerate(knowledge.sources):
                if name not in sources:
                    path: Path = ("memory", "knowledge", "sources", place)
                    yield agent.warning(path, f"no file configures {name!r}, so it is empty")
    for source in specs.knowledge:
        if not FilePath(source.spec.path).exists():
            yield source.warning(("path",), f"{source.spec.path} does not exist, so it is empty")
    rooms = {room: (located, path) for located, path, room in _shared(specs) if isinstance(room, Namespace)}
    for room, (located, path) in rooms.items():
        for length in range(1, len(room)):
            if (outer := Namespace(room[:length])) in rooms:
                yield located.warning(path, f"who reads {str(outer)!r} also reads {str(room)!r}")


def _names(located: Sequence[Located[T]]) -> Iterator[Trouble]:
    first: dict[str, Located[T]] = {}
    for each in located:
        name = each.spec.name
        if name in OWNERS:
            yield each.trouble(("name",), f"another name: {name!r} says whose a namespace is")
        elif name != name.strip() or not name.isprintable() or name in (".", ".."):
            yield each.trouble(("name",), "a printable name without blanks around it, not '.' or '..'")
        if other := first.get(name):
            where = f"{other.file}: {other.place(())}"
            yield each.trouble(("name",), f"a name of its own; {name!r} is taken by {where}")
        first.setdefault(name, each)


def _sharing(located: Located[Agent] | Located[Team]) -> Iterator[Trouble]:
    for place, each in enumerate(located.spec.shared_with or ()):
        if each == GROUP:
            yield located.trouble(("shared_with", place), "a group's name after 'group:'")


def _agent(located: Located[Agent], max_depth: int) -> Iterator[Trouble]:
    memory = located.spec.memory
    if memory.facts.namespace is not None:
        if not FACTS.fullmatch(memory.facts.namespace):
            yield located.trouble(("memory", "facts", "namespace"), "a name like [a-z][a-z0-9-]*")
        elif memory.facts.namespace in OWNERS:
            yield located.trouble(
                ("memory", "facts", "namespace"), "another name: it says whose a namespace is"
            )
    on = {"facts": memory.facts.enabled, "long_term": memory.long_term.enabled}
    for name, depth in DEPTHS.items():
        if on[name] and depth > max_depth:
            yield located.trouble(("memory", name), f"a max_depth of at least {depth}; it is {max_depth}")
    for place, kind in enumerate(memory.scratch):
        if kind in memory.scratch[:place]:
            yield located.trouble(("memory", "scratch", place), f"each kind once; {kind!r} is here twice")
        if SCRATCH_DEPTHS[kind] > max_depth:
            least = f"a max_depth of at least {SCRATCH_DEPTHS[kind]}; it is {max_depth}"
            yield located.trouble(("memory", "scratch", place), least)


def _sources(agent: Located[Agent], specs: AllSpecs) -> Iterator[Trouble]:
    knowledge = agent.spec.memory.knowledge
    if not knowledge.enabled or agent.file not in specs.configuring:
        return
    here = [source.spec.name for source in specs.knowledge if source.file == agent.file]
    for place, name in enumerate(knowledge.sources):
        if name not in here:
            known = ", ".join(here) or "none"
            path: Path = ("memory", "knowledge", "sources", place)
            yield agent.trouble(path, f"a source of this file's knowledge block ({known}), not {name!r}")


def _workers(team: Located[Team], known: set[str]) -> Iterator[Trouble]:
    workers = team.spec.workers
    for place, name in enumerate(workers):
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            yield team.trouble(("workers", place), f"the name of an agent ({listed}), not {name!r}")
        elif name in workers[:place]:
            yield team.trouble(("workers", place), f"each worker once; {name!r} is here twice")


def _rooms(specs: AllSpecs, max_depth: int) -> Iterator[Trouble]:
    """Private rooms that meet each other, and shared rooms that meet private ones."""
    private = _Territory()
    seen: set[str] = set()
    for agent in specs.agents:
        spec = agent.spec.memory.private
        path: Path = ("memory", "private", "namespace")
        if not spec.enabled or agent.spec.name in seen | OWNERS:
            continue
        seen.add(agent.spec.name)
        found = _private(agent.spec, max_depth)
        if isinstance(found, str):
            yield agent.trouble(path, found)
            continue
        if met := private.meets(found):
            yield agent.trouble(
                path, f"a room apart from that of {met!r}: same namespace, or one in the other"
            )
        private.add(found, agent.spec.name)
    shared = [*_shared(specs)]
    teams: dict[Namespace | str, list[Team]] = defaultdict(list)
    for located, _, room in shared:
        if isinstance(located.spec, Team):
            teams[room].append(located.spec)
    for located, path, room in shared:
        if isinstance(room, str):
            yield located.trouble(path, room)
        elif len(room) > max_depth:
            yield located.trouble(path, f"at most {max_depth} segments")
        elif met := private.meets(tuple(room)):
            yield located.trouble(path, f"a namespace apart from the private rooms of {met!r}")
        elif team := next((each for each in teams[room] if _lets_others_in(located.spec, each)), None):
            who = "which does not admit all who would enter here"
            yield located.trouble(path, f"another namespace than the room of the team {team.name!r}, {who}")


def _lets_others_in(spec: Agent | Team, team: Team) -> bool:
    """Whether a spec admits anybody whom a team does not."""
    some, those = admitted(spec), admitted(team)
    return those is not None and (some is None or not some <= those)


def _private(agent: Agent, max_depth: int) -> Pattern | str:
    """The pattern of an agent's private rooms, without the user; or what was expected of it."""
    spec = agent.memory.private
    try:
        template = templates.private(spec.namespace, agent.name, session_isolated=spec.session_isolated)
        shortest = template.fill({"user_id": "x", "session_id": "x"})
        Namespace.checked((*shortest, "u", "x"))
    except InvalidRequest as error:
        return error.expected
    if spec.session_isolated and not template.needs("session_id"):
        return "a template with {session_id}, since session_isolated keeps it"
    if len(template.segments) + 2 > max_depth:
        return f"at most {max_depth - 2} segments: 'u' and the user follow"
    return template.pattern


def _shared(specs: AllSpecs) -> Iterator[tuple[Located[Agent] | Located[Team], Path, Namespace | str]]:
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
        return Namespace.checked(templates.shared(text, placeholder, name))
    except InvalidRequest as error:
        return error.expected


class _Territory:
    """Private rooms so far, so that a thousand agents need not each be compared with all others."""

    def __init__(self) -> None:
        self._fixed: dict[Pattern, str] = {}
        self._above: dict[Pattern, str] = {}
        self._open: list[tuple[Pattern, str]] = []

    def add(self, pattern: Pattern, agent: str) -> None:
        if _is_fixed(pattern):
            self._fixed[pattern] = agent
            self._above.update({pattern[:length]: agent for length in range(1, len(pattern) + 1)})
        else:
            self._open.append((pattern, agent))

    def meets(self, pattern: Pattern) -> str | None:
        """An agent whose private rooms this is, contains or lies inside."""
        against: Iterable[tuple[Pattern, str]] = self._open
        if _is_fixed(pattern):
            above = (self._fixed.get(pattern[:length]) for length in range(1, len(pattern) + 1))
            met = next((agent for agent in above if agent), self._above.get(pattern))
            if met is not None:
                return met
        else:
            against = [*self._open, *self._fixed.items()]
        return next((agent for other, agent in against if templates.overlap(pattern, other)), None)


def _is_fixed(pattern: Pattern) -> bool:
    return all(isinstance(segment, str) for segment in pattern)
