"""Things of any kind and size in memories: bytes that a serialiser makes, in one memory or in several.

The first memory of a thing is its header. It says of which kind the bytes are, how many other memories hold
the rest (`parts`), what all of them hash to, and it is signed together with its address: a header that
somebody else wrote, or moved, is refused before a part of it is read.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

from alcove.client.store import Store
from alcove.core.errors import InvalidRequest, NotFound, Unreadable
from alcove.core.namespace import Namespace
from alcove.core.records import Delete, Get, Memory, Put
from alcove.integrations.opened import read_all
from alcove.integrations.signing import Signer

Room = tuple[str, ...]
_PART = 700_000
"""Characters of a thing that one memory holds."""
MAX_PARTS = 4096
"""Memories that hold the rest of a thing: two gigabytes, which is as much as msgpack can carry."""


class Serialiser(Protocol):
    """Makes bytes of things and says of which kind they are, as LangGraph's do."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]: ...
    def loads_typed(self, data: tuple[str, bytes]) -> Any: ...


class Codec(NamedTuple):
    """How things become bytes, and who vouches for the bytes."""

    serde: Serialiser
    signer: Signer


def puts(codec: Codec, room: Room, key: str, thing: object) -> list[Put]:
    """What keeps a thing at a key; the last of them is the header."""
    kind, data = codec.serde.dumps_typed(thing)
    text = b64encode(data).decode()
    first, *rest = [text[n : n + _PART] for n in range(0, len(text), _PART)] or [""]
    if len(rest) > MAX_PARTS:
        raise InvalidRequest("checkpoint", f"at most {MAX_PARTS * _PART * 3 // 4:,} bytes in one value")
    parts = [Put(*_place(room, key, n), {"data": part}) for n, part in enumerate(rest)]
    header = {"type": kind, "data": first, "parts": len(rest), "digest": sha256(data).hexdigest()}
    return [*parts, signed(codec.signer, room, key, header)]


def things(codec: Codec, alcove: Store, memories: Sequence[Memory]) -> list[Any]:
    """The things that memories hold; NotFound where a part of one is gone meanwhile.

    Raises Unreadable where a header is not signed, before any part is asked for.
    """
    for memory in memories:
        check_signed(codec.signer, memory)
    return [
        _load(codec.serde, memory, data)
        for memory, data in zip(memories, contents(alcove, memories), strict=True)
    ]


def _load(serde: Serialiser, memory: Memory, data: bytes) -> Any:
    if sha256(data).hexdigest() != memory.value["digest"]:
        raise Unreadable(f"{_spelled(memory)}: a part of it was changed after it was written")
    try:
        return serde.loads_typed((str(memory.value["type"]), data))
    except Unreadable as error:
        raise Unreadable(f"{_spelled(memory)}: {error.message}") from None


def contents(alcove: Store, memories: Sequence[Memory]) -> list[bytes]:
    """The bytes of the things that memories are the headers of."""
    rest = iter(read_all(alcove, [Get(*place) for memory in memories for place in _parts(memory)]))
    found = []
    for memory in memories:
        others = [next(rest) for _ in _parts(memory)]
        if None in others:
            raise NotFound(f"a part of {memory.key} is not there any more")
        texts = [part.value.get("data") for part in (memory, *others) if part]
        try:
            found.append(b64decode("".join(text for text in texts if isinstance(text, str)), validate=True))
        except ValueError:
            raise Unreadable(f"{_spelled(memory)}: its data is not base64") from None
    return found


def deletes(memories: Sequence[Memory]) -> list[Delete]:
    """What takes things away."""
    places = [place for each in memories for place in ((each.namespace, each.key), *_parts(each))]
    return [Delete(*place) for place in places]


# Signatures


def signed(signer: Signer, room: Room, key: str, header: dict[str, Any], revision: int | None = None) -> Put:
    """What stores a header with the signature that it has at this place; `revision`: what it replaces."""
    signature = signer.sign(*_signed_fields(room, key, header))
    return Put(room, key, {**header, "signature": signature}, expected_revision=revision)


def is_signed(signer: Signer, memory: Memory) -> bool:
    """True if a header was signed for the place that it is at."""
    fields = _signed_fields(memory.namespace, memory.key, memory.value)
    return signer.is_signed(memory.value.get("signature"), *fields)


def check_signed(signer: Signer, memory: Memory) -> None:
    """Raises Unreadable where a header is not signed."""
    if not is_signed(signer, memory):
        raise Unreadable(
            f"{_spelled(memory)} is not signed with the key of this saver: somebody else may have written "
            "it. If your app did, before checkpoints were signed or with another key, sign_threads() signs "
            "it; otherwise delete the thread"
        )


def _signed_fields(room: Sequence[str], key: str, header: dict[str, Any]) -> list[object]:
    """The address first, so that a header is of no use elsewhere."""
    return [[*room], key, *(header.get(name) for name in ("type", "parts", "digest"))]


def _spelled(memory: Memory) -> str:
    return f"{Namespace(memory.namespace)} {memory.key!r}"


# Parts


def _parts(memory: Memory) -> Iterator[tuple[Room, str]]:
    """Where the rest of a thing is; a part itself has none."""
    count = memory.value.get("parts", 0)
    if type(count) is not int or not 0 <= count <= MAX_PARTS:
        raise Unreadable(f"{_spelled(memory)}: parts: expected a number from 0 to {MAX_PARTS}")
    return (_place((*memory.namespace,), memory.key, n) for n in range(count))


def _place(room: Room, key: str, number: int) -> tuple[Room, str]:
    return (*room, "parts"), f"{key}#{number}"
