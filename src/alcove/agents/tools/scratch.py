"""Scratch rooms: values under keys for agents that work together, with versions to avoid lost updates."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from itertools import groupby, islice
from typing import Annotated, Any

from msgspec import Meta

from alcove.agents.rooms import RUNS
from alcove.agents.tools import answers
from alcove.agents.tools.answers import Answer
from alcove.agents.tools.keyed_rooms import missing_key
from alcove.agents.tools.tool import MAX_HITS, Key, NewKey, Offset, Tool, make_tool
from alcove.agents.tools.turn import Turn, take_answer
from alcove.core.errors import Conflict, InvalidRequest, NotFound, quote_name
from alcove.core.namespace import Namespace
from alcove.core.records import Put

Kind = Annotated[str, Meta(description="Which room.")]
Pattern = Annotated[str | None, Meta(description="Keys like `plan_*`.")]
Version = Annotated[int, Meta(ge=0, description="Only if it has this version; 0: only if it is new.")]
_READERS: dict[str, str] = {
    "global": "every user of every agent with it",
    **dict.fromkeys(RUNS, "all who are in it"),
    "session": "this user's agents in this session",
    "agent": "you alone with this user",
}
_MAX_LISTED = 1000
"""Values in one answer; its text shows `MAX_HITS` of them."""
MAX_PATTERN_CHARACTERS = 200


def enter(turn: Turn, kind: str, *, opening: bool = False) -> Namespace:
    """The namespace of the caller's room of a kind; NotFound unless they may enter it."""
    room = turn.rooms.scratch(kind)
    if kind in RUNS and not turn.runs.enter(kind, room[1], turn.caller.user_id, opening=opening):
        raise NotFound(f"there is no such {kind}; a write opens one, and its owner may let others in")
    return room


def shared_memory_write(
    turn: Turn,
    key: NewKey,
    value: Annotated[Any, Meta(description="Any JSON.")],
    namespace: Kind = "global",
    metadata: Annotated[dict[str, Any] | None, Meta(description="About the value.")] = None,
    expected_version: Version | None = None,
) -> Answer:
    room = turn.rooms.scratch(namespace)
    principal, content = turn.principal_for(room), {"value": value, "metadata": metadata or {}}
    put = Put(namespace=room, key=key, value=content, expected_revision=expected_version)
    turn.memories.writer.check(principal, put)  # a write that is refused opens no run
    enter(turn, namespace, opening=not expected_version)
    try:
        entry = turn.memories.writer.put_record(principal, put)
    except Conflict:
        hint = "read it, then write with the version it has (0: it must not exist)"
        raise Conflict(f"{quote_name(key)} is not at version {expected_version}; {hint}") from None
    text = f"Wrote {quote_name(key)} to the {namespace} room, version {entry.revision}."
    return Answer({"key": key, "version": entry.revision}, text)


def shared_memory_read(turn: Turn, key: Key, namespace: Kind = "global") -> Answer:
    memory = turn.room(enter(turn, namespace)).get(key)
    if memory is None:
        raise missing_key(key, f"in the {namespace} room", "shared_memory_list")
    return answers.read_answer(memory, f"version {memory.revision}", field="value")


def shared_memory_list(
    turn: Turn, namespace: Kind = "global", pattern: Pattern = None, offset: Offset = 0
) -> Answer:
    room, matches = enter(turn, namespace), key_matcher(pattern or "*")
    every = turn.memories.reader.scan(turn.principal_for(room), room, exact=True)
    matching = (memory for memory in every if matches(memory.key))
    memories, has_more = take_answer(islice(matching, offset, None), _MAX_LISTED)
    next_offset = offset + len(memories) if has_more else None
    text_offset = offset + MAX_HITS if len(memories) > MAX_HITS else next_offset
    lines = (
        answers.format_memory(
            memory, f"version {memory.revision}", field="value", read_tool="shared_memory_read"
        )
        for memory in memories[:MAX_HITS]
    )
    return Answer(answers.list_result(memories, next_offset), answers.format_list(lines, text_offset))


def shared_memory_delete(turn: Turn, key: Key, namespace: Kind = "global") -> Answer:
    if not turn.room(enter(turn, namespace)).delete(key):
        raise missing_key(key, f"in the {namespace} room", "shared_memory_list")
    return Answer({"key": key, "deleted": True}, f"Deleted {quote_name(key)}.")


def scratch_tools(kinds: tuple[str, ...]) -> list[Tool]:
    """The tools of an agent with these kinds of rooms."""
    runs = (shared_memory_write, shared_memory_read, shared_memory_list, shared_memory_delete)
    readers = (f"{', '.join(group)}: {readers}" for readers, group in groupby(kinds, _READERS.__getitem__))
    words = {"readers": "; ".join(readers)}
    return [make_tool(run, words=words, choices={"namespace": kinds}) for run in runs]


def key_matcher(pattern: str) -> Callable[[str], bool]:
    """Returns whether a key fits a pattern: `*` is any text, `?` any character, `[a-z]` and `[!a-z]` sets.

    No pattern takes long: `translate` lets a star go back only over what the next part of the pattern could
    match, so that the time is at most that of comparing each part with each place in the key.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise InvalidRequest("pattern", f"at most {MAX_PATTERN_CHARACTERS} characters")
    match = re.compile(translate(pattern)).match
    return lambda key: match(key) is not None
