"""Rooms in which content lies under keys: an agent's private notes, its pools and its team's room.

A `KeyedRoom` says where such a room is and how it is spoken of; the tools of all three come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from alcove.agents.rooms import Rooms, short
from alcove.agents.tools.base import Answer, Tool, Turn
from alcove.agents.tools.texts import READ, line, listed
from alcove.core.cursor import portion
from alcove.core.errors import InvalidRequest, NotFound
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import Delete, Deletion, Memory, Put, Result

MOST = 100
"""Memories that a call gives at most, as a search of the service does."""
_MOST_LOOKED_AT = 10 * MOST
_DELETES = 500
"""Deletions in one batch."""
NewKey = Annotated[str, Meta(min_length=1, max_length=1024, description="A short name.")]
Key = Annotated[str, Meta(min_length=1, max_length=1024, description="Its key.")]
Content = Annotated[str, Meta(pattern=r"\S", description="In full sentences.")]
Query = Annotated[str, Meta(pattern=r"\S", description="In your own words.")]
Limit = Annotated[int, Meta(ge=1, le=MOST, description=f"1 to {MOST}.")]
Offset = Annotated[int, Meta(ge=0, le=10**9, description="How many to skip.")]


class Keep(Struct):
    key: NewKey
    content: Content


class ByKey(Struct):
    key: Key


class Look(Struct):
    query: Query
    limit: Limit = 5


class Show(Struct):
    limit: Limit = 20
    offset: Offset = 0


def _in_pool(arguments: type[Struct]) -> type[Struct]:
    """The same arguments after the name of a pool."""
    pool = ("pool", Annotated[str, Meta(description="Which pool.")])
    own = ((f.name, f.type) if f.required else (f.name, f.type, f.default) for f in structs.fields(arguments))
    return msgspec.defstruct(f"{arguments.__name__}InPool", [pool, *own])


@dataclass(frozen=True)
class KeyedRoom:
    """One kind of room: where it is, the words for it, and its tools' work.

    `place` gives the room's namespace from the turn's rooms and the tool's arguments. `where` ends a sentence
    about what is in it, `stored` one about what was put there (`{pool}` is the pool's name in both).
    `reader` and `lister` are the tools that show one content whole and all there is.
    """

    place: Callable[[Rooms, Any], Namespace | None]
    where: str
    stored: str
    reader: str
    lister: str

    def keep(self, turn: Turn, given: Any) -> Answer:
        room, content = self._room(turn, given), {"content": given.content}
        put = Put(namespace=room, key=given.key, value=content, index=content)
        entry = turn.memories.put(turn.within(room), put)
        text = f"Stored {short(given.key)} {self._told(self.stored, given)}."
        return Answer({"key": given.key, "version": entry.revision}, text)

    def read(self, turn: Turn, given: Any) -> Answer:
        room = self._room(turn, given)
        if (found := turn.memories.get(turn.within(room), room, given.key)) is None:
            raise self._missing(given)
        return told(found)

    def search(self, turn: Turn, given: Any) -> Answer:
        return look(turn, self._room(turn, given), given.query, given.limit, self.reader)

    def list(self, turn: Turn, given: Any) -> Answer:
        room, limit, offset = self._room(turn, given), given.limit, given.offset
        who, exact = turn.within(room), _alone(room)
        found = turn.memories.search(who, room, limit=min(limit + 1, MOST), offset=offset, exact=exact)
        after = offset + min(limit, len(found))
        more = (
            found.next_offset
            or len(found) > limit
            or (len(found) == MOST and turn.memories.list(who, room, limit=1, offset=after, exact=exact))
        )
        return several(found[:limit], self.reader, after if more else None)

    def _room(self, turn: Turn, given: Any) -> Namespace:
        room = self.place(turn.rooms, given)
        assert room is not None  # an agent without the room has no tool that comes here
        return room

    def _missing(self, given: Any) -> NotFound:
        return missing(given.key, self._told(self.where, given), self.lister)

    @staticmethod
    def _told(words: str, given: Any) -> str:
        return words.replace("{pool}", getattr(given, "pool", ""))


class PrivateRoom(KeyedRoom):
    """While it is empty, what the user left in rooms from before users had their own shows instead."""

    def read(self, turn: Turn, given: Any) -> Answer:
        try:
            return super().read(turn, given)
        except NotFound:
            if older := self._older(turn).get(given.key):
                return told(older)
            raise

    def search(self, turn: Turn, given: Any) -> Answer:
        answer = super().search(turn, given)
        if not answer.result["items"] and (older := self._older(turn)):
            newest = {memory.id for memory in older.values()}
            found = (memory for memory in _found_before(turn, given.query) if memory.id in newest)
            return several([*islice(found, given.limit)], self.reader)
        return answer

    def list(self, turn: Turn, given: Any) -> Answer:
        answer = super().list(turn, given)
        if answer.result["items"]:
            return answer
        older = sorted(self._older(turn).values(), key=lambda memory: memory.created_at, reverse=True)
        found, more = some(older[given.offset :], given.limit)
        return several(found, self.reader, given.offset + len(found) if more else None)

    def forget(self, turn: Turn, given: ByKey) -> Answer:
        """Deletes what is under a key, in older rooms too, so that nothing older comes back in its place."""
        room, key = self._room(turn, given), given.key
        deletes = [Delete(namespace=room, key=key)]
        for older in left_behind(turn):
            if older.key == key:
                deletes.append(Delete(namespace=older.namespace, key=key, expected_revision=older.revision))
        who = turn.within(room if len(deletes) == 1 else _before(turn)[1])
        done: list[Result] = []
        for start in range(0, len(deletes), _DELETES):
            done += turn.memories.batch(who, deletes[start : start + _DELETES])
        if not any(isinstance(each, Deletion) and each.deleted for each in done):
            raise self._missing(given)
        return Answer({"key": key, "forgotten": True}, f"Forgot {short(key)}.")

    def _older(self, turn: Turn) -> dict[str, Memory]:
        """The newest that was left behind under each key, while the private room is empty."""
        room = self._room(turn, None)
        if turn.memories.list(turn.within(room), room, limit=1, exact=True):
            return {}
        return {memory.key: memory for memory in sorted(left_behind(turn), key=lambda each: each.created_at)}


def left_behind(turn: Turn) -> Iterator[Memory]:
    """What this user wrote into rooms from before users had their own."""
    return turn.memories.export(*_before(turn), unowned=True) if turn.rooms.fallback else iter(())


def _found_before(turn: Turn, query: str) -> Iterator[Memory]:
    """What was left behind that fits best; many may be older ones of the same keys, so more than a page."""
    offset: int | None = 0
    while offset is not None and offset < _MOST_LOOKED_AT:
        page = turn.memories.search(*_before(turn), query=query, limit=MOST, offset=offset)
        yield from page
        offset = page.next_offset or (offset + MOST if len(page) == MOST else None)


def _before(turn: Turn) -> tuple[Principal, Namespace]:
    """Who may look where for what was left behind."""
    older = turn.rooms.fallback
    assert older is not None
    return turn.within(older.namespace, written_by=older.authors), older.namespace


def _pool(rooms: Rooms, given: Any) -> Namespace:
    if given.pool not in rooms.pools:
        raise InvalidRequest("pool", f"one of {', '.join(rooms.pools)}")
    return rooms.pools[given.pool]


def missing(key: str, where: str, lister: str) -> NotFound:
    return NotFound(f"there is nothing under {short(key)} {where}; {lister} shows what there is")


def look(turn: Turn, room: Namespace, query: str, limit: int, reader: str | None = None) -> Answer:
    """What fits a query best; `reader` is the tool that shows a long content whole."""
    found = turn.memories.search(turn.within(room), room, query=query, limit=limit, exact=_alone(room))
    answer = several(found, reader)
    if found.degraded:
        answer.result["degraded"] = found.degraded
    return answer


def _alone(room: Namespace) -> bool:
    """Whether a room is its namespace alone: a user's is, since a key says nothing of what lies below."""
    return room.owner is not None


def told(memory: Memory) -> Answer:
    """One memory with its author, as a model reads it."""
    return Answer(shown(memory), line(memory, most=READ))


def several(found: Sequence[Memory], reader: str | None, next_offset: int | None = None) -> Answer:
    """Some memories, a line each."""
    text = listed([line(each, reader=reader) for each in found], next_offset)
    return Answer(page(found, next_offset), text)


def some(found: Iterable[Memory], limit: int) -> tuple[list[Memory], bool]:
    """As many memories as one answer may have; whether there are more."""
    return portion(found, limit, lambda memory: len(msgspec.json.encode(memory.value)))


def page(found: Sequence[Memory], next_offset: int | None) -> dict[str, Any]:
    """Some memories, and where the list goes on if it does."""
    items = {"items": [shown(each) for each in found]}
    return items if next_offset is None else {**items, "next_offset": next_offset}


def shown(memory: Memory) -> dict[str, Any]:
    """What a tool answers of a memory: no namespace, no policy attributes."""
    return {
        **memory.value,
        "key": memory.key,
        "version": memory.revision,
        "written_at": memory.created_at,
        "written_by": {"user": memory.written_by.user, "agent": memory.written_by.agent},
        **({} if memory.score is None else {"score": round(memory.score, 4)}),
    }


_MINE = "in your private memory of this user"
_PRIVATE = PrivateRoom(lambda rooms, _: rooms.private, _MINE, _MINE, "recall", "list_memories")
_POOL = KeyedRoom(_pool, "in the pool {pool}", "in the pool {pool}", "read_from_pool", "list_pool")
_TEAM = KeyedRoom(
    lambda rooms, _: rooms.team, "in the team's room", "for the team", "read_shared", "list_shared"
)

PRIVATE_TOOLS = (
    Tool("remember", "Keep a note about this user, in place of what its key held. Only you see it.", Keep,
         _PRIVATE.keep, choose="For your own work: this user's other agents never learn it."),
    Tool("recall", "Read a note about this user.", ByKey, _PRIVATE.read, reads=True),
    Tool("search_memory", "Search your notes about this user by meaning.", Look, _PRIVATE.search, reads=True),
    Tool("forget", "Delete a note about this user.", ByKey, _PRIVATE.forget),
    Tool("list_memories", "List your notes about this user.", Show, _PRIVATE.list, reads=True),
)  # fmt: skip
POOL_TOOLS = (
    Tool("share_to", "Write to a pool, which other users read: never anything private.", _in_pool(Keep),
         _POOL.keep),
    Tool("read_from_pool", "Read an entry of a pool.", _in_pool(ByKey), _POOL.read, reads=True),
    Tool("search_pool", "Search a pool by meaning.", _in_pool(Look), _POOL.search, reads=True),
    Tool("list_pool", "List the entries of a pool.", _in_pool(Show), _POOL.list, reads=True),
)  # fmt: skip
TEAM_TOOLS = (
    Tool("share_finding", "Write to the team's room, which other users read: never anything private.", Keep,
         _TEAM.keep),
    Tool("read_shared", "Read an entry of the team's room.", ByKey, _TEAM.read, reads=True),
    Tool("search_shared", "Search the team's room by meaning.", Look, _TEAM.search, reads=True),
    Tool("list_shared", "List the team's room.", Show, _TEAM.list, reads=True),
)  # fmt: skip
