"""Templates of rooms in specs, and the namespaces and patterns that they stand for.

A template becomes segments first, and names are filled in afterwards: every name stands in a segment of its
own or inside one, so no user, session or instance id adds a segment or reaches a room that is not its own,
whatever characters it has.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from alcove.agents.specs.records import Agent, Team
from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace
from alcove.core.room_template import OWNERS, RESERVED, Pattern, RoomTemplate

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_SESSIONS = re.compile(r"([-_.]*)\{session_id\}((?:[-_.]*\{session_id\})*)([-_.]*)")
"""A session or several in a row, with the signs that glue them to other text."""


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
    return Namespace(_parse(text, {placeholder: name}).fill({}))


@functools.lru_cache(4096)
def private_template(agent: Agent) -> RoomTemplate:
    """An agent's private template; without isolation the session is taken out of it."""
    spec = agent.memory.private
    segments = spec.namespace.split(":")
    if not spec.session_isolated:
        bare = ((segment, _SESSIONS.sub(_glue, segment)) for segment in segments)
        segments = [rest for segment, rest in bare if rest or not segment]
    return _parse(":".join(segments), {"agent_name": agent.name}, later=("user_id", "session_id"))


def _glue(sessions: re.Match[str]) -> str:
    """Replaces sessions in a segment by the sign that glued them to other text on both sides, if any.

    Of several signs it is the first, or with several sessions the first after the last.
    """
    before, more, after = sessions.groups()
    between = sessions.start() > 0 and sessions.end() < len(sessions.string)
    return ((not more and before) or after)[:1] if between else ""


def _parse(text: str, values: Mapping[str, str], later: tuple[str, ...] = ()) -> RoomTemplate:
    """Fills in what is known and leaves `later` open; InvalidRequest says what is wrong."""
    names = [*values, *later]
    placeholders = ", ".join(f"{{{name}}}" for name in names) or "plain text"
    if not text:
        raise InvalidRequest("namespace", "a template with something left in it besides {session_id}")
    segments = []
    for segment in Namespace.parse(text):
        if not segment:
            raise InvalidRequest("namespace", f"segments that are not empty, in {text!r}")
        pieces = _PLACEHOLDER.split(segment)
        for piece in pieces[1::2]:
            if piece not in names:
                raise InvalidRequest("namespace", f"no {{{piece}}} here, only {placeholders}")
        if any(brace in piece for piece in pieces[0::2] for brace in "{}"):
            raise InvalidRequest("namespace", f"braces only around {placeholders}, in {text!r}")
        merged = pieces[:1]
        for name, literal in zip(pieces[1::2], pieces[2::2], strict=True):
            if name in values:
                merged[-1] += values[name] + literal
            else:
                merged += [name, literal]
        segments.append(tuple(merged))
    template = RoomTemplate(tuple(segments))
    if owner := next((segment for segment in template.pattern if segment in OWNERS), None):
        raise InvalidRequest("namespace", f"no segment {owner!r}, which says whose a room is")
    if (first := template.pattern[0]) in RESERVED:
        raise InvalidRequest("namespace", f"another first segment: {first!r} has rooms of its own")
    return template


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
