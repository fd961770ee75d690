"""Long-term memory: typed and tagged, saved and forgotten only on purpose."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from contextlib import suppress
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from alcove.agents.rooms import short
from alcove.agents.tools.base import Answer, Tool, Turn
from alcove.agents.tools.keyed import Content, Limit, Query
from alcove.agents.tools.texts import line, listed, name
from alcove.core.errors import AlcoveError, InvalidRequest, NotFound
from alcove.core.namespace import Namespace
from alcove.core.records import Delete, Entry, Memory, Put
from alcove.store import validation

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
    type: Annotated[Type, Meta(description="Its kind.")] = "fact"
    tags: Annotated[list[str], Meta(description="At most 8 short words.")] = []
    scope: Annotated[
        Scope, Meta(description="agent: you alone; all: this user's other agents too, never other users.")
    ] = "agent"


class Find(Struct):
    query: Query
    type: Annotated[Type | None, Meta(description="Only this kind.")] = None
    tags: Annotated[list[str] | None, Meta(description="With any of these tags.")] = None
    limit: Limit = 5


class Forget(Struct):
    memory_id: Annotated[str, Meta(min_length=1, description="Its id.")]


def memory_remember(turn: Turn, given: Remember) -> Answer:
    room, id = turn.rooms.long_term[given.scope], f"{given.scope}-{_digest(given.content)}"
    who = turn.within(room)
    known, tags = turn.memories.get(who, room, id), _tags(given.tags)
    if known:
        tags = [*dict.fromkeys([*tags, *_kept_tags(known)])][:MOST_TAGS]
    value = {"content": given.content, "type": given.type, "tags": tags, "scope": given.scope}
    put = Put(namespace=room, key=id, value=value, index={"content": given.content})
    similar = _similar(turn, room, turn.memories.put(who, put), given.content)
    updated = known is not None
    text = "You knew that already; updated it." if updated else "Remembered it."
    if similar:
        text += "\nSimilar, so look whether they still hold:\n" + listed(map(_line, similar))
    return Answer({"memory_id": id, "updated": updated, "similar": [_shown(each) for each in similar]}, text)


def _similar(turn: Turn, room: Namespace, entry: Entry, content: str) -> list[Memory]:
    """What was there already and may be about the same; it is advice, and no reason to fail what is done."""
    with suppress(AlcoveError):
        turn.memories.wait_for_index(entry, _PATIENCE)  # then what came before it can be found, too
        near = turn.memories.search(turn.within(room), room, query=content, limit=_SIMILAR + 1, exact=True)
        return [each for each in near if each.key != entry.key and (each.score or 0) >= ALIKE][:_SIMILAR]
    return []


def memory_recall(turn: Turn, given: Find) -> Answer:
    conditions: dict[str, object] = {}
    if given.type:
        conditions["type"] = given.type
    if given.tags:
        conditions["tags"] = {"in": _tags(given.tags)}
    found: list[Memory] = []
    degraded = None
    for room in turn.rooms.long_term.values():
        some = turn.memories.search(
            turn.within(room),
            room,
            query=given.query,
            filter=conditions or None,
            limit=given.limit,
            exact=True,
        )
        found, degraded = [*found, *some], degraded or some.degraded
    found.sort(key=lambda memory: memory.score or 0.0, reverse=True)
    best = found[: given.limit]
    result: dict[str, Any] = {"items": [_shown(memory) for memory in best]}
    return Answer({**result, "degraded": degraded} if degraded else result, listed(map(_line, best)))


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
    return hashlib.sha256(validation.text(" ".join(words or [folded]), "content")).hexdigest()[:20]


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
    kind = memory.value.get("type", "fact")
    return line(memory, name(kind) if isinstance(kind, str) else "fact")


LONG_TERM_TOOLS = (
    Tool("memory_remember", "Keep a preference, relationship, standing instruction or fact about this user "
         "for good. The same again updates it.", Remember, memory_remember,
         choose="For what matters in a year: passing details come up for ever."),
    Tool("memory_recall", "Find what was kept for good, by meaning.", Find, memory_recall, reads=True),
    Tool("memory_forget", "Delete what was kept for good, when the user asks or it is wrong. Turns and "
         "summaries may still mention it.", Forget, memory_forget),
)  # fmt: skip
