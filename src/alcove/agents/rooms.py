"""From a spec, a user and a session to rooms: the exact namespaces, and the grant that opens each.

Every name stands in a segment of its own or inside one, so no user, session or instance id reaches a
room that is not its own, whatever characters it has.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from alcove.agents import templates
from alcove.agents.specs import Agent, Kind, Team
from alcove.agents.templates import OWNERS, RESERVED
from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant

RUNS: tuple[Kind, ...] = ("workflow", "swarm", "debate")
"""Kinds of scratch room whose instance is a run, which its owner opens."""
MOST_ID = 512
"""Bytes in the id of a session or a run."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """Where to look while the private room is empty: rooms from before users had their own.

    Everything under `namespace` that `written_by` wrote into rooms that are nobody's, newest of each key.
    """

    namespace: Namespace
    written_by: str
    authorless: bool = False
    """Whether rows without an author count, too: only with authentication off."""

    @property
    def authors(self) -> tuple[str | None, ...]:
        """Whose rows count; None for those that nobody is known to have written."""
        return (self.written_by, None) if self.authorless else (self.written_by,)


@dataclass(frozen=True)
class Rooms:
    """The rooms of one agent for one user, in one session, team and set of runs."""

    agent: Agent
    user: str
    session_id: str | None = None
    team_spec: Team | None = None
    instances: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    authentication: bool = True

    @functools.cached_property
    def private(self) -> Namespace | None:
        """What the agent remembers of this user; None where the spec has no such room."""
        spec = self.agent.memory.private
        if not spec.enabled:
            return None
        template = templates.private(spec.namespace, self.agent.name, session_isolated=spec.session_isolated)
        values = {"user_id": self.user}
        if template.needs("session_id"):
            values["session_id"] = self._session()
        return Namespace.checked((*_filled(template, values), "u", self.user), "user_id")

    @property
    def fallback(self) -> Fallback | None:
        """Where older memories may lie; None where there is no private room, or one for each session."""
        private = None if self.agent.memory.private.session_isolated else self.private
        if private is None:
            return None
        return Fallback(Namespace(private[:-2]), self.user, authorless=not self.authentication)

    @functools.cached_property
    def pools(self) -> Mapping[str, Namespace]:
        """The pools of the spec by the name that tools know them by: the namespace as text."""
        return pools(self.agent)

    @functools.cached_property
    def team(self) -> Namespace | None:
        """The room of the team the agent works in now, if any."""
        return None if self.team_spec is None else team_room(self.team_spec)

    @functools.cached_property
    def facts(self) -> Namespace | None:
        """What the agent keeps about this user; agents that name the same one share it."""
        spec = self.agent.memory.facts
        if not spec.enabled:
            return None
        return Namespace.checked(("facts", spec.namespace or self.agent.name, "u", self.user), "user_id")

    @functools.cached_property
    def long_term(self) -> Mapping[str, Namespace]:
        """By scope: `all` for every agent of this user, `agent` for this one; empty where it is off."""
        if not self.agent.memory.long_term.enabled:
            return MappingProxyType({})
        root = ("user", self.user, "long-term")
        return MappingProxyType(
            {
                "all": Namespace.checked((*root, "all"), "user_id"),
                "agent": Namespace.checked((*root, "agent", self.agent.name), "user_id"),
            }
        )

    def scratch(self, kind: str) -> Namespace:
        """The scratch room of this kind, bound to its instance; an error where the call names none."""
        room = self._found.get(kind)
        if room is None:
            room = self._found[kind] = self._resolved(kind)
        return room

    @functools.cached_property
    def _found(self) -> dict[str, Namespace]:
        return {}

    def _resolved(self, kind: str) -> Namespace:
        kinds = self.agent.memory.scratch
        if kind not in kinds:
            raise InvalidRequest("namespace", f"one of {', '.join(kinds) or 'no scratch rooms'}")
        if kind == "global":
            return Namespace(("global",))
        if kind == "session":
            return Namespace.checked(("session", self._session(), "u", self.user), "session_id")
        run = self._run("workflow" if kind == "agent" else kind)
        if kind == "agent":
            own = ("agent-room", self.agent.name, "u", self.user)
            return Namespace.checked(own if run is None else (*own, run), "instances.workflow")
        if run is None:
            raise InvalidRequest(f"instances.{kind}", f"the id of this {kind}: it has a room of its own")
        return Namespace.checked((kind, run), f"instances.{kind}")

    def grant(self, room: Namespace) -> Grant:
        """What opens one of these rooms; nobody deletes in a shared one, where others may have written."""
        shared = room == self.team or room in self.pools.values()
        return Grant(room, ("read", "write")) if shared else Grant(room)

    def _session(self) -> str:
        given = self.session_id
        if type(given) is not str or not given:
            raise InvalidRequest("session_id", "the id of this session: this room has one for each")
        if given == "u":
            raise InvalidRequest("session_id", "another id: 'u' has a meaning in namespaces")
        return given

    def _run(self, kind: str) -> str | None:
        given = self.instances.get(kind)
        if given is not None and (type(given) is not str or not given):
            raise InvalidRequest(f"instances.{kind}", "a non-empty string")
        return given


def resolve(
    agent: Agent,
    user: str,
    *,
    session_id: str | None = None,
    team: Team | None = None,
    instances: Mapping[str, str] | None = None,
    authentication: bool = True,
) -> Rooms:
    """The rooms of this call. Each is worked out when it is asked for, so a call needs only its own ids."""
    for kind in instances or ():
        if kind not in RUNS:
            raise InvalidRequest(f"instances.{kind[:60]}", f"one of {', '.join(RUNS)}")
    return Rooms(agent, user, session_id, team, MappingProxyType(dict(instances or {})), authentication)


def older(agent: Agent) -> str | None:
    """Below which prefix an agent's older rooms lie, as text that `older_room` fills in for a user."""
    spec = agent.memory.private
    if not spec.enabled or spec.session_isolated:
        return None
    template = templates.private(spec.namespace, agent.name, session_isolated=False)
    return msgspec.json.encode(template).decode()


def older_room(text: str, user: str) -> Namespace:
    """Where older memories of a user may lie: the fallback of a private room."""
    template = msgspec.json.decode(text, type=templates.Template)
    return Namespace(_filled(template, {"user_id": user}))


def isolated(agent: Agent) -> templates.Pattern | None:
    """What the private rooms of an agent look like that has one for each session, without the user."""
    spec = agent.memory.private
    if not spec.enabled:
        return None
    return templates.private(spec.namespace, agent.name, session_isolated=True).pattern


def fits(room: Namespace, pattern: templates.Pattern) -> bool:
    """Whether a user's room can be one of these."""
    return len(room) == len(pattern) + 2 and templates.overlap(room[:-2], pattern)


def pools(agent: Agent) -> Mapping[str, Namespace]:
    """An agent's pools by name; they are the same for every user."""
    return _pools(agent.memory.pools, agent.name)


def team_room(team: Team) -> Namespace | None:
    """A team's room; None for a team that shares nothing."""
    text = team.shared_memory_namespace
    return None if text is None else templates.shared(text, "team_name", team.name)


@functools.lru_cache(4096)
def _pools(texts: tuple[str, ...], agent: str) -> Mapping[str, Namespace]:
    rooms = (templates.shared(text, "agent_name", agent) for text in texts)
    return MappingProxyType({str(room): room for room in rooms})


def short(name: str) -> str:
    """A name that somebody made up, as a sentence repeats it."""
    return repr(name if len(name) <= 60 else f"{name[:60]}…")


def _filled(template: templates.Template, values: Mapping[str, str]) -> tuple[str, ...]:
    """Segments in which no id spells what says whose a room is, or another room's first segment."""
    segments = list(template.fill(values))
    for place, segment in enumerate(segments):
        names = template.segments[place][1::2]
        if names and (segment in OWNERS or (place == 0 and segment in RESERVED)):
            if "session_id" in names:
                raise InvalidRequest("session_id", f"another id: {segment!r} has a meaning in namespaces")
            segments[place] = f"%{segment}"  # the user follows once more, so two users stay two
    return tuple(segments)
