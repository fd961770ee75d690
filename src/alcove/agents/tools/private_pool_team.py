"""Rooms in which content lies under keys: an agent's private notes, its pools and its team's room.

A `KeyedRoom` says where such a room is and how it is spoken of; the tools of all three come from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from alcove.agents.specs.problems import quote_name
from alcove.agents.tools.base import (
    READ,
    UNTOLD,
    Answer,
    Room,
    Tool,
    Turn,
    line,
    search_answer,
    several,
    shown,
    some,
)
from alcove.agents.tools.child_rooms import ChildRooms, child_rooms
from alcove.core.errors import NotFound
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant
from alcove.core.records import Delete, Deletion, Memory, OperationResult
from alcove.core.validation import NOT_BLANK

MOST = 100
"""Memories that a call gives at most, as a search of the service does."""
_DELETES = 50
"""Deletions in one batch; each needs a grant of its own, and each is decided among all of those."""
NewKey = Annotated[str, Meta(min_length=1, max_length=1024, description="A short name.")]
Key = Annotated[str, Meta(min_length=1, max_length=1024, description="Its key.")]
Content = Annotated[str, Meta(pattern=NOT_BLANK, description="In full sentences.")]
Query = Annotated[str, Meta(pattern=NOT_BLANK, description="In your own words.")]
Limit = Annotated[int, Meta(ge=1, le=MOST, description=f"1 to {MOST}.")]
MinRelevance = Annotated[float, Meta(ge=0, le=1, extra_json_schema={UNTOLD: True})]
"""Programs may give it; models are not told of it, which would cost tokens in each turn."""
Pool = Annotated[str, Meta(description="Which pool.")]
Offset = Annotated[int, Meta(ge=0, le=10**9, description="How many to skip.")]


@dataclass(frozen=True)
class KeyedRoom:
    """One kind of room: where it is, the words for it, and its tools' work.

    `place` gives the room's namespace from the turn's rooms, and from the pool's name if it is one. `where`
    ends a sentence about what is in it, `stored` one about what was put there (`{pool}` is the pool's name in
    both). `reader` and `lister` are the tools that show one content whole and all there is.
    """

    place: Callable[..., Namespace | None]
    where: str
    stored: str
    reader: str
    lister: str

    def keep(self, turn: Turn, key: NewKey, content: Content, **pool: str) -> Answer:
        value = {"content": content}
        entry = self._room(turn, pool).put(key, value, index=value)
        text = f"Stored {quote_name(key)} {self.stored.format(**pool)}."
        return Answer({"key": key, "version": entry.revision}, text)

    def read(self, turn: Turn, key: Key, **pool: str) -> Answer:
        if (found := self._found(turn, key, pool)) is None:
            raise missing(key, self.where.format(**pool), self.lister)
        return Answer(shown(found), line(found, most=READ))

    def search(
        self,
        turn: Turn,
        query: Query,
        limit: Limit = 5,
        min_relevance: MinRelevance | None = None,
        min_score: MinRelevance | None = None,
        **pool: str,
    ) -> Answer:
        room = self._room(turn, pool)
        found = room.search(
            query=query, limit=limit, min_relevance=min_relevance, min_score=min_score, unranked=True
        )
        return search_answer(found, reader=self.reader)

    def list(self, turn: Turn, limit: Limit = 20, offset: Offset = 0, **pool: str) -> Answer:
        found = self._room(turn, pool).search(limit=limit, offset=offset)
        return several(found, self.reader, offset + len(found) if found.after_cursor else None)

    def _found(self, turn: Turn, key: str, pool: dict[str, str]) -> Memory | None:
        return self._room(turn, pool).get(key)

    def _room(self, turn: Turn, pool: dict[str, str]) -> Room:
        return turn.room(self.place(turn.rooms, **pool))


class PrivateRoom(KeyedRoom):
    """While it is empty, its child namespaces are read instead: see `child_rooms`."""

    def search(
        self,
        turn: Turn,
        query: Query,
        limit: Limit = 5,
        min_relevance: MinRelevance | None = None,
        min_score: MinRelevance | None = None,
        **pool: str,
    ) -> Answer:
        answer = super().search(turn, query, limit, min_relevance, min_score)
        if not answer.result["items"] and (children := self._children(turn)):
            least = min_score if min_relevance is None else min_relevance
            found = children.search(query=query, limit=limit, min_relevance=least, unranked=True)
            return search_answer(found, reader=self.reader)
        return answer

    def list(self, turn: Turn, limit: Limit = 20, offset: Offset = 0, **pool: str) -> Answer:
        answer = super().list(turn, limit, offset)
        if answer.result["items"] or not (children := self._children(turn)):
            return answer
        found, more = some(children.open(children.newest_entries()[offset : offset + limit + 1]), limit)
        return several(found, self.reader, offset + len(found) if more else None)

    def forget(self, turn: Turn, key: Key) -> Answer:
        """Deletes what is under a key, in child namespaces too, so that nothing older takes its place.

        The oldest goes first: if a batch fails, what the user sees is still the newest.
        """
        room, children = self._room(turn, {}), child_rooms(turn)
        older = [each for each in children.entries_by_age() if each.key == key] if children else []
        deletes = [
            Delete(namespace=each.namespace, key=key, expected_revision=each.revision) for each in older
        ]
        deletes.append(Delete(namespace=room.at, key=key))
        done: list[OperationResult] = []
        for start in range(0, len(deletes), _DELETES):
            some_deletes = deletes[start : start + _DELETES]
            grants = [Grant(Namespace(each.namespace), ("delete",)) for each in some_deletes]
            done += turn.memories.batch(turn.acting(*grants), some_deletes)
        if not any(isinstance(each, Deletion) and each.deleted for each in done):
            raise missing(key, self.where, self.lister)
        return Answer({"key": key, "forgotten": True}, f"Forgot {quote_name(key)}.")

    def _found(self, turn: Turn, key: str, pool: dict[str, str]) -> Memory | None:
        if found := super()._found(turn, key, pool):
            return found
        children = self._children(turn)
        return children and children.get(key)

    def _children(self, turn: Turn) -> ChildRooms | None:
        """The child namespaces, while the private namespace itself is empty."""
        room = self._room(turn, {})
        return None if turn.memories.list(room.who, room.at, limit=1, exact=True) else child_rooms(turn)


def missing(key: str, where: str, lister: str) -> NotFound:
    return NotFound(f"there is nothing under {quote_name(key)} {where}; {lister} shows what there is")


_MINE, _IN_POOL = "in your private memory of this user", "in the pool {pool}"
_PRIVATE = PrivateRoom(lambda rooms: rooms.private, _MINE, _MINE, "recall", "list_memories")
_POOL = KeyedRoom(lambda rooms, pool: rooms.pools[pool], _IN_POOL, _IN_POOL, "read_from_pool", "list_pool")
_TEAM = KeyedRoom(
    lambda rooms: rooms.team, "in the team's room", "for the team", "read_shared", "list_shared"
)
_OTHERS_READ = "which other users read: never anything private."
PRIVATE_TOOLS = (
    Tool("remember", "Keep a note about this user, in place of what its key held. Only you see it.",
         _PRIVATE.keep, choose="For your own work: this user's other agents never learn it."),
    Tool("recall", "Read a note about this user.", _PRIVATE.read, reads=True),
    Tool("search_memory", "Search your notes about this user by meaning.", _PRIVATE.search, reads=True),
    Tool("forget", "Delete a note about this user.", _PRIVATE.forget),
    Tool("list_memories", "List your notes about this user.", _PRIVATE.list, reads=True),
)  # fmt: skip
TEAM_TOOLS = (
    Tool("share_finding", f"Write to the team's room, {_OTHERS_READ}", _TEAM.keep),
    Tool("read_shared", "Read an entry of the team's room.", _TEAM.read, reads=True),
    Tool("search_shared", "Search the team's room by meaning.", _TEAM.search, reads=True),
    Tool("list_shared", "List the team's room.", _TEAM.list, reads=True),
)  # fmt: skip


def pool_tools(pools: tuple[str, ...]) -> tuple[Tool, ...]:
    """The tools of an agent with these pools."""
    pool: dict[str, Any] = {"choices": {"pool": pools}, "before": (("pool", Pool),)}
    return (
        Tool("share_to", f"Write to a pool, {_OTHERS_READ}", _POOL.keep, **pool),
        Tool("read_from_pool", "Read an entry of a pool.", _POOL.read, **pool, reads=True),
        Tool("search_pool", "Search a pool by meaning.", _POOL.search, **pool, reads=True),
        Tool("list_pool", "List the entries of a pool.", _POOL.list, **pool, reads=True),
    )
