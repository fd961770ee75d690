"""What an agent remembers of its user, and nobody else's agent or user ever sees."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from alcove.agents.rooms import short
from alcove.agents.tools.base import Answer, Tool, Turn
from alcove.agents.tools.keyed import (
    MOST,
    ByKey,
    Keep,
    Look,
    Show,
    keep,
    look,
    missing,
    read,
    several,
    show,
    some,
    told,
)
from alcove.core.errors import NotFound
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import Delete, Deletion, Memory, Result

_WHERE = "in your private memory of this user"
_AT_ONCE = 500
_MOST_LOOKED_AT = 10 * MOST


def _room(turn: Turn) -> Namespace:
    assert turn.rooms.private is not None
    return turn.rooms.private


def remember(turn: Turn, given: Keep) -> Answer:
    return keep(turn, _room(turn), given.key, given.content, _WHERE)


def recall(turn: Turn, given: ByKey) -> Answer:
    try:
        return read(turn, _room(turn), given.key, _WHERE, "list_memories")
    except NotFound:
        if older := _older(turn).get(given.key):
            return told(older)
        raise


def search_memory(turn: Turn, given: Look) -> Answer:
    answer = look(turn, _room(turn), given.query, given.limit, "recall")
    if not answer.result["items"] and (older := _older(turn)):
        newest = {memory.id for memory in older.values()}
        found = (memory for memory in _found_before(turn, given.query) if memory.id in newest)
        return several([*islice(found, given.limit)], "recall")
    return answer


def forget(turn: Turn, given: ByKey) -> Answer:
    """Deletes what is under a key, in older rooms too, so that nothing older comes back in its place."""
    room, key = _room(turn), given.key
    deletes = [Delete(namespace=room, key=key)]
    for older in left_behind(turn):
        if older.key == key:
            deletes.append(Delete(namespace=older.namespace, key=key, expected_revision=older.revision))
    who = turn.within(room if len(deletes) == 1 else _before(turn)[1])
    done: list[Result] = []
    for start in range(0, len(deletes), _AT_ONCE):
        done += turn.memories.batch(who, deletes[start : start + _AT_ONCE])
    if not any(isinstance(each, Deletion) and each.deleted for each in done):
        raise missing(key, _WHERE, "list_memories")
    return Answer({"key": key, "forgotten": True}, f"Forgot {short(key)}.")


def list_memories(turn: Turn, given: Show) -> Answer:
    answer = show(turn, _room(turn), given.limit, given.offset, "recall")
    if answer.result["items"]:
        return answer
    older = sorted(_older(turn).values(), key=lambda memory: memory.created_at, reverse=True)
    found, more = some(older[given.offset :], given.limit)
    return several(found, "recall", given.offset + len(found) if more else None)


def left_behind(turn: Turn) -> Iterator[Memory]:
    """What this user wrote into rooms from before users had their own."""
    return turn.memories.export(*_before(turn), unowned=True) if turn.rooms.fallback else iter(())


def _older(turn: Turn) -> dict[str, Memory]:
    """The newest that was left behind under each key, while the private room is empty."""
    room = _room(turn)
    if turn.memories.list(turn.within(room), room, limit=1, exact=True):
        return {}
    return {memory.key: memory for memory in sorted(left_behind(turn), key=lambda each: each.created_at)}


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


TOOLS = (
    Tool("remember", "Keep a note about this user, in place of what its key held. Only you see it.", Keep,
         remember, choose="For your own work: this user's other agents never learn it."),
    Tool("recall", "Read a note about this user.", ByKey, recall),
    Tool("search_memory", "Search your notes about this user by meaning.", Look, search_memory),
    Tool("forget", "Delete a note about this user.", ByKey, forget),
    Tool("list_memories", "List your notes about this user.", Show, list_memories),
)  # fmt: skip
