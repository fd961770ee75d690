"""Templates of namespaces: segments first, names afterwards, so that no name adds or leaves a segment."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace

Pattern: TypeAlias = tuple[tuple[str, str] | str, ...]
OWNERS = frozenset({"u", "user"})
"""Segments that say whose a namespace is; no template and no name may spell one."""
RESERVED = frozenset(
    {"runs", "calls", "facts", "turns", "summary", "knowledge", "session", "agent-room", "global", "workflow",
     "swarm", "debate"}
)  # fmt: skip
"""First segments of rooms that Alcove lays out itself."""
SESSION = "{session_id}"
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: what is fixed is filled in, `{user_id}` and `{session_id}` are left."""

    segments: tuple[tuple[str, ...], ...]
    """Each segment as its pieces: odd ones are names of placeholders."""

    def fill(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The segments with every placeholder replaced, in one pass."""
        return tuple(
            "".join(values[piece] if odd % 2 else piece for odd, piece in enumerate(segment))
            for segment in self.segments
        )

    def needs(self, name: str) -> bool:
        """Whether this placeholder is in it."""
        return any(name in segment[1::2] for segment in self.segments)

    @property
    def pattern(self) -> Pattern:
        """Each segment as text, or as what stands before and after the part known only at the call."""
        return tuple(s[0] if len(s) == 1 else (s[0], s[-1]) for s in self.segments)


@functools.lru_cache(4096)
def private(text: str, agent: str, *, session_isolated: bool) -> Template:
    """An agent's private template; without isolation the session is taken out of it."""
    text = text if session_isolated else without_session(text)
    return _parse(text, {"agent_name": agent}, later=("user_id", "session_id"))


@functools.lru_cache(4096)
def shared(text: str, placeholder: str, name: str) -> Namespace:
    """The namespace of a pool or a team: nothing in it may depend on who calls."""
    return Namespace(_parse(text, {placeholder: name}).fill({}))


def without_session(text: str) -> str:
    """The template without `{session_id}`, and without the `-`, `_` or `.` that glued it to other text."""
    if SESSION not in text:
        return text
    segments = (_removed(segment) for segment in text.split(":"))
    return ":".join(segment for segment in segments if segment is not None)


def _removed(segment: str) -> str | None:
    """One segment without its session; None where nothing else was in it."""
    first, *others = segment.split(SESSION)
    kept = first
    for other in others:
        left, right = kept.rstrip("-_."), other.lstrip("-_.")
        glue = (kept[len(left) :] or other[: len(other) - len(right)])[:1]
        kept = f"{left}{glue}{right}" if left and right else left or right
    return kept if kept or not others else None


def _parse(text: str, values: Mapping[str, str], later: tuple[str, ...] = ()) -> Template:
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
    for parts in segments:
        if len(parts) == 1 and parts[0] in OWNERS:
            raise InvalidRequest("namespace", f"no segment {parts[0]!r}, which says whose a room is")
    if segments[0][0] in RESERVED and len(segments[0]) == 1:
        raise InvalidRequest("namespace", f"another first segment: {segments[0][0]!r} has rooms of its own")
    return Template(tuple(segments))


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
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    if isinstance(one, str):
        one, other = other, one
    assert isinstance(one, tuple)
    if isinstance(other, str):
        escaped = other[1:] if other[:1] == "%" and other[1:] in OWNERS | RESERVED else ""
        return any(_fits(one, text) for text in (other, escaped))
    starts = one[0].startswith(other[0]) or other[0].startswith(one[0])
    ends = one[1].endswith(other[1]) or other[1].endswith(one[1])
    return starts and ends


def _fits(ends: tuple[str, str], text: str) -> bool:
    before, after = ends
    return len(text) > len(before) + len(after) and text.startswith(before) and text.endswith(after)
