"""Long-term memory: typed and tagged, saved and forgotten only on purpose."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from alcove.agents.rooms import short
from alcove.agents.tools.base import Answer, Tool, Turn
from alcove.agents.tools.keyed import Content, Limit, Query
from alcove.errors import InvalidRequest, NotFound
from alcove.namespace import Namespace
from alcove.records import Delete, Memory, Put

Type = Literal["fact", "preference", "relationship", "instruction"]
Scope = Literal["agent", "all"]
MOST_TAGS = 8
LONGEST_TAG = 40
ALIKE = 0.6
"""How near another memory is to be told of as similar; only a person can say whether it is the same."""
_SIMILAR = 3
_PATIENCE = 2.0


class Remember(Struct):
    content: Content
    type: Annotated[Type, Meta(description="What kind of thing it is.")] = "fact"
    tags: Annotated[list[str], Meta(description="A few short words to sort it by, at most 8.")] = []
    scope: Annotated[Scope, Meta(description="agent: only you; all: every agent of this user.")] = "agent"


class Recall(Struct):
    query: Query
    type: Annotated[Type | None, Meta(description="Only this kind.")] = None
    tags: Annotated[list[str] | None, Meta(description="Only with one of these tags.")] = None
    limit: Limit = 5


class Forget(Struct):
    memory_id: Annotated[str, Meta(min_length=1, description="The id that recall or remember gave.")]


def memory_remember(turn: Turn, given: Remember) -> Answer:
    room, id = turn.rooms.long_term[given.scope], f"{given.scope}-{_digest(given.content)}"
    who = turn.within(room)
    known, tags = turn.memories.get(who, room, id), _tags(given.tags)
    if known:
        tags = [*dict.fromkeys([*tags, *_kept_tags(known)])][:MOST_TAGS]
    value = {"content": given.content, "type": given.type, "tags": tags, "scope": given.scope}
    put = Put(namespace=room, key=id, value=value, index={"content": given.content})
    entry = turn.memories.put(who, put)
    turn.memories.wait_for_index(entry, _PATIENCE)  # then what came before it can be found, too
    near = turn.memories.search(who, room, query=given.content, limit=_SIMILAR + 1)
    similar = [each for each in near if each.key != id and (each.score or 0) >= ALIKE][:_SIMILAR]
    updated = known is not None
    text = "You knew that already; updated it." if updated else "Remembered it."
    if similar:
        text += " Similar, so look whether they still hold: " + "; ".join(_line(each) for each in similar)
    return Answer({"memory_id": id, "updated": updated, "similar": [_shown(each) for each in similar]}, text)


def memory_recall(turn: Turn, given: Recall) -> Answer:
    conditions: dict[str, object] = {}
    if given.type:
        conditions["type"] = given.type
    if given.tags:
        conditions["tags"] = {"in": _tags(given.tags)}
    found: list[Memory] = []
    degraded = None
    for room in turn.rooms.long_term.values():
        some = turn.memories.search(
            turn.within(room), room, query=given.query, filter=conditions or None, limit=given.limit
        )
        found, degraded = [*found, *some], degraded or some.degraded
    found.sort(key=lambda memory: memory.score or 0.0, reverse=True)
    best = found[: given.limit]
    text = "\n".join(f"- {_line(memory)}" for memory in best) or "Nothing found."
    result: dict[str, Any] = {"items": [_shown(memory) for memory in best]}
    return Answer({**result, "degraded": degraded} if degraded else result, text)


def memory_forget(turn: Turn, given: Forget) -> Answer:
    room = _room(turn, given.memory_id)
    if (
        room is None
        or not turn.memories.delete(turn.within(room), Delete(namespace=room, key=given.memory_id)).deleted
    ):
        raise NotFound(f"there is no memory {short(given.memory_id)}; memory_recall gives the ids")
    return Answer({"memory_id": given.memory_id, "forgotten": True}, "Forgot it.")


def _room(turn: Turn, id: str) -> Namespace | None:
    return turn.rooms.long_term.get(id.partition("-")[0])


def _digest(content: str) -> str:
    """The same for contents that differ only in case, spacing or punctuation."""
    folded = unicodedata.normalize("NFKC", content).casefold()
    words = re.findall(r"\w+", folded)
    return hashlib.sha256(" ".join(words or [folded]).encode()).hexdigest()[:20]


def _tags(tags: list[str]) -> list[str]:
    found = dict.fromkeys(re.sub(r"[\s_]+", "-", tag.strip().lower()) for tag in tags)
    short = [tag for tag in found if tag]
    if len(short) > MOST_TAGS:
        raise InvalidRequest("tags", f"at most {MOST_TAGS}")
    if any(len(tag) > LONGEST_TAG for tag in short):
        raise InvalidRequest("tags", f"words of at most {LONGEST_TAG} characters")
    return short


def _shown(memory: Memory) -> dict[str, Any]:
    score = {} if memory.score is None else {"score": round(memory.score, 4)}
    return {**memory.value, "memory_id": memory.key, "written_at": memory.created_at, **score}


def _kept_tags(memory: Memory) -> list[str]:
    """The tags it has; users may write to this room themselves, and whatever they like."""
    tags = memory.value.get("tags")
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def _line(memory: Memory) -> str:
    value = memory.value
    about = f"{value.get('type', 'fact')}, {memory.created_at:%Y-%m-%d}"
    return f"[{memory.key}] {value.get('content', value)} ({about})"


TOOLS = (
    Tool("memory_remember", "Keep something about this user for good: a fact, a preference, a relationship "
         "or a standing instruction. Saying the same again updates it.", Remember, memory_remember),
    Tool("memory_recall", "Find what is known of this user for good, by meaning, kind and tags.", Recall,
         memory_recall),
    Tool("memory_forget", "Delete a long-term memory by its id, when the user asks for it or it is wrong. "
         "Earlier turns and summaries may still mention it.", Forget, memory_forget),
)  # fmt: skip
