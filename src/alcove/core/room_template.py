"""Room templates: namespaces with placeholders. Agent specs declare them, and the store records some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace

Pattern: TypeAlias = tuple[tuple[str, str] | str, ...]
OWNERS = frozenset(("u", "user"))
"""Segments before the name of a namespace's owner; no template and no name may be one of them."""
RESERVED = frozenset(
    {"runs", "calls", "facts", "turns", "summary", "knowledge", "session", "agent-room", "global", "workflow",
     "swarm", "debate", "usage"}
)  # fmt: skip
"""First segments of rooms that Alcove itself defines."""


@dataclass(frozen=True, slots=True)
class RoomTemplate:
    """A parsed template; the placeholders `{user_id}` and `{session_id}` are left in it."""

    segments: tuple[tuple[str, ...], ...]
    """The pieces of each segment: text and names of placeholders in turn."""

    def fill(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Returns the segments with every placeholder replaced."""
        return tuple(
            "".join(values[piece] if odd % 2 else piece for odd, piece in enumerate(segment))
            for segment in self.segments
        )

    def checked(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The same, but no id can produce a segment that names an owner, or a reserved first segment."""
        segments = list(self.fill(values))
        for position, segment in enumerate(segments):
            names = self.segments[position][1::2]
            if names and (segment in OWNERS or (position == 0 and segment in RESERVED)):
                if "session_id" in names:
                    raise InvalidRequest("session_id", f"another id: {segment!r} is reserved in namespaces")
                segments[position] = f"%{segment}"  # the user id is appended later, so two users stay apart
        return tuple(segments)

    def needs(self, name: str) -> bool:
        """Whether the template contains this placeholder."""
        return any(name in segment[1::2] for segment in self.segments)

    @property
    def pattern(self) -> Pattern:
        """Each segment as text, or as the text before and after its placeholders."""
        return tuple(s[0] if len(s) == 1 else (s[0], s[-1]) for s in self.segments)


def encode(template: RoomTemplate) -> str:
    """Returns a template as text, for `fill_for_user`."""
    return msgspec.json.encode(template).decode()


def fill_for_user(text: str, user: str) -> Namespace:
    """Returns the namespace that an encoded template stands for, for one user."""
    return Namespace(msgspec.json.decode(text, type=RoomTemplate).checked({"user_id": user}))
