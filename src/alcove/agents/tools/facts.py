"""Facts: what an agent decides to keep of a user, recalled by meaning; the oldest make room."""

from __future__ import annotations

import hashlib
from typing import Annotated

from msgspec import Meta, Struct

from alcove.agents.rooms import short
from alcove.agents.tools.base import Answer, Tool, Turn
from alcove.agents.tools.keyed import ByKey, Content, Look, look
from alcove.agents.tools.texts import quoted
from alcove.core.errors import NotFound
from alcove.core.namespace import Namespace
from alcove.core.records import Delete, Entry, Evict, Memory, Put
from alcove.store import validation

_AT_ONCE = 10
"""Facts that make room for one at most, where another agent left too many."""
_NAMED = 200
"""Characters shown of a fact that made room."""


Replaced = Annotated[str, Meta(min_length=1, max_length=1024, description="The key of a fact to replace.")]


class Learn(Struct):
    content: Content
    key: Replaced | None = None


def _room(turn: Turn) -> Namespace:
    assert turn.rooms.facts is not None
    return turn.rooms.facts


def learn_fact(turn: Turn, given: Learn) -> Answer:
    room, content, most = _room(turn), {"content": given.content}, turn.rooms.agent.memory.facts.max_facts
    who = turn.within(room)
    key = given.key or _key(turn, given.content)
    excess = turn.memories.count(who, room, exact=True) + 1 - most
    making_room = [Evict(namespace=room, key=key, most=most)] * min(max(excess, 1), _AT_ONCE)
    put = Put(namespace=room, key=key, value=content, index=content)
    *gone, entry = turn.memories.batch(who, [*making_room, put])
    assert isinstance(entry, Entry)
    evicted = [fact for fact in gone if isinstance(fact, Memory)]
    text = f"Learned it as {short(key)}."
    if evicted:
        named = "; ".join(quoted(fact.value.get("content", fact.value), _NAMED) for fact in evicted)
        text += f" There is room for {most} facts, so the oldest is forgotten: {named}."
    keys = [fact.key for fact in evicted]
    return Answer({"key": key, "version": entry.revision, "evicted": keys}, text)


def _key(turn: Turn, content: str) -> str:
    """Where a fact goes that was given no key: where the same one is, or to a key that it always gets.

    So a fact that is learned twice, by whoever and at whatever moment, is kept once. Where another was put
    under that key since, it gets the next one.
    """
    room, digest = _room(turn), hashlib.sha256(validation.text(content, "content"))
    who = turn.within(room)
    if same := turn.memories.list(who, room, filter={"content": content}, limit=1, exact=True):
        return same[0].key
    while True:
        there = turn.memories.get(who, room, key := f"fact-{digest.hexdigest()[:16]}")
        if there is None or there.value.get("content") == content:
            return key
        digest.update(b"again")


def recall_facts(turn: Turn, given: Look) -> Answer:
    return look(turn, _room(turn), given.query, given.limit)


def forget_fact(turn: Turn, given: ByKey) -> Answer:
    room = _room(turn)
    if not turn.memories.delete(turn.within(room), Delete(namespace=room, key=given.key)).deleted:
        raise NotFound(f"there is no fact {short(given.key)}; recall_facts finds their keys")
    return Answer({"key": given.key, "forgotten": True}, f"Forgot the fact {short(given.key)}.")


def fact_tools(most: int) -> tuple[Tool, ...]:
    """The tools of an agent that keeps so many facts."""
    return (
        Tool("learn_fact", f"Keep a fact about this user, to find by meaning. Only the newest {most} stay.",
             Learn, learn_fact, choose="For passing details: what must last gets lost here."),
        Tool("recall_facts", "Find facts by meaning.", Look, recall_facts, reads=True),
        Tool("forget_fact", "Delete a fact by its key.", ByKey, forget_fact),
    )  # fmt: skip
