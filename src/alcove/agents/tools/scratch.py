"""Scratch rooms: values under plain keys, for agents that work together, with versions to agree on."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from itertools import groupby, islice
from typing import Annotated, Any

from msgspec import Meta

from alcove.agents.rooms import RUNS
from alcove.agents.specs.problems import quote_name
from alcove.agents.tools.base import LISTED, READ, Answer, Tool, Turn, line, listed, page, shown, some
from alcove.agents.tools.private_pool_team import MOST, Key, NewKey, Offset, missing
from alcove.core.errors import Conflict, InvalidRequest, NotFound
from alcove.core.namespace import Namespace
from alcove.core.records import Memory, Put

Kind = Annotated[str, Meta(description="Which room.")]
Pattern = Annotated[str | None, Meta(description="Keys like `plan_*`.")]
Version = Annotated[int, Meta(ge=0, description="Only if it has this version; 0: only if it is new.")]
_READERS: dict[str, str] = {
    "global": "every user of every agent with it",
    **dict.fromkeys(RUNS, "all who are in it"),
    "session": "this user's agents in this session",
    "agent": "you alone with this user",
}
_PAGE = 1000
"""Values that one answer gives at most; its text shows `MOST` of them."""
LONGEST_PATTERN = 200


def enter(turn: Turn, kind: str, *, opening: bool = False) -> Namespace:
    """The room of a kind, once it is known that the caller may enter it."""
    place = turn.rooms.scratch(kind)
    if kind in RUNS and not turn.runs.enter(kind, place[1], turn.caller.user_id, opening=opening):
        raise NotFound(f"there is no such {kind}; a write opens one, and its owner may let others in")
    return place


def write(
    turn: Turn,
    key: NewKey,
    value: Annotated[Any, Meta(description="Any JSON.")],
    namespace: Kind = "global",
    metadata: Annotated[dict[str, Any] | None, Meta(description="About the value.")] = None,
    expected_version: Version | None = None,
) -> Answer:
    place = turn.rooms.scratch(namespace)
    content = {"value": value, "metadata": metadata or {}}
    put = Put(namespace=place, key=key, value=content, expected_revision=expected_version)
    turn.memories.check(turn.within(place), put)  # what will be refused opens no run
    enter(turn, namespace, opening=not expected_version)
    try:
        entry = turn.memories.put_record(turn.within(place), put)
    except Conflict:
        hint = "read it, then write with the version it has (0: it must not exist)"
        raise Conflict(f"{quote_name(key)} is not at version {expected_version}; {hint}") from None
    text = f"Wrote {quote_name(key)} to the {namespace} room, version {entry.revision}."
    return Answer({"key": key, "version": entry.revision}, text)


def read(turn: Turn, key: Key, namespace: Kind = "global") -> Answer:
    found = turn.room(enter(turn, namespace)).get(key)
    if found is None:
        raise missing(key, f"in the {namespace} room", "shared_memory_list")
    return Answer(shown(found), _line(found, READ, reader=None))


def listing(turn: Turn, namespace: Kind = "global", pattern: Pattern = None, offset: Offset = 0) -> Answer:
    place, fits = enter(turn, namespace), matcher(pattern or "*")
    every = turn.memories.scan(turn.within(place), place, exact=True)
    found, more = some(islice((memory for memory in every if fits(memory.key)), offset, None), _PAGE)
    after = offset + len(found) if more else None
    text = listed(map(_line, found[:MOST]), offset + MOST if len(found) > MOST else after)
    return Answer(page(found, after), text)


def delete(turn: Turn, key: Key, namespace: Kind = "global") -> Answer:
    if not turn.room(enter(turn, namespace)).delete(key):
        raise missing(key, f"in the {namespace} room", "shared_memory_list")
    return Answer({"key": key, "deleted": True}, f"Deleted {quote_name(key)}.")


def _line(memory: Memory, most: int = LISTED, reader: str | None = "shared_memory_read") -> str:
    return line(memory, f"version {memory.revision}", field="value", most=most, reader=reader)


def scratch_tools(kinds: tuple[str, ...]) -> tuple[Tool, ...]:
    """The tools of an agent with these kinds of rooms."""
    rooms: dict[str, Any] = {"choices": {"namespace": kinds}, "scratch": True}
    who = "; ".join(f"{', '.join(group)}: {who}" for who, group in groupby(kinds, _READERS.__getitem__))
    return (
        Tool("shared_memory_write", f"Write a value to a room. Who reads it: {who}.", write, **rooms),
        Tool("shared_memory_read", "Read a value of a room.", read, **rooms, reads=True),
        Tool("shared_memory_list", "List the values of a room.", listing, **rooms, reads=True),
        Tool("shared_memory_delete", "Delete a value of a room.", delete, **rooms),
    )


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a key fits a pattern: `*` is any text, `?` any character, `[a-z]` one of some, `[!a-z]` none.

    No pattern takes long: `translate` lets a star go back only over what the next part of the pattern could
    match, so that the time is at most that of comparing each part with each place in the key.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise InvalidRequest("pattern", f"at most {LONGEST_PATTERN} characters")
    match = re.compile(translate(pattern)).match
    return lambda key: match(key) is not None
