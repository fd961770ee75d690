"""Facts: what an agent decides to keep of a user, recalled by meaning; the oldest make room."""

from __future__ import annotations

import heapq
import secrets
from typing import Annotated

from msgspec import Meta, Struct

from alcove.agents.rooms import short
from alcove.agents.tools.base import Answer, Tool, Turn
from alcove.agents.tools.keyed import Content, Limit, Query, look
from alcove.errors import NotFound
from alcove.namespace import Namespace
from alcove.records import Delete, Entry, Put

_PAGE = 1000
_AT_ONCE = 100


class Learn(Struct):
    content: Content
    key: (
        Annotated[str, Meta(min_length=1, max_length=1024, description="To replace a fact, its key.")] | None
    ) = None


class Recall(Struct):
    query: Query
    limit: Limit = 5


class Forget(Struct):
    key: Annotated[str, Meta(min_length=1, description="The key of the fact.")]


def _room(turn: Turn) -> Namespace:
    assert turn.rooms.facts is not None
    return turn.rooms.facts


def learn_fact(turn: Turn, given: Learn) -> Answer:
    key = given.key or f"fact-{secrets.token_hex(8)}"
    room, content = _room(turn), {"content": given.content}
    who = turn.within(room)
    known = given.key is not None and turn.memories.get(who, room, key) is not None
    evicted = [] if known else _oldest(turn)
    put = Put(namespace=room, key=key, value=content, index=content)
    entry, *_ = turn.memories.batch(who, [put, *(Delete(namespace=room, key=each) for each in evicted)])
    text = f"Learned it as {short(key)}." + (f" Forgot the oldest: {', '.join(evicted)}." if evicted else "")
    return Answer({"key": key, "version": entry.revision, "evicted": evicted}, text)  # type: ignore[union-attr]


def _oldest(turn: Turn) -> list[str]:
    """The facts that were written longest ago, as many as must go for one more to come."""
    room, most = _room(turn), turn.rooms.agent.memory.facts.max_facts
    who = turn.within(room)
    excess = turn.memories.count(who, room) + 1 - most
    if excess <= 0:
        return []
    facts: list[Entry] = []
    while page := turn.memories.list(who, room, limit=_PAGE, offset=len(facts)):
        facts += page
    own = (fact for fact in facts if fact.namespace == room)
    return [
        fact.key for fact in heapq.nsmallest(min(excess, _AT_ONCE), own, key=lambda fact: fact.created_at)
    ]


def recall_facts(turn: Turn, given: Recall) -> Answer:
    return look(turn, _room(turn), given.query, given.limit)


def forget_fact(turn: Turn, given: Forget) -> Answer:
    room = _room(turn)
    if not turn.memories.delete(turn.within(room), Delete(namespace=room, key=given.key)).deleted:
        raise NotFound(f"there is no fact {short(given.key)}; recall_facts finds their keys")
    return Answer({"key": given.key, "forgotten": True}, f"Forgot the fact {short(given.key)}.")


TOOLS = (
    Tool("learn_fact", "Keep one fact about this user. Give its key to replace an earlier one.", Learn,
         learn_fact),
    Tool("recall_facts", "Find facts about this user, by meaning.", Recall, recall_facts),
    Tool("forget_fact", "Delete a fact about this user by its key.", Forget, forget_fact),
)  # fmt: skip
