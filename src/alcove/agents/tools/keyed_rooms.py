"""Rooms that hold content under keys: an agent's private notes, its pools and its team's room.

A `KeyedRoom` has the namespace of such a room and the words for it; the tools of all three come from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from alcove.agents.tools import answers
from alcove.agents.tools.answers import Answer
from alcove.agents.tools.tool import Content, Key, Limit, MinRelevance, NewKey, Offset, Query, Tool, make_tool
from alcove.agents.tools.turn import Room, Turn
from alcove.core.errors import NotFound, quote_name
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant
from alcove.core.records import Delete, Deletion, OperationResult

T = TypeVar("T")
_MAX_DELETES = 50
"""Deletions in one batch; each needs a grant of its own, and each is decided among all of those."""
Pool = Annotated[str, Meta(description="Which pool.")]


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
