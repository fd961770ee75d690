"""Rooms in which content lies under keys: how to put, read, search and list it, and say so in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Meta

from alcove.agents.rooms import short
from alcove.agents.tools.base import Answer, Turn
from alcove.errors import NotFound
from alcove.namespace import Namespace
from alcove.records import Memory, Put

Key = Annotated[str, Meta(min_length=1, max_length=1024, description="A short name to find it by again.")]
Content = Annotated[str, Meta(min_length=1, description="What to keep, in full sentences.")]
Query = Annotated[str, Meta(min_length=1, description="What to look for, in your own words.")]
Limit = Annotated[int, Meta(ge=1, le=100, description="At most so many.")]


def keep(turn: Turn, room: Namespace, key: str, content: str, where: str) -> Answer:
    put = Put(namespace=room, key=key, value={"content": content}, index={"content": content})
    entry = turn.memories.put(turn.within(room), put)
    return Answer({"key": key, "version": entry.revision}, f"Stored {short(key)} {where}.")


def read(turn: Turn, room: Namespace, key: str, where: str, hint: str) -> Answer:
    found = turn.memories.get(turn.within(room), room, key)
    if found is None:
        raise missing(key, where, hint)
    return told(found)


def missing(key: str, where: str, hint: str) -> NotFound:
    return NotFound(f"there is nothing under {short(key)} {where}; {hint} shows what there is")


def look(turn: Turn, room: Namespace, query: str, limit: int) -> Answer:
    found = turn.memories.search(turn.within(room), room, query=query, limit=limit)
    answer = listed(found)
    if found.degraded:
        answer.result["degraded"] = found.degraded
    return answer


def show(turn: Turn, room: Namespace, limit: int) -> Answer:
    return listed(turn.memories.search(turn.within(room), room, limit=limit))


def told(memory: Memory) -> Answer:
    """One memory with its author, as a model reads it."""
    return Answer(shown(memory), f"{memory.key}: {_content(memory)}{_author(memory)}")


def listed(found: Iterable[Memory]) -> Answer:
    """Several memories, a line each."""
    memories = [*found]
    lines = [f"- {memory.key}: {_content(memory)}{_author(memory)}" for memory in memories]
    return Answer({"items": [shown(each) for each in memories]}, "\n".join(lines) or "Nothing found.")


def shown(memory: Memory) -> dict[str, Any]:
    """What a tool answers of a memory: no namespace, no policy attributes."""
    return {
        **memory.value,
        "key": memory.key,
        "version": memory.revision,
        "written_at": memory.created_at,
        "written_by": {"user": memory.written_by.user, "agent": memory.written_by.agent},
        **({} if memory.score is None else {"score": round(memory.score, 4)}),
    }


def _content(memory: Memory) -> str:
    content = memory.value.get("content", memory.value)
    return content if isinstance(content, str) else str(content)


def _author(memory: Memory) -> str:
    """Who wrote it, as far as that is known: the agent, and the user for whom it did."""
    authors = [name for name in (memory.written_by.agent, memory.written_by.user) if name]
    by = f"by {' for '.join(authors)}, " if authors else ""
    return f" ({by}{memory.created_at.date()})"  # much quicker than a format
