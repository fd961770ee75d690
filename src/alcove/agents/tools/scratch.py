"""Scratch rooms: values under plain keys, for agents that work together, with versions to agree on."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from alcove.agents.rooms import RUNS, short
from alcove.agents.tools.base import Answer, Tool, Turn
from alcove.agents.tools.keyed import Key, missing, shown
from alcove.agents.tools.pattern import matcher
from alcove.errors import Conflict, NotFound
from alcove.namespace import Namespace
from alcove.records import Delete, Memory, Put

Room = Annotated[str, Meta(description="Which kind of room.")]
_ABOUT = {
    "global": "global is open to every user of every agent that has it",
    "workflow": "workflow is shared by everybody in this workflow run",
    "swarm": "swarm is shared by everybody in this swarm",
    "debate": "debate is shared by everybody in this debate",
    "session": "session is shared by the agents of this user in this session",
    "agent": "agent is yours alone with this user",
}


class Write(Struct):
    key: Key
    value: Annotated[Any, Meta(description="Any JSON value.")]
    namespace: Room = "global"
    metadata: Annotated[dict[str, Any] | None, Meta(description="Anything to say about the value.")] = None
    expected_version: (
        Annotated[int, Meta(ge=0, description="Only if this is its version now; 0: if it does not exist.")]
        | None
    ) = None


class Read(Struct):
    key: Key
    namespace: Room = "global"


class Listing(Struct):
    namespace: Room = "global"
    pattern: Annotated[str | None, Meta(description="Only keys like this, such as `plan_*`.")] = None


def room(turn: Turn, kind: str, *, opening: bool = False) -> Namespace:
    """The room of a kind, once it is known that the caller may enter it."""
    place = turn.rooms.scratch(kind)
    if kind in RUNS and not turn.runs.enter(kind, place[1], turn.caller.user_id, opening=opening):
        raise NotFound(f"there is no such {kind}; a write opens one, and its owner may let others in")
    return place


def write(turn: Turn, given: Write) -> Answer:
    place = room(turn, given.namespace, opening=True)
    put = Put(
        namespace=place,
        key=given.key,
        value={"value": given.value, "metadata": given.metadata or {}},
        expected_revision=given.expected_version,
    )
    try:
        entry = turn.memories.put(turn.within(place), put)
    except Conflict:
        hint = "read it, then write with the version it has (0: it must not exist)"
        raise Conflict(f"{short(given.key)} is not at version {given.expected_version}; {hint}") from None
    text = f"Wrote {short(given.key)} to the {given.namespace} room, version {entry.revision}."
    return Answer({"key": given.key, "version": entry.revision}, text)


def read(turn: Turn, given: Read) -> Answer:
    place = room(turn, given.namespace)
    found = turn.memories.get(turn.within(place), place, given.key)
    if found is None:
        raise missing(given.key, f"in the {given.namespace} room", "shared_memory_list")
    return Answer(shown(found), _line(found))


def listing(turn: Turn, given: Listing) -> Answer:
    place, fits = room(turn, given.namespace), matcher(given.pattern or "*")
    found = [
        memory
        for memory in turn.memories.export(turn.within(place), place)
        if memory.namespace == place and fits(memory.key)
    ]
    lines = [f"- {_line(memory)}" for memory in found]
    text = "\n".join(lines) or f"The {given.namespace} room has nothing like that."
    return Answer({"items": [shown(memory) for memory in found]}, text)


def delete(turn: Turn, given: Read) -> Answer:
    place = room(turn, given.namespace)
    if not turn.memories.delete(turn.within(place), Delete(namespace=place, key=given.key)).deleted:
        raise missing(given.key, f"in the {given.namespace} room", "shared_memory_list")
    return Answer({"key": given.key, "deleted": True}, f"Deleted {short(given.key)}.")


def _line(memory: Memory) -> str:
    value = msgspec.json.encode(memory.value.get("value", memory.value)).decode()
    return f"{memory.key} (version {memory.revision}): {value}"


def scratch_tools(kinds: tuple[str, ...]) -> tuple[Tool, ...]:
    """The tools of an agent with these kinds of rooms."""
    about = "a room: " + "; ".join(_ABOUT[kind] for kind in kinds)
    rooms = {"namespace": kinds}
    named = () if "global" in kinds else ("namespace",)
    return (
        Tool(
            "shared_memory_write",
            f"Write a value under a key to {about}.",
            Write,
            write,
            rooms,
            named,
        ),
        Tool("shared_memory_read", f"Read the value under a key of {about}.", Read, read, rooms, named),
        Tool("shared_memory_list", "List the keys and values of a room.", Listing, listing, rooms, named),
        Tool("shared_memory_delete", "Delete the value under a key of a room.", Read, delete, rooms, named),
    )
