"""Rooms in which content lies under keys: how to put, read, search and list it, and say so in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from alcove.agents.rooms import short
from alcove.agents.tools.base import Answer, Turn
from alcove.agents.tools.texts import READ, line, listed
from alcove.core.errors import NotFound
from alcove.core.namespace import Namespace
from alcove.core.records import Memory, Put
from alcove.store.portions import portion

MOST = 100
"""Memories that a call gives at most, as a search of the service does."""
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


def keep(turn: Turn, room: Namespace, key: str, content: str, where: str) -> Answer:
    put = Put(namespace=room, key=key, value={"content": content}, index={"content": content})
    entry = turn.memories.put(turn.within(room), put)
    return Answer({"key": key, "version": entry.revision}, f"Stored {short(key)} {where}.")


def read(turn: Turn, room: Namespace, key: str, where: str, hint: str) -> Answer:
    found = turn.memories.get(turn.within(room), room, key)
    if found is None:
        raise missing(key, where, hint)
    return told(found)


def missing(key: str, where: str, hint: str) -> NotFound:
    return NotFound(f"there is nothing under {short(key)} {where}; {hint} shows what there is")


def look(turn: Turn, room: Namespace, query: str, limit: int, reader: str | None = None) -> Answer:
    """What fits a query best; `reader` is the tool that shows a long content whole."""
    found = turn.memories.search(turn.within(room), room, query=query, limit=limit, exact=_alone(room))
    answer = several(found, reader)
    if found.degraded:
        answer.result["degraded"] = found.degraded
    return answer


def show(turn: Turn, room: Namespace, limit: int, offset: int, reader: str) -> Answer:
    who, exact = turn.within(room), _alone(room)
    found = turn.memories.search(who, room, limit=min(limit + 1, MOST), offset=offset, exact=exact)
    after = offset + min(limit, len(found))
    more = (
        found.next_offset
        or len(found) > limit
        or (len(found) == MOST and turn.memories.list(who, room, limit=1, offset=after, exact=exact))
    )
    return several(found[:limit], reader, after if more else None)


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
