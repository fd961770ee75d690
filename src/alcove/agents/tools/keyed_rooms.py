"""Rooms that hold content under keys: an agent's private notes, its pools and its team's room.

A `KeyedRoom` has the namespace of such a room and the words for it; the tools of all three come from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from alcove.agents.tools.answers import (
    MAX_READ_CHARACTERS,
    Answer,
    format_memory,
    list_answer,
    memory_result,
    search_answer,
    take_answer,
)
from alcove.agents.tools.arguments import Content, Key, Limit, MinRelevance, NewKey, Offset, Query
from alcove.agents.tools.child_rooms import ChildRooms, child_rooms
from alcove.agents.tools.tool import Tool
from alcove.agents.tools.turn import Room, Turn
from alcove.core.errors import NotFound, quote_name
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant
from alcove.core.records import Delete, Deletion, Memory, OperationResult, SearchResults
from alcove.core.validation import parse_min_relevance

_MAX_DELETES = 50
"""Deletions in one batch; each needs a grant of its own, and each is decided among all of those."""
Pool = Annotated[str, Meta(description="Which pool.")]


@dataclass(frozen=True)
class KeyedRoom:
    """One kind of room, and the functions of its tools.

    `namespace` returns the room's namespace for the turn's rooms, and the pool's name if it is a pool.
    `location` ends a sentence about an entry of it, `destination` one about storing an entry (`{pool}` is the
    pool's name in both). `read_tool` and `list_tool` show one content and all keys.
    """

    namespace: Callable[..., Namespace | None]
    location: str
    destination: str
    read_tool: str
    list_tool: str

    def write(self, turn: Turn, key: NewKey, content: Content, **pool: str) -> Answer:
        value = {"content": content}
        entry = self._room(turn, pool).put(key, value, index=value)
        text = f"Stored {quote_name(key)} {self.destination.format(**pool)}."
        return Answer({"key": key, "version": entry.revision}, text)

    def read(self, turn: Turn, key: Key, **pool: str) -> Answer:
        if (memory := self._get(turn, key, pool)) is None:
            raise missing_key(key, self.location.format(**pool), self.list_tool)
        return Answer(memory_result(memory), format_memory(memory, max_characters=MAX_READ_CHARACTERS))

    def search(
        self,
        turn: Turn,
        query: Query,
        limit: Limit = 5,
        min_relevance: MinRelevance | None = None,
        min_score: MinRelevance | None = None,
        **pool: str,
    ) -> Answer:
        least = parse_min_relevance(min_relevance, min_score)
        arguments = {"query": query, "limit": limit, "min_relevance": least, "unranked": True}
        return search_answer(self._search(turn, pool, arguments), read_tool=self.read_tool)

    def list(self, turn: Turn, limit: Limit = 20, offset: Offset = 0, **pool: str) -> Answer:
        memories = self._room(turn, pool).search(limit=limit, offset=offset)
        next_offset = offset + len(memories) if memories.after_cursor else None
        return list_answer(memories, self.read_tool, next_offset)

    def _get(self, turn: Turn, key: str, pool: dict[str, str]) -> Memory | None:
        return self._room(turn, pool).get(key)

    def _search(self, turn: Turn, pool: dict[str, str], arguments: dict[str, Any]) -> SearchResults:
        return self._room(turn, pool).search(**arguments)

    def _room(self, turn: Turn, pool: dict[str, str]) -> Room:
        return turn.room(self.namespace(turn.rooms, **pool))


class PrivateRoom(KeyedRoom):
    """While it is empty, its child namespaces are read instead: see `child_rooms`."""

    def list(self, turn: Turn, limit: Limit = 20, offset: Offset = 0, **pool: str) -> Answer:
        answer = super().list(turn, limit, offset)
        if answer.result["items"] or not (children := self._children(turn)):
            return answer
        entries = children.newest_entries()[offset : offset + limit + 1]
        memories, has_more = take_answer(children.open(entries), limit)
        return list_answer(memories, self.read_tool, offset + len(memories) if has_more else None)

    def forget(self, turn: Turn, key: Key) -> Answer:
        """Deletes a key, in child namespaces too, so that nothing older takes its place.

        The oldest is deleted first: if a batch fails, the user still sees the newest.
        """
        room, children = self._room(turn, {}), child_rooms(turn)
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
            raise missing_key(key, self.location, self.list_tool)
        return Answer({"key": key, "forgotten": True}, f"Forgot {quote_name(key)}.")

    def _get(self, turn: Turn, key: str, pool: dict[str, str]) -> Memory | None:
        if (memory := super()._get(turn, key, pool)) or not (children := self._children(turn)):
            return memory
        return children.get(key)

    def _search(self, turn: Turn, pool: dict[str, str], arguments: dict[str, Any]) -> SearchResults:
        if (hits := super()._search(turn, pool, arguments)) or not (children := self._children(turn)):
            return hits
        return children.search(**arguments)

    def _children(self, turn: Turn) -> ChildRooms | None:
        """The child namespaces, while the private namespace itself is empty."""
        room = self._room(turn, {})
        is_empty = not turn.memories.searcher.list(room.principal, room.namespace, limit=1, exact=True)
        return child_rooms(turn) if is_empty else None


def missing_key(key: str, location: str, list_tool: str) -> NotFound:
    return NotFound(f"there is nothing under {quote_name(key)} {location}; {list_tool} shows what there is")


_PRIVATE_LOCATION, _POOL_LOCATION = "in your private memory of this user", "in the pool {pool}"
_PRIVATE = PrivateRoom(
    lambda rooms: rooms.private, _PRIVATE_LOCATION, _PRIVATE_LOCATION, "recall", "list_memories"
)
_POOL = KeyedRoom(
    lambda rooms, pool: rooms.pools[pool], _POOL_LOCATION, _POOL_LOCATION, "read_from_pool", "list_pool"
)
_TEAM = KeyedRoom(
    lambda rooms: rooms.team, "in the team's room", "for the team", "read_shared", "list_shared"
)
_OTHERS_READ = "which other users read: never anything private."
PRIVATE_TOOLS = (
    Tool("remember", "Keep a note about this user, in place of what its key held. Only you see it.",
         _PRIVATE.write, when_to_use="For your own work: this user's other agents never learn it."),
    Tool("recall", "Read a note about this user.", _PRIVATE.read, is_read_only=True),
    Tool("search_memory", "Search your notes about this user by meaning.", _PRIVATE.search,
         is_read_only=True),
    Tool("forget", "Delete a note about this user.", _PRIVATE.forget),
    Tool("list_memories", "List your notes about this user.", _PRIVATE.list, is_read_only=True),
)  # fmt: skip
TEAM_TOOLS = (
    Tool("share_finding", f"Write to the team's room, {_OTHERS_READ}", _TEAM.write),
    Tool("read_shared", "Read an entry of the team's room.", _TEAM.read, is_read_only=True),
    Tool("search_shared", "Search the team's room by meaning.", _TEAM.search, is_read_only=True),
    Tool("list_shared", "List the team's room.", _TEAM.list, is_read_only=True),
)  # fmt: skip


def pool_tools(pools: tuple[str, ...]) -> tuple[Tool, ...]:
    """The tools of an agent with these pools."""
    pool: dict[str, Any] = {"choices": {"pool": pools}, "leading_arguments": (("pool", Pool),)}
    return (
        Tool("share_to", f"Write to a pool, {_OTHERS_READ}", _POOL.write, **pool),
        Tool("read_from_pool", "Read an entry of a pool.", _POOL.read, **pool, is_read_only=True),
        Tool("search_pool", "Search a pool by meaning.", _POOL.search, **pool, is_read_only=True),
        Tool("list_pool", "List the entries of a pool.", _POOL.list, **pool, is_read_only=True),
    )
