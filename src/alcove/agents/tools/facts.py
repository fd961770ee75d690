"""Facts: passing details about a user, found by meaning; a new one may evict the oldest."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Annotated

from msgspec import Meta

from alcove.agents.tools import answers
from alcove.agents.tools.answers import Answer
from alcove.agents.tools.tool import Content, Key, Limit, MinRelevance, Query, Tool, make_tool
from alcove.agents.tools.turn import Room, Turn
from alcove.core import validation
from alcove.core.errors import NotFound, quote_name
from alcove.core.records import Entry, EvictOldest, Memory, Put

_MAX_EVICTED = 10
"""Facts that one new fact evicts at most, where another agent left too many."""
_EVICTED_CHARACTERS = 200
"""Characters shown of an evicted fact."""
ReplacedKey = Annotated[str, Meta(min_length=1, max_length=1024, description="The key of a fact to replace.")]


def learn_fact(turn: Turn, content: Content, key: ReplacedKey | None = None) -> Answer:
    room, value = turn.room(turn.rooms.facts), {"content": content}
    max_facts = turn.rooms.agent.memory.facts.max_facts
    key = key or _choose_key(room, content)
    excess = room.size() + 1 - max_facts
    eviction = EvictOldest(namespace=room.namespace, key=key, most=max_facts)
    put = Put(namespace=room.namespace, key=key, value=value, index=value)
    operations = [*[eviction] * min(max(excess, 1), _MAX_EVICTED), put]
    *evictions, entry = room.memories.writer.batch(room.principal, operations)
    assert isinstance(entry, Entry)
    evicted = [fact for fact in evictions if isinstance(fact, Memory)]
    text = f"Learned it as {quote_name(key)}."
    if evicted:
        contents = (fact.value.get("content", fact.value) for fact in evicted)
        values = "; ".join(answers.format_value(content, _EVICTED_CHARACTERS) for content in contents)
        text += f" There is room for {max_facts} facts, so the oldest is forgotten: {values}."
    return Answer({"key": key, "version": entry.revision, "evicted": [fact.key for fact in evicted]}, text)


def _choose_key(room: Room, content: str) -> str:
    """The key of the fact with the same content, or a key that depends on the content alone.

    So a fact that is learned twice, by any agent and at the same moment, is stored once. If another fact has
    been put under that key since, the next one is taken.
    """
    digest = hashlib.sha256(validation.encode_text(content, "content"))
    same_content = {"content": content}
    if same := room.memories.searcher.list(
        room.principal, room.namespace, filter=same_content, limit=1, exact=True
    ):
        return same[0].key
    while True:
        fact = room.get(key := f"fact-{digest.hexdigest()[:16]}")
        if fact is None or fact.value.get("content") == content:
            return key
        digest.update(b"again")


def recall_facts(turn: Turn, query: Query, limit: Limit = 5, min_relevance: MinRelevance = None) -> Answer:
    search = partial(
        turn.room(turn.rooms.facts).search, query=query, min_relevance=min_relevance, unranked=True
    )
    return answers.search_answer(turn.recalls.spend(turn.rooms, limit, search))


def forget_fact(turn: Turn, key: Key) -> Answer:
    if not turn.room(turn.rooms.facts).delete(key):
        raise NotFound(f"there is no fact {quote_name(key)}; recall_facts finds their keys")
    return Answer({"key": key, "forgotten": True}, f"Forgot the fact {quote_name(key)}.")


def fact_tools(max_facts: int) -> list[Tool]:
    """The tools of an agent that stores up to `max_facts` facts."""
    return [make_tool(run, words={"max_facts": max_facts}) for run in (learn_fact, recall_facts, forget_fact)]
