"""What agents keep of a user and find by meaning.

Facts are passing details, of which the oldest make room. Long-term memory is typed and tagged, and saved and
forgotten only on purpose.
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

from alcove.agents.specs.problems import quote_name
from alcove.agents.specs.records import MemoryScope
from alcove.agents.tools.base import (
    UNTOLD_NAMES,
    Answer,
    Room,
    Tool,
    Turn,
    doubts,
    line,
    listed,
    name,
    quoted,
    scored,
    search_answer,
    some,
)
from alcove.agents.tools.private_pool_team import MOST, Content, Key, Limit, MinRelevance, Query
from alcove.core import validation
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound
from alcove.core.records import Entry, EvictOldest, Memory, Put, SearchResults
from alcove.core.text import normalize

_AT_ONCE = 10
"""Facts that make room for one at most, where another agent left too many."""
_NAMED = 200
"""Characters shown of a fact that made room."""
MOST_TAGS = 8
LONGEST_TAG = 40
ALIKE = 0.6
"""How near another memory is to be told of as similar; only a person can say whether it is the same."""
_SIMILAR = 3
_PATIENCE = 2.0
Replaced = Annotated[str, Meta(min_length=1, max_length=1024, description="The key of a fact to replace.")]
Type = Literal["fact", "preference", "relationship", "instruction"]
Tags = Annotated[list[str], Meta(description="At most 8 short words.")]
Scope = Annotated[
    MemoryScope,
    Meta(
        description="agent: you alone; all: this user's other agents too, never other users.",
        extra_json_schema={UNTOLD_NAMES: ["user"]},
    ),
]
Id = Annotated[str, Meta(min_length=1, description="Its id.")]


def learn_fact(turn: Turn, content: Content, key: Replaced | None = None) -> Answer:
    room, value = turn.room(turn.rooms.facts), {"content": content}
    most = turn.rooms.agent.memory.facts.max_facts
    key = key or _key(room, content)
    excess = room.memories.count(room.who, room.at, exact=True) + 1 - most
    making_room = [EvictOldest(namespace=room.at, key=key, most=most)] * min(max(excess, 1), _AT_ONCE)
    put = Put(namespace=room.at, key=key, value=value, index=value)
    *gone, entry = room.memories.batch(room.who, [*making_room, put])
    assert isinstance(entry, Entry)
    evicted = [fact for fact in gone if isinstance(fact, Memory)]
    text = f"Learned it as {quote_name(key)}."
    if evicted:
        named = "; ".join(quoted(fact.value.get("content", fact.value), _NAMED) for fact in evicted)
        text += f" There is room for {most} facts, so the oldest is forgotten: {named}."
    return Answer({"key": key, "version": entry.revision, "evicted": [fact.key for fact in evicted]}, text)


def _key(room: Room, content: str) -> str:
    """Where a fact goes that was given no key: where the same one is, or to a key that it always gets.

    So a fact that is learned twice, by whoever and at whatever moment, is kept once. Where another was put
    under that key since, it gets the next one.
    """
    digest = hashlib.sha256(validation.encode_text(content, "content"))
    if same := room.memories.list(room.who, room.at, filter={"content": content}, limit=1, exact=True):
        return same[0].key
    while True:
        there = room.get(key := f"fact-{digest.hexdigest()[:16]}")
        if there is None or there.value.get("content") == content:
            return key
        digest.update(b"again")


def recall_facts(
    turn: Turn,
    query: Query,
    limit: Limit = 5,
    min_relevance: MinRelevance | None = None,
    min_score: MinRelevance | None = None,
) -> Answer:
    room = turn.room(turn.rooms.facts)
    search = partial(
        room.search, query=query, min_relevance=min_relevance, min_score=min_score, unranked=True
    )
    return search_answer(turn.recalls.spend(turn.rooms, limit, lambda most: search(limit=most)))


def forget_fact(turn: Turn, key: Key) -> Answer:
    if not turn.room(turn.rooms.facts).delete(key):
        raise NotFound(f"there is no fact {quote_name(key)}; recall_facts finds their keys")
    return Answer({"key": key, "forgotten": True}, f"Forgot the fact {quote_name(key)}.")


def memory_remember(
    turn: Turn,
    content: Content,
    type: Annotated[Type, Meta(description="Its kind.")] = "fact",
    tags: Tags = [],  # noqa: B006
    scope: Scope = "agent",
) -> Answer:
    scope = _scope_name(scope)
    validation.encode_index({"content": content}, turn.memories.settings)  # checks its size first
    room, id = turn.room(turn.rooms.long_term[scope]), f"{scope}-{_digest(content)}"
    known, tags = room.get(id), _tags(tags)
    if known:
        tags = [*dict.fromkeys([*tags, *_kept_tags(known)])][:MOST_TAGS]
    value = {"content": content, "type": type, "tags": tags, "scope": scope}
    similar = _similar(room, room.put(id, value, {"content": content}), content)
    updated = known is not None
    text = "You knew that already; updated it." if updated else "Remembered it."
    if similar:
        text += "\nSimilar, so look whether they still hold:\n" + listed(map(_line, similar))
    return Answer({"memory_id": id, "updated": updated, "similar": [_shown(each) for each in similar]}, text)


def _scope_name(scope: MemoryScope) -> MemoryScope:
    """The name of a scope in rooms and ids: `user` is another word for `all`."""
    return "all" if scope == "user" else scope


def _similar(room: Room, entry: Entry, content: str) -> list[Memory]:
    """What was there already and may be about the same; it is advice, and no reason to fail what is done."""
    with suppress(AlcoveError):
        room.memories.wait_for_index(entry, _PATIENCE)  # then what came before it can be found, too
        near = room.search(query=content, limit=_SIMILAR + 1)
        return [each for each in near if each.key != entry.key and (each.score or 0) >= ALIKE][:_SIMILAR]
    return []


def memory_recall(
    turn: Turn,
    query: Query,
    type: Annotated[Type | None, Meta(description="Only this kind.")] = None,
    tags: Annotated[list[str] | None, Meta(description="With any of these tags.")] = None,
    limit: Limit = 5,
    min_relevance: MinRelevance | None = None,
    min_score: MinRelevance | None = None,
) -> Answer:
    conditions: dict[str, object] = {"type": type} if type else {}
    if tags:
        conditions["tags"] = {"in": _tags(tags)}
    search: dict[str, Any] = {"query": query, "min_relevance": min_relevance, "min_score": min_score}
    search |= {"filter": conditions, "unranked": True}
    best = turn.recalls.spend(turn.rooms, limit, partial(_search_scopes, turn, search))
    return search_answer(best, _shown, _line)


def _search_scopes(turn: Turn, search: dict[str, Any], limit: int) -> SearchResults:
    """The best memories of both long-term scopes; equal content is one entry and takes one place.

    Each scope is searched for as many as a call can give, whatever the limit: how two searches are merged
    depends on how far they go, and a larger limit must only add to what a smaller one gives.
    """
    pages = [turn.room(at).search(**search, limit=MOST) for at in turn.rooms.long_term.values()]
    merged = distinct(merge_by_relevance(pages))
    hits, is_cut = some(merged, limit)
    best = SearchResults(hits)
    best.degraded = next((page.degraded for page in pages if page.degraded), None)
    ends_early = is_cut or any(page.next_offset is not None for page in pages)
    best.next_offset = len(best) if ends_early and len(best) < limit else None
    return best


def merge_by_relevance(pages: Sequence[Sequence[Memory]]) -> Iterator[Memory]:
    """The hits of several searches, the most relevant first; each search's own order stays.

    So that this order cannot hold a relevant hit back, a hit counts as much as the best of those after it.
    """
    ranked = []
    for page in pages:
        relevances = (-1.0 if each.relevance is None else each.relevance for each in reversed(page))
        ranked.append(zip([*accumulate(relevances, max)][::-1], page, strict=True))
    return (memory for _, memory in heapq.merge(*ranked, key=lambda pair: -pair[0]))


def distinct(memories: Iterable[Memory]) -> list[Memory]:
    """The first memory of each content."""
    first: dict[str, Memory] = {}
    for memory in memories:
        first.setdefault(content_id(memory), memory)
    return [*first.values()]


def content_id(memory: Memory) -> str:
    """The same for long-term memories of equal content, in whichever scope they are.

    Not `_digest`: "likes C" and "likes C++" have the same one, and forgetting deletes all equal memories.
    """
    content = memory.value.get("content")
    return content if isinstance(content, str) else memory.id


def memory_forget(turn: Turn, memory_id: Id) -> Answer:
    rooms = {scope: turn.room(at) for scope, at in turn.rooms.long_term.items()}
    room = rooms.get(memory_id.partition("-")[0])
    memory = room and room.get(memory_id)
    copies = [*_copies(memory, rooms.values())] if memory else []
    for holding, key in copies:  # before the memory itself: if this fails, its id still finds them
        holding.delete(key)
    if room is None or not room.delete(memory_id):
        raise NotFound(f"there is no memory {quote_name(memory_id)}; memory_recall gives the ids")
    result: dict[str, Any] = {"memory_id": memory_id, "forgotten": True}
    if not copies:
        return Answer(result, "Forgot it.")
    keys = [key for _, key in copies]
    text = f"Forgot it, and the same content under {', '.join(map(name, keys))}."
    return Answer({**result, "also_forgotten": keys}, text)


def _copies(memory: Memory, rooms: Iterable[Room]) -> Iterator[tuple[Room, str]]:
    """Where else the content of a long-term memory is: recall shows only one of them."""
    wanted = content_id(memory)
    for room in rooms:
        for each in room.everything():
            if each.id != memory.id and content_id(each) == wanted:
                yield room, each.key


def _digest(content: str) -> str:
    """The same for contents that differ only in case, spacing or punctuation."""
    folded = normalize("NFKC", content).casefold()
    words = re.findall(r"\w+", folded)
    return hashlib.sha256(validation.encode_text(" ".join(words or [folded]), "content")).hexdigest()[:20]


def _tags(tags: list[str]) -> list[str]:
    found = dict.fromkeys(re.sub(r"[\s_]+", "-", tag.strip().lower()) for tag in tags)
    short_tags = [tag for tag in found if tag]
    if len(short_tags) > MOST_TAGS:
        raise InvalidRequest("tags", f"at most {MOST_TAGS}")
    if any(len(tag) > LONGEST_TAG for tag in short_tags):
        raise InvalidRequest("tags", f"words of at most {LONGEST_TAG} characters")
    return short_tags


def _shown(memory: Memory) -> dict[str, Any]:
    return {**memory.value, "memory_id": memory.key, "written_at": memory.created_at, **scored(memory)}


def _kept_tags(memory: Memory) -> list[str]:
    """The tags it has; users may write to this room themselves, and whatever they like."""
    tags = memory.value.get("tags")
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def _line(memory: Memory) -> str:
    kind = memory.value.get("type", "fact")
    return line(memory, *doubts(memory), name(kind) if isinstance(kind, str) else "fact")


def fact_tools(most: int) -> tuple[Tool, ...]:
    """The tools of an agent that keeps so many facts."""
    return (
        Tool("learn_fact", f"Keep a fact about this user, to find by meaning. Only the newest {most} stay.",
             learn_fact, choose="For passing details: what must last gets lost here."),
        Tool("recall_facts", "Find facts by meaning.", recall_facts, reads=True),
        Tool("forget_fact", "Delete a fact by its key.", forget_fact),
    )  # fmt: skip


def long_term_tools(scope: MemoryScope) -> tuple[Tool, ...]:
    """The tools of an agent with long-term memory; `scope` is where it remembers by default."""
    return (
        Tool("memory_remember", "Keep a preference, relationship, standing instruction or fact about this "
             "user for good. The same again updates it.", memory_remember,
             defaults=(("scope", _scope_name(scope)),),
             choose="For what matters in a year: passing details come up for ever."),
        Tool("memory_recall", "Find what was kept for good, by meaning.", memory_recall, reads=True),
        Tool("memory_forget", "Delete what was kept for good, when the user asks or it is wrong. Turns and "
             "summaries may still mention it.", memory_forget),
    )  # fmt: skip
