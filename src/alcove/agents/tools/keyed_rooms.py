"""Rooms that hold values under keys: private notes, pools, a team's room, and scratch rooms with versions.

A `KeyedRoom` has the namespace of a room for contents and the words for it; the tools of private notes, pools
and teams come from it. Scratch rooms hold any JSON, with versions to avoid lost updates.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import translate
from itertools import groupby, islice
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from alcove.agents.rooms import RUNS, Room, Turn, take_answer
from alcove.agents.tools import answers
from alcove.agents.tools.answers import Answer
from alcove.agents.tools.tool import (
    MAX_HITS,
    Content,
    Key,
    Limit,
    MinRelevance,
    NewKey,
    Offset,
    Query,
    Tool,
    make_tool,
)
from alcove.core.errors import Conflict, InvalidRequest, NotFound, quote_name
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant
from alcove.core.records import Delete, Deletion, OperationResult, Put

T = TypeVar("T")
_MAX_DELETES = 50
"""Deletions in one batch; each needs a grant of its own, and each is decided among all of those."""
Pool = Annotated[str, Meta(description="Which pool.")]
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


@dataclass(frozen=True)
class KeyedRoom:
    """One kind of room, and the functions of its tools.

    `namespace` returns the room's namespace for the turn's rooms, and the pool's name if it is a pool.
    `location` ends a sentence about an entry of it, `destination` one about storing an entry (`{pool}` is the
    pool's name in both). `tool_names` are those of `write`, `read`, `search` and `list`.
    """

    namespace: Callable[..., Namespace | None]
    location: str
    destination: str
    tool_names: tuple[str, str, str, str]

    def tools(self, **options: Any) -> list[Tool]:
        """The tools of the room; `options` are fields of all of them."""
        runs: tuple[Callable[..., Answer], ...] = (self.write, self.read, self.search, self.list)
        return [make_tool(run, name, **options) for run, name in zip(runs, self.tool_names, strict=True)]

    def write(self, turn: Turn, key: NewKey, content: Content, **pool: str) -> Answer:
        value = {"content": content}
        entry = self._room(turn, pool).put(key, value, index=value)
        text = f"Stored {quote_name(key)} {self.destination.format(**pool)}."
        return Answer({"key": key, "version": entry.revision}, text)

    def read(self, turn: Turn, key: Key, **pool: str) -> Answer:
        memory = self._read(turn, pool, lambda room: room.get(key))
        if memory is None:
            raise missing_key(key, self.location.format(**pool), self.tool_names[3])
        return answers.read_answer(memory)

    def search(
        self, turn: Turn, query: Query, limit: Limit = 5, min_relevance: MinRelevance = None, **pool: str
    ) -> Answer:
        arguments = {"query": query, "limit": limit, "min_relevance": min_relevance, "unranked": True}
        hits = self._read(turn, pool, lambda room: room.search(**arguments))
        return answers.search_answer(hits, read_tool=self.tool_names[1])

    def list(self, turn: Turn, limit: Limit = 20, offset: Offset = 0, **pool: str) -> Answer:
        page = self._read(turn, pool, lambda room: room.page(limit, offset))
        return answers.list_answer(page, self.tool_names[1], page.next_offset)

    def _read(self, turn: Turn, pool: dict[str, str], read: Callable[[Room], T]) -> T:
        return read(self._room(turn, pool))

    def _room(self, turn: Turn, pool: dict[str, str]) -> Room:
        return turn.room(self.namespace(turn.rooms, **pool))


class PrivateRoom(KeyedRoom):
    """While it is empty, its child namespaces are read instead: see `ChildRooms`."""

    def tools(self, **options: Any) -> list[Tool]:
        *others, list_tool = super().tools(**options)
        return [*others, make_tool(self.forget, **options), list_tool]

    def _read(self, turn: Turn, pool: dict[str, str], read: Callable[[Room], T]) -> T:
        room = self._room(turn, pool)
        if (result := read(room)) or turn.memories.searcher.list(
            room.principal, room.namespace, limit=1, exact=True
        ):
            return result
        return read(turn.child_rooms) if turn.child_rooms else result

    def forget(self, turn: Turn, key: Key) -> Answer:
        """Deletes a key, in child namespaces too, so that nothing older takes its place.

        The oldest is deleted first: if a batch fails, the user still sees the newest.
        """
        room, children = self._room(turn, {}), turn.child_rooms
        older = [entry for entry in children.entries_by_age() if entry.key == key] if children else []
        deletes = [
            Delete(namespace=each.namespace, key=key, expected_revision=each.revision) for each in older
        ]
        deletes.append(Delete(namespace=room.namespace, key=key))
        results: list[OperationResult] = []
        for start in range(0, len(deletes), _MAX_DELETES):
            batch = deletes[start : start + _MAX_DELETES]
            grants = [Grant(Namespace(delete.namespace), ("delete",)) for delete in batch]
            results += turn.memories.writer.batch(turn.principal_with(*grants), batch)
        if not any(isinstance(result, Deletion) and result.deleted for result in results):
            raise missing_key(key, self.location, self.tool_names[3])
        return Answer({"key": key, "forgotten": True}, f"Forgot {quote_name(key)}.")


def missing_key(key: str, location: str, list_tool: str) -> NotFound:
    """The error for a key that is not in a room; `location` ends a sentence, `list_tool` lists the keys."""
    return NotFound(f"there is nothing under {quote_name(key)} {location}; {list_tool} shows what there is")


_OF_USER, _IN_POOL = "in your private memory of this user", "in the pool {pool}"
_PRIVATE = PrivateRoom(
    lambda rooms: rooms.private, _OF_USER, _OF_USER, ("remember", "recall", "search_memory", "list_memories")
)
_POOL = KeyedRoom(
    lambda rooms, pool: rooms.pools[pool], _IN_POOL, _IN_POOL,
    ("share_to", "read_from_pool", "search_pool", "list_pool"),
)  # fmt: skip
_TEAM = KeyedRoom(
    lambda rooms: rooms.team, "in the team's room", "for the team",
    ("share_finding", "read_shared", "search_shared", "list_shared"),
)  # fmt: skip
PRIVATE_TOOLS, TEAM_TOOLS = _PRIVATE.tools(), _TEAM.tools()


def pool_tools(pools: tuple[str, ...]) -> list[Tool]:
    """The tools of an agent with these pools."""
    return _POOL.tools(choices={"pool": pools}, leading_arguments=(("pool", Pool),))


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
