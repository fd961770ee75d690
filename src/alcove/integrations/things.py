"""Things of any kind and size in memories: bytes that a serialiser makes, in one memory or in several."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from alcove.core.errors import NotFound
from alcove.core.records import Delete, Get, Memory, Put
from alcove.integrations.opened import got

Room = tuple[str, ...]
_PART = 700_000
"""Characters of a thing that one memory holds."""


class Serialiser(Protocol):
    """Makes bytes of things and says of which kind they are, as LangGraph's do."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]: ...
    def loads_typed(self, data: tuple[str, bytes]) -> Any: ...


def puts(serde: Serialiser, room: Room, key: str, thing: object) -> list[Put]:
    """What keeps a thing at a key; the last of them says how many the others are."""
    kind, data = serde.dumps_typed(thing)
    text = b64encode(data).decode()
    first, *rest = [text[n : n + _PART] for n in range(0, len(text), _PART)] or [""]
    parts = [Put(*_place(room, key, n), {"data": part}) for n, part in enumerate(rest)]
    return [*parts, Put(room, key, {"type": kind, "data": first, "parts": len(rest)})]


async def things(serde: Serialiser, alcove: Any, memories: Sequence[Memory]) -> list[Any]:
    """The things that memories hold; NotFound where a part of one is gone meanwhile."""
    rest = iter(await got(alcove, [Get(*place) for memory in memories for place in _parts(memory)]))
    found = []
    for memory in memories:
        others = [next(rest) for _ in _parts(memory)]
        if None in others:
            raise NotFound(f"a part of {memory.key} is not there any more")
        texts = [str(part.value["data"]) for part in (memory, *others) if part]
        found.append(serde.loads_typed((str(memory.value["type"]), b64decode("".join(texts)))))
    return found


def deletes(memories: Sequence[Memory]) -> list[Delete]:
    """What takes things away."""
    places = [place for each in memories for place in ((each.namespace, each.key), *_parts(each))]
    return [Delete(*place) for place in places]


def _parts(memory: Memory) -> Iterator[tuple[Room, str]]:
    """Where the rest of a thing is; a part itself has none."""
    count = memory.value.get("parts", 0)
    assert isinstance(count, int)
    return (_place((*memory.namespace,), memory.key, n) for n in range(count))


def _place(room: Room, key: str, number: int) -> tuple[Room, str]:
    return (*room, "parts"), f"{key}#{number}"
