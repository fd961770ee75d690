"""Memories about a user: facts, of which a new one may evict the oldest, and long-term memories.

Long-term memories have types and tags, and are stored and forgotten only on purpose.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Literal

from msgspec import Meta

from alcove.agents.rooms import Room, Turn, content_id, distinct, take_answer
from alcove.agents.specs.records import MemoryScope
from alcove.agents.tools import answers
from alcove.agents.tools.answers import Answer
from alcove.agents.tools.tool import HIDDEN_CHOICES, Content, Key, Limit, MinRelevance, Query, Tool, make_tool
from alcove.core import validation
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound, quote_name
from alcove.core.records import Entry, EvictOldest, Memory, Put, SearchResults
from alcove.core.unicode import normalize

_MAX_EVICTED = 10
"""Facts that one new fact evicts at most, where another agent left too many."""
_EVICTED_CHARACTERS = 200
"""Characters shown of an evicted fact."""
ReplacedKey = Annotated[str, Meta(min_length=1, max_length=1024, description="The key of a fact to replace.")]
MAX_TAGS = 8
MAX_TAG_CHARACTERS = 40
MIN_SIMILARITY = 0.6
"""The score from which another memory is shown as similar; only a person can say whether it is the same."""
_MAX_SIMILAR, _MAX_HITS = 3, 100
_INDEX_WAIT_SECONDS = 2.0
MemoryType = Literal["fact", "preference", "relationship", "instruction"]
"""To add a type, add its name; contexts treat `instruction` in a way of its own (`context.py`)."""
Tags = Annotated[list[str], Meta(description="At most 8 short words.")]
_SCOPES = "agent: you alone; all: this user's other agents too, never other users."
Scope = Annotated[MemoryScope, Meta(description=_SCOPES, extra_json_schema={HIDDEN_CHOICES: ["user"]})]
Id = Annotated[str, Meta(min_length=1, description="Its id.")]


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


def memory_remember(
    turn: Turn,
    content: Content,
    type: Annotated[MemoryType, Meta(description="Its kind.")] = "fact",
    tags: Tags = [],  # noqa: B006
    scope: Scope = "agent",
) -> Answer:
    scope = _scope_name(scope)
    validation.encode_index({"content": content}, turn.memories.settings)  # checks its size first
    room, id = turn.room(turn.rooms.long_term[scope]), f"{scope}-{_digest(content)}"
    memory, tags = room.get(id), _clean_tags(tags)
    if memory:
        tags = [*dict.fromkeys([*tags, *_stored_tags(memory)])][:MAX_TAGS]
    value = {"content": content, "type": type, "tags": tags, "scope": scope}
    similar = _find_similar(room, room.put(id, value, {"content": content}), content)
    text = "You knew that already; updated it." if memory else "Remembered it."
    if similar:
        text += "\nSimilar, so look whether they still hold:\n" + answers.format_list(map(_format, similar))
    results = [_to_result(each) for each in similar]
    return Answer({"memory_id": id, "updated": memory is not None, "similar": results}, text)


def _scope_name(scope: MemoryScope) -> MemoryScope:
    """The name of a scope in rooms and ids: `user` is another name for `all`."""
    return "all" if scope == "user" else scope


def _find_similar(room: Room, entry: Entry, content: str) -> list[Memory]:
    """Older memories that may say the same; empty if the search fails, because the write has succeeded."""
    with suppress(AlcoveError):
        room.memories.writer.wait_for_index(
            entry, _INDEX_WAIT_SECONDS
        )  # then older memories are indexed, too
        hits = room.search(query=content, limit=_MAX_SIMILAR + 1)
        similar = [hit for hit in hits if hit.key != entry.key and (hit.score or 0) >= MIN_SIMILARITY]
        return similar[:_MAX_SIMILAR]
    return []


def memory_recall(
    turn: Turn,
    query: Query,
    type: Annotated[MemoryType | None, Meta(description="Only this kind.")] = None,
    tags: Annotated[list[str] | None, Meta(description="With any of these tags.")] = None,
    limit: Limit = 5,
    min_relevance: MinRelevance = None,
) -> Answer:
    conditions: dict[str, object] = {"type": type} if type else {}
    if tags:
        conditions["tags"] = {"in": _clean_tags(tags)}
    search = {"query": query, "min_relevance": min_relevance, "filter": conditions, "unranked": True}
    hits = turn.recalls.spend(turn.rooms, limit, partial(_search_scopes, turn, search))
    return answers.search_answer(hits, _to_result, _format)


def _search_scopes(turn: Turn, search: dict[str, Any], *, limit: int) -> SearchResults:
    """The best memories of both long-term scopes; equal content is one hit.

    Each scope is searched for the same number of hits whatever the limit is: the order of merged searches
    depends on their length, and a larger limit must only add to the hits of a smaller one.
    """
    pages = [turn.room(room).search(**search, limit=_MAX_HITS) for room in turn.rooms.long_term.values()]
    memories, is_cut = take_answer(distinct(merge_by_relevance(pages)), limit)
    hits = SearchResults(memories)
    hits.degraded = next((page.degraded for page in pages if page.degraded), None)
    has_more = is_cut or any(page.next_offset is not None for page in pages)
    hits.next_offset = len(hits) if has_more and len(hits) < limit else None
    return hits


def merge_by_relevance(pages: Sequence[Sequence[Memory]]) -> Iterator[Memory]:
    """The hits of several searches, the most relevant first; each search's own order stays.

    So that this order cannot hold a relevant hit back, a hit counts as much as the best of those after it.
    """
    ranked = []
    for page in pages:
        relevances = (-1.0 if hit.relevance is None else hit.relevance for hit in reversed(page))
        ranked.append(zip([*accumulate(relevances, max)][::-1], page, strict=True))
    return (memory for _, memory in heapq.merge(*ranked, key=lambda pair: -pair[0]))


def memory_forget(turn: Turn, memory_id: Id) -> Answer:
    rooms = {scope: turn.room(room) for scope, room in turn.rooms.long_term.items()}
    room = rooms.get(memory_id.partition("-")[0])
    memory = room and room.get(memory_id)
    copies = [*_find_copies(memory, rooms.values())] if memory else []
    for copy_room, key in copies:  # before the memory itself: if this fails, its id still finds them
        copy_room.delete(key)
    if room is None or not room.delete(memory_id):
        raise NotFound(f"there is no memory {quote_name(memory_id)}; memory_recall gives the ids")
    result: dict[str, Any] = {"memory_id": memory_id, "forgotten": True}
    if not copies:
        return Answer(result, "Forgot it.")
    keys = [key for _, key in copies]
    text = f"Forgot it, and the same content under {', '.join(map(answers.format_name, keys))}."
    return Answer({**result, "also_forgotten": keys}, text)


def _find_copies(memory: Memory, rooms: Iterable[Room]) -> Iterator[tuple[Room, str]]:
    """The room and key of each other memory with the same content: recall shows only one of them."""
    content = content_id(memory)
    for room in rooms:
        for other in room.memories.reader.scan(room.principal, room.namespace, exact=True):
            if other.id != memory.id and content_id(other) == content:
                yield room, other.key


def _digest(content: str) -> str:
    """The same digest for contents that differ only in case, spacing or punctuation."""
    folded = normalize("NFKC", content).casefold()
    words = re.findall(r"\w+", folded)
    return hashlib.sha256(validation.encode_text(" ".join(words or [folded]), "content")).hexdigest()[:20]


def _clean_tags(tags: list[str]) -> list[str]:
    words = dict.fromkeys(re.sub(r"[\s_]+", "-", tag.strip().lower()) for tag in tags)
    clean = [word for word in words if word]
    if len(clean) > MAX_TAGS:
        raise InvalidRequest("tags", f"at most {MAX_TAGS}")
    if any(len(tag) > MAX_TAG_CHARACTERS for tag in clean):
        raise InvalidRequest("tags", f"words of at most {MAX_TAG_CHARACTERS} characters")
    return clean


def _stored_tags(memory: Memory) -> list[str]:
    """The tags of a memory that a user may have written without a tool, and so in any form."""
    tags = memory.value.get("tags")
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def _to_result(memory: Memory) -> dict[str, Any]:
    id_and_time = {"memory_id": memory.key, "written_at": memory.created_at}
    return {**memory.value, **id_and_time, **answers.scores(memory)}


def _format(memory: Memory) -> str:
    type = memory.value.get("type", "fact")
    type_note = answers.format_name(type) if isinstance(type, str) else "fact"
    return answers.format_memory(memory, *answers.relevance_notes(memory), type_note)


def long_term_tools(scope: MemoryScope) -> list[Tool]:
    """The tools of an agent with long-term memory; `scope` is the default of `memory_remember`."""
    runs = (memory_remember, memory_recall, memory_forget)
    return [make_tool(run, defaults=(("scope", _scope_name(scope)),)) for run in runs]
