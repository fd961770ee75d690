"""What an agent remembers of its user, and nobody else's agent or user ever sees."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from alcove.agents.rooms import short
from alcove.agents.tools.base import Answer, Tool, Turn
from alcove.agents.tools.keyed import (
    Content,
    Key,
    Limit,
    Query,
    keep,
    listed,
    look,
    missing,
    read,
    show,
    told,
)
from alcove.errors import NotFound
from alcove.namespace import Namespace
from alcove.principal import Principal
from alcove.records import Delete, Memory

_WHERE = "in your private memory of this user"


class Remember(Struct):
    key: Key
    content: Content


class ByKey(Struct):
    key: Key


class Look(Struct):
    query: Query
    limit: Limit = 5


class Show(Struct):
    limit: Annotated[int, Meta(ge=1, le=100, description="At most so many.")] = 20


def _room(turn: Turn) -> Namespace:
    assert turn.rooms.private is not None
    return turn.rooms.private


def remember(turn: Turn, given: Remember) -> Answer:
    return keep(turn, _room(turn), given.key, given.content, _WHERE)


def recall(turn: Turn, given: ByKey) -> Answer:
    try:
        return read(turn, _room(turn), given.key, _WHERE, "list_memories")
    except NotFound:
        if older := _older(turn).get(given.key):
            return told(older)
        raise


def search_memory(turn: Turn, given: Look) -> Answer:
    answer = look(turn, _room(turn), given.query, given.limit)
    if not answer.result["items"] and (older := _fallback(turn)):
        newest = {memory.id for memory in _older(turn).values()}
        who, room = older
        found = turn.memories.search(who, room, query=given.query, limit=100)
        return listed([memory for memory in found if memory.id in newest][: given.limit])
    return answer


def forget(turn: Turn, given: ByKey) -> Answer:
    room = _room(turn)
    done = turn.memories.delete(turn.within(room), Delete(namespace=room, key=given.key))
    if not done.deleted:
        raise missing(given.key, _WHERE, "list_memories")
    return Answer({"key": given.key, "forgotten": True}, f"Forgot {short(given.key)}.")


def list_memories(turn: Turn, given: Show) -> Answer:
    answer = show(turn, _room(turn), given.limit)
    if answer.result["items"]:
        return answer
    older = sorted(_older(turn).values(), key=lambda memory: memory.created_at, reverse=True)
    return listed(older[: given.limit])


def _older(turn: Turn) -> dict[str, Memory]:
    """What lies in rooms from before users had their own, newest of each key, while this one is empty."""
    newest: dict[str, Memory] = {}
    if older := _fallback(turn):
        for memory in turn.memories.export(*older):
            known = newest.get(memory.key)
            if known is None or memory.created_at > known.created_at:
                newest[memory.key] = memory
    return newest


def _fallback(turn: Turn) -> tuple[Principal, Namespace] | None:
    """Who may look where for older memories; None once the private room holds anything."""
    older, room = turn.rooms.fallback, _room(turn)
    if older is None or turn.memories.count(turn.within(room), room):
        return None
    authors = (older.written_by, None) if older.authorless else (older.written_by,)
    return turn.within(older.namespace, written_by=authors), older.namespace


TOOLS = (
    Tool("remember", "Keep something about this user for later conversations, under a key of your choice. "
         "An existing key is replaced. Only you can read it, and only with this user.", Remember, remember),
    Tool("recall", "Read back what you remembered about this user under a key.", ByKey, recall),
    Tool("search_memory", "Search what you remembered about this user, by meaning.", Look, search_memory),
    Tool("forget", "Delete what you remembered about this user under a key.", ByKey, forget),
    Tool("list_memories", "List what you remembered about this user.", Show, list_memories),
)  # fmt: skip
