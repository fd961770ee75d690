"""From a spec, a user and a session to rooms: the exact namespaces, and the grant that opens each.

A template becomes segments first, and names are filled in afterwards: every name stands in a segment of its
own or inside one, so no user, session or instance id adds a segment or reaches a room that is not its own,
whatever characters it has.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from alcove.agents.specs.catalogue import Catalogue, may_use
from alcove.agents.specs.records import Agent, ScratchKind, Team
from alcove.core import room_template, validation
from alcove.core.errors import InvalidRequest
from alcove.core.namespace import KNOWLEDGE_ROOT, Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.room_template import OWNERS, RESERVED, Pattern, RoomTemplate

KNOWLEDGE = Namespace((KNOWLEDGE_ROOT,))
"""Where documents of sources are: what somebody put there is theirs, although the rooms are nobody's."""
CHILD = "private, older"
"""The kind of room that a child namespace is listed as, which the fallback of a private namespace reads."""
ONE_NAMESPACE = ("private", CHILD, "facts", "long-term")
"""Kinds of room that are one namespace each, without what lies below it."""
RUNS: tuple[ScratchKind, ...] = ("workflow", "swarm", "debate")
"""Kinds of scratch room whose instance is a run, which its owner opens."""
MOST_ID = 512
"""Bytes in the id of a session or a run."""
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_SESSIONS = re.compile(r"([-_.]*)\{session_id\}((?:[-_.]*\{session_id\})*)([-_.]*)")
"""A session or several in a row, with the signs that glue them to other text."""


@dataclass(frozen=True)
class Rooms:
    """The rooms of one agent for one user, in one session, team and set of runs.

    Each is worked out when it is asked for, so a call needs only its own ids.
    """

    agent: Agent
    user: str
    session_id: str | None = None
    team_spec: Team | None = None
    instances: Mapping[str, str] = field(default_factory=dict)
    authentication: bool = True

    def __post_init__(self) -> None:
        for kind in self.instances:
            if kind not in RUNS:
                raise InvalidRequest(f"instances.{kind[:60]}", f"one of {', '.join(RUNS)}")
        ids = {f"instances.{kind}": id for kind, id in self.instances.items()}
        for where, given in {"session_id": self.session_id, **ids}.items():
            if given is not None and len(validation.encode_text(given, where)) > MOST_ID:
                raise InvalidRequest(where, f"at most {MOST_ID} bytes")

    @functools.cached_property
    def private(self) -> Namespace | None:
        """What the agent remembers of this user; None where the spec has no such room."""
        if not self.agent.memory.private.enabled:
            return None
        template, values = private_template(self.agent), {"user_id": self.user}
        if template.needs("session_id"):
            values["session_id"] = self.session()
        return Namespace.checked((*template.checked(values), "u", self.user), "user_id")

    @property
    def fallback(self) -> Grant | None:
        """The grant for the child namespaces that are read while the private namespace is empty.

        It opens the user's own namespaces below the template (`agent:x:u:alice:abc123`,
        `agent:x:abc123:u:alice`), and what the user wrote in those that belong to nobody (`agent:x:abc123`).
        None where there is no private namespace, or one for each session. What nobody is known to have
        written counts only with authentication off.
        """
        private = None if self.agent.memory.private.session_isolated else self.private
        if private is None:
            return None
        authors = (self.user,) if self.authentication else (self.user, None)
        return Grant(Namespace(private[:-2]), ("read",), authors)

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
            return {}
        scopes = {"all": ("all",), "agent": ("agent", self.agent.name)}
        root = ("user", self.user, "long-term")
        return {name: Namespace.checked((*root, *scope), "user_id") for name, scope in scopes.items()}

    def scratch(self, kind: str) -> Namespace:
        """The scratch room of this kind, bound to its instance; an error where the call names none."""
        kinds = self.agent.memory.scratch
        if kind not in kinds:
            raise InvalidRequest("namespace", f"one of {', '.join(kinds) or 'no scratch rooms'}")
        if kind == "global":
            return Namespace(("global",))
        if kind == "session":
            return Namespace.checked(("session", self.session(), "u", self.user), "session_id")
        name = "workflow" if kind == "agent" else kind
        run, where = self.instances.get(name), f"instances.{name}"
        if run == "":
            raise InvalidRequest(where, "a non-empty string")
        if kind == "agent":
            own = ("agent-room", self.agent.name, "u", self.user)
            return Namespace.checked(own if run is None else (*own, run), where)
        if run is None:
            raise InvalidRequest(where, f"the id of this {kind}: it has a room of its own")
        return Namespace.checked((kind, run), where)

    @functools.cached_property
    def knowledge(self) -> Mapping[str, Namespace]:
        """The sources that the agent looks things up in, by name; empty where that is off."""
        spec = self.agent.memory.knowledge
        return {name: Namespace((*KNOWLEDGE, name)) for name in spec.sources} if spec.enabled else {}

    def grant(self, room: Namespace) -> Grant:
        """What opens one of these rooms; nobody deletes in a shared one, where others may have written."""
        if room in self.knowledge.values():
            return Grant(room, ("read",))
        shared = room == self.team or room in self.pools.values()
        return Grant(room, ("read", "write")) if shared else Grant(room)

    def session(self) -> str:
        """The id of this session; an error where the call names none."""
        if not self.session_id:
            raise InvalidRequest("session_id", "the id of this session: this room has one for each")
        if self.session_id == "u":
            raise InvalidRequest("session_id", "another id: 'u' has a meaning in namespaces")
        return self.session_id


def pools(agent: Agent) -> dict[str, Namespace]:
    """An agent's pools by name; they are the same for every user."""
    rooms = (shared_room(text, "agent_name", agent.name) for text in agent.memory.pools)
    return {str(room): room for room in rooms}


def team_room(team: Team) -> Namespace | None:
    """A team's room; None for a team that shares nothing."""
    text = team.shared_memory_namespace
    return None if text is None else shared_room(text, "team_name", team.name)


@functools.lru_cache(4096)
def shared_room(text: str, placeholder: str, name: str) -> Namespace:
    """The namespace of a pool or a team: nothing in it may depend on who calls."""
    return Namespace(_parsed(text, {placeholder: name}).fill({}))


def older(agent: Agent) -> str | None:
    """The template of an agent's child namespaces, encoded for the store; None if it has none."""
    spec = agent.memory.private
    if not spec.enabled or spec.session_isolated:
        return None
    return room_template.encode(private_template(agent))


def may_be_private(room: Namespace, agent: Agent) -> bool:
    """Whether a user's room can be one that an agent has for them in a session."""
    pattern = private_template(agent).pattern if agent.memory.private.enabled else ()
    return len(room) == len(pattern) + 2 and overlap(room[:-2], pattern)


def direct_grants(catalogue: Catalogue, principal: Principal) -> tuple[Grant, ...]:
    """What a call without an agent may read: pools and teams of the agents its caller may use."""
    usable = [agent for agent in catalogue.agents.values() if may_use(agent, principal)]
    names = {agent.name for agent in usable}
    rooms: list[Namespace | None] = [room for agent in usable for room in pools(agent).values()]
    for team in catalogue.teams.values():
        if may_use(team, principal) and not names.isdisjoint(team.workers):
            rooms.append(team_room(team))
    return tuple(Grant(room, ("read",)) for room in dict.fromkeys(rooms) if room)


# Templates


@functools.lru_cache(4096)
def private_template(agent: Agent) -> RoomTemplate:
    """An agent's private template; without isolation the session is taken out of it."""
    spec = agent.memory.private
    segments = spec.namespace.split(":")
    if not spec.session_isolated:
        bare = ((segment, _SESSIONS.sub(_glue, segment)) for segment in segments)
        segments = [left for segment, left in bare if left or not segment]
    return _parsed(":".join(segments), {"agent_name": agent.name}, later=("user_id", "session_id"))


def _glue(sessions: re.Match[str]) -> str:
    """What is left of sessions in a segment: a sign that glued them, if other text is on both sides.

    It is the first one, of several sessions the first after the last.
    """
    before, more, after = sessions.groups()
    between = sessions.start() > 0 and sessions.end() < len(sessions.string)
    return ((not more and before) or after)[:1] if between else ""


def _parsed(text: str, values: Mapping[str, str], later: tuple[str, ...] = ()) -> RoomTemplate:
    """Fills in what is known and leaves `later` open; InvalidRequest says what is wrong."""
    names = [*values, *later]
    if not text:
        raise InvalidRequest("namespace", "a template with something left in it besides {session_id}")
    segments = []
    for segment in Namespace.parse(text):
        if not segment:
            raise InvalidRequest("namespace", f"segments that are not empty, in {text!r}")
        pieces = _PLACEHOLDER.split(segment)
        for piece in pieces[1::2]:
            if piece not in names:
                raise InvalidRequest("namespace", f"no {{{piece}}} here, only {_listed(names)}")
        if any(brace in piece for piece in pieces[0::2] for brace in "{}"):
            raise InvalidRequest("namespace", f"braces only around {_listed(names)}, in {text!r}")
        segments.append(_merged(pieces, values))
    template = RoomTemplate(tuple(segments))
    if owner := next((segment for segment in template.pattern if segment in OWNERS), None):
        raise InvalidRequest("namespace", f"no segment {owner!r}, which says whose a room is")
    if (first := template.pattern[0]) in RESERVED:
        raise InvalidRequest("namespace", f"another first segment: {first!r} has rooms of its own")
    return template


def _merged(pieces: list[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Pieces of a segment, with what is known made part of the text around it."""
    merged = [pieces[0]]
    for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
        if name in values:
            merged[-1] += values[name] + text
        else:
            merged += [name, text]
    return tuple(merged)


def _listed(names: list[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names) or "plain text"


def overlap(one: Pattern, other: Pattern) -> bool:
    """Whether the shorter pattern can be the beginning of the longer, or equal to it."""
    return all(_may_equal(a, b) for a, b in zip(one, other, strict=False))


def _may_equal(one: tuple[str, str] | str, other: tuple[str, str] | str) -> bool:
    if isinstance(one, str):
        return one == other if isinstance(other, str) else _may_equal(other, one)
    if isinstance(other, str):
        before, after = one
        escaped = other[1:] if other[:1] == "%" and other[1:] in OWNERS | RESERVED else ""
        longer = (text for text in (other, escaped) if len(text) > len(before) + len(after))
        return any(text.startswith(before) and text.endswith(after) for text in longer)
    starts = one[0].startswith(other[0]) or other[0].startswith(one[0])
    ends = one[1].endswith(other[1]) or other[1].endswith(one[1])
    return starts and ends
