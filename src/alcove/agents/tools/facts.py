"""Facts: passing details about a user, found by meaning; a new one may evict the oldest."""

from __future__ import annotations

import hashlib
from typing import Annotated

from msgspec import Meta

from alcove.agents.tools.answers import Answer, format_value, search_answer
from alcove.agents.tools.arguments import Content, Key, Limit, MinRelevance, Query
from alcove.agents.tools.tool import Tool
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
    excess = room.memories.reader.count(room.principal, room.namespace, exact=True) + 1 - max_facts
    eviction = EvictOldest(namespace=room.namespace, key=key, most=max_facts)
    put = Put(namespace=room.namespace, key=key, value=value, index=value)
    operations = [*[eviction] * min(max(excess, 1), _MAX_EVICTED), put]
    *evictions, entry = room.memories.writer.batch(room.principal, operations)
    assert isinstance(entry, Entry)
    evicted = [fact for fact in evictions if isinstance(fact, Memory)]
    text = f"Learned it as {quote_name(key)}."
    if evicted:
        contents = (fact.value.get("content", fact.value) for fact in evicted)
        values = "; ".join(format_value(content, _EVICTED_CHARACTERS) for content in contents)
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


def recall_facts(
    turn: Turn,
    query: Query,
    limit: Limit = 5,
    min_relevance: MinRelevance | None = None,
    min_score: MinRelevance | None = None,
) -> Answer:
    room, least = turn.room(turn.rooms.facts), validation.parse_min_relevance(min_relevance, min_score)
    hits = turn.recalls.spend(
        turn.rooms,
        limit,
        lambda max_hits: room.search(query=query, limit=max_hits, min_relevance=least, unranked=True),
    )
    return search_answer(hits)


def forget_fact(turn: Turn, key: Key) -> Answer:
    if not turn.room(turn.rooms.facts).delete(key):
        raise NotFound(f"there is no fact {quote_name(key)}; recall_facts finds their keys")
    return Answer({"key": key, "forgotten": True}, f"Forgot the fact {quote_name(key)}.")


def fact_tools(max_facts: int) -> tuple[Tool, ...]:
    """The tools of an agent that stores up to `max_facts` facts."""
    return (
        Tool("learn_fact", f"Keep a fact about this user, to find by meaning. Only the newest {max_facts} "
             "stay.", learn_fact, when_to_use="For passing details: what must last gets lost here."),
        Tool("recall_facts", "Find facts by meaning.", recall_facts, is_read_only=True),
        Tool("forget_fact", "Delete a fact by its key.", forget_fact),
    )  # fmt: skip
