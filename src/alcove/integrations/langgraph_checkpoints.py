"""Checkpoints of LangGraph's threads as memories of a user: how they are kept, found, copied and taken away.

A thread is at `user:<user>:langgraph-threads:<thread>:ns:<checkpoint_ns>`. It has checkpoints (`at`, the
newest first), the values of channels by their versions (`values`), and what tasks wrote after a checkpoint
(`writes:<checkpoint>`). All of it is signed: what a user wrote there by other means is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from alcove.client.store import Store
from alcove.core.errors import InvalidRequest, NotFound, Unreadable, requires_extra
from alcove.core.namespace import THREADS
from alcove.core.records import BatchOperation, Delete, Get, Memory, Put, Touch
from alcove.integrations.opened import read_all, search_all, write_all
from alcove.integrations.things import (
    Codec,
    Room,
    check_signed,
    contents,
    deletes,
    is_signed,
    puts,
    signed,
    things,
)

with requires_extra("alcove.integrations.langgraph_threads", extra="langgraph"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        get_checkpoint_id,
        get_checkpoint_metadata,
        writes_sort_key,
    )

_BACKWARDS = {n: 0x9E - n for n in range(0x20, 0x7F)}
_LAST = "\x7f"
_SIGNED_AT_ONCE = 100
_ATTEMPTS = 10
"""Times that a checkpoint is read which others take away meanwhile."""


class Checkpoints:
    """The threads of one user."""

    def __init__(self, alcove: Store, codec: Codec, user: str) -> None:
        self._alcove, self._codec, self._user = alcove, codec, user

    # Reading

    def read(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that is asked for, or the newest of its thread."""
        place = self._place(config)
        for _ in range(_ATTEMPTS):
            memory = self._asked(place, get_checkpoint_id(config))
            if memory is None or (found := self._tuple(memory)):
                return found if memory else None
        return None

    def _asked(self, place: Room, id: str | None) -> Memory | None:
        """A checkpoint, or the newest one."""
        if id:
            memory: Memory | None = self._alcove.get((*place, "at"), _newest_first(id))
            return memory
        return next(search_all(self._alcove, (*place, "at"), exact=True, limit=1), None)

    def listed(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, the newest of each thread first."""
        asked = config["configurable"] if config else {}
        wanted, left = asked.get("checkpoint_id"), math.inf if limit is None else limit
        last = get_checkpoint_id(before) if before else None
        for place in self._places(asked.get("thread_id"), asked.get("checkpoint_ns")):
            for memory in search_all(self._alcove, place, exact=True):
                id = _newest_first(memory.key)
                if left <= 0:
                    return
                if (wanted and id != wanted) or (last and id >= last):
                    continue
                found = self._tuple(memory)
                if found and all(found.metadata.get(name) == value for name, value in (filter or {}).items()):
                    left -= 1
                    yield found

    def _tuple(self, memory: Memory) -> CheckpointTuple | None:
        """A checkpoint with all that belongs to it; None where it is taken away meanwhile."""
        found, missing = None, True
        with suppress(NotFound):
            found, missing = self._found(memory)
        # A channel may have a version and no value; or the thread is being deleted.
        return found if not missing or self._alcove.get(memory.namespace, memory.key) else None

    def _found(self, memory: Memory) -> tuple[CheckpointTuple, bool]:
        """A checkpoint with what of it is there, and whether values are missing."""
        place, id = (*memory.namespace[:-1],), _newest_first(memory.key)
        (kept,) = things(self._codec, self._alcove, [memory])
        channels: dict[str, str] = kept["values"]
        blobs = read_all(self._alcove, [Get((*place, "values"), key) for key in channels.values()])
        there = {channel: blob for channel, blob in zip(channels, blobs, strict=True) if blob}
        values = dict(zip(there, things(self._codec, self._alcove, [*there.values()]), strict=True))
        wrote = [*search_all(self._alcove, (*place, "writes", id), exact=True)]
        tasks = sorted(
            things(self._codec, self._alcove, wrote), key=lambda each: writes_sort_key(*each["order"])
        )
        found = CheckpointTuple(
            config=_config(place, id),
            checkpoint=kept["checkpoint"] | {"channel_values": values},
            metadata=kept["metadata"],
            parent_config=_config(place, kept["parent"]) if kept["parent"] else None,
            pending_writes=[(each["order"][1], each["channel"], each["value"]) for each in tasks],
        )
        return found, len(there) < len(channels)

    # Writing

    def keep(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keeps a checkpoint, and the values that are new in it."""
        place, id = self._place(config), checkpoint["id"]
        versions, values = {**checkpoint["channel_versions"], **new_versions}, checkpoint["channel_values"]
        channels = {channel: f"{versions.get(channel)}:{channel}" for channel in values}
        operations: list[BatchOperation] = []
        for channel in values:
            if channel in new_versions or channel not in versions:
                operations += puts(self._codec, (*place, "values"), channels[channel], values[channel])
        record = {
            "checkpoint": {**checkpoint, "channel_values": {}},
            "metadata": get_checkpoint_metadata(config, metadata),
            "parent": get_checkpoint_id(config),
            "values": channels,
        }
        operations += puts(
            self._codec, (*place, "at"), _newest_first(id), record
        )  # last: it names the others
        write_all(self._alcove, operations)
        return _config(place, id)

    def keep_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keeps what a task wrote; a task that is done again changes only errors, interrupts and the like."""
        room = (*self._place(config), "writes", config["configurable"]["checkpoint_id"])
        numbered = [
            (WRITES_IDX_MAP.get(channel, n), channel, value) for n, (channel, value) in enumerate(writes)
        ]
        keys = [f"{task_id}:{n}" for n, _, _ in numbered]
        there = read_all(self._alcove, [Get(room, key) for key in keys])
        operations: list[BatchOperation] = []
        for key, known, (n, channel, value) in zip(keys, there, numbered, strict=True):
            if known is None or n < 0 or not is_signed(self._codec.signer, known):
                operations += puts(
                    self._codec,
                    room,
                    key,
                    {"order": (task_path, task_id, n), "channel": channel, "value": value},
                )
        if operations:
            write_all(self._alcove, operations)

    def delete(self, thread_id: str) -> None:
        """Takes a thread away."""
        _emptied(self._alcove, self._thread(thread_id))

    def delete_runs(self, run_ids: Sequence[str]) -> None:
        """Takes the checkpoints of some runs away."""
        runs = {*run_ids}
        for place in self._places():
            gone = [*search_all(self._alcove, place, exact=True)]
            kept = things(self._codec, self._alcove, gone)
            of_runs = [m for m, k in zip(gone, kept, strict=True) if k["metadata"].get("run_id") in runs]
            _without(self._alcove, of_runs)

    def copy(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies checkpoints last, and none without what it names; nothing once the source is gone."""
        old, new = self._thread(source_thread_id), self._thread(target_thread_id)
        every = [*search_all(self._alcove, old)]
        checkpoints = [each for each in every if each.namespace[5:] == ("at",)]
        if not checkpoints:
            return
        there = {(*each.namespace[:5], each.key) for each in every if each.namespace[5:] == ("values",)}
        torn = set[tuple[str, ...]]()
        for memory, kept in zip(checkpoints, things(self._codec, self._alcove, checkpoints), strict=True):
            if not {(*memory.namespace[:5], key) for key in kept["values"].values()} <= there:
                torn.add((*memory.namespace, memory.key))
        still_there = Touch(checkpoints[0].namespace, checkpoints[0].key)
        copies = [
            self._copied(each, (*new, *each.namespace[len(old) :]))
            for each in sorted(every, key=lambda each: each.namespace[5:] == ("at",))
            if (*each.namespace, each.key) not in torn
        ]
        write_all(self._alcove, copies, always=[still_there])

    def _copied(self, memory: Memory, room: Room) -> Put:
        """A memory of a thread in another; a header is signed anew, for its new place."""
        if not _is_header(memory):
            return Put(room, memory.key, memory.value)
        check_signed(self._codec.signer, memory)
        return signed(self._codec.signer, room, memory.key, memory.value)

    def sign(self, thread_ids: Sequence[str] | None = None) -> int:
        """Signs all that is in some threads, or in every thread, as it is now; returns how much was unsigned.

        For checkpoints that the app wrote before they were signed, or with another key. Nothing tells who
        wrote what is not signed: call it while you know that nobody else did.
        """
        below: Room = ("user", self._user, THREADS)
        count = 0
        for place in [below] if thread_ids is None else [(*below, str(each)) for each in thread_ids]:
            unsigned: list[Memory] = []
            for memory in search_all(self._alcove, place):
                if _is_header(memory) and not is_signed(self._codec.signer, memory):
                    unsigned.append(memory)
                    if len(unsigned) == _SIGNED_AT_ONCE:
                        count += self._sign(unsigned)
                        unsigned = []
            count += self._sign(unsigned)
        return count

    def _sign(self, memories: Sequence[Memory]) -> int:
        headers: list[BatchOperation] = []
        for memory in memories:
            with suppress(NotFound, Unreadable):  # what is torn, or no header at all, stays as it is
                (data,) = contents(self._alcove, [memory])
                header = {**memory.value, "digest": sha256(data).hexdigest()}
                place = (*memory.namespace,), memory.key
                headers.append(signed(self._codec.signer, *place, header, revision=memory.revision))
        write_all(self._alcove, headers)
        return len(headers)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Takes all but the newest checkpoint of each namespace away, or all of them."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidRequest("strategy", "keep_latest or delete")
        if strategy == "delete":
            for thread in thread_ids:
                self.delete(thread)
            return
        for place in [each for thread in thread_ids for each in self._places(thread)]:
            # Values first: those of a checkpoint that is put meanwhile are not among them.
            values = [*search_all(self._alcove, (*place[:-1], "values"), exact=True)]
            found = [*search_all(self._alcove, place, exact=True)]
            if not found:
                continue
            kept, *gone = found
            (record,) = things(self._codec, self._alcove, [kept])
            if record["metadata"].get("counters_since_delta_snapshot"):
                raise NotImplementedError("what a DeltaChannel holds is in the checkpoints before the last")
            _without(self._alcove, gone)
            named = {*record["values"].values()}
            write_all(self._alcove, deletes([each for each in values if each.key not in named]))

    # Where things are, and how

    def _thread(self, thread: str) -> Room:
        return ("user", self._user, THREADS, str(thread))

    def _place(self, config: RunnableConfig) -> Room:
        asked = config["configurable"]
        return (*self._thread(asked["thread_id"]), f"ns:{asked.get('checkpoint_ns', '')}")

    def _places(self, thread: str | None = None, ns: str | None = None) -> Sequence[Room]:
        """Where checkpoints are: of a thread and a namespace of it, or of all."""
        below: Room = ("user", self._user, THREADS)
        below = below if thread is None else (*below, str(thread))
        if thread is not None and ns is not None:
            return [(*below, f"ns:{ns}", "at")]
        found = [(*each,) for each in self._alcove.namespaces(below) if each[5:] == ("at",)]
        return [each for each in found if each[: len(below)] == below]  # a policy may lead elsewhere


def _is_header(memory: Memory) -> bool:
    """True for what begins a checkpoint, a value or a write; False for the parts of one."""
    kind, *more = memory.namespace[5:] or ("",)
    return (kind in ("at", "values") and not more) or (kind == "writes" and len(more) == 1)


def _emptied(alcove: Store, prefix: Room) -> None:
    """Deletes all that is below a prefix, and nothing else, wherever a policy leads a list."""
    while found := alcove.list(prefix, limit=1000):
        inside = [each for each in found if each.namespace[: len(prefix)] == prefix]
        if not inside:
            return
        write_all(alcove, [Delete(each.namespace, each.key) for each in inside])


def _without(alcove: Store, checkpoints: Sequence[Memory]) -> None:
    """Deletes checkpoints with what was written after them."""
    for each in checkpoints:
        _emptied(alcove, (*each.namespace[:-1], "writes", _newest_first(each.key)))
    write_all(alcove, deletes(checkpoints))


def _newest_first(id: str) -> str:
    """A key that comes the earlier the later an id is; and the id of such a key."""
    if not (id.removesuffix(_LAST).isascii() and id.removesuffix(_LAST).isprintable()):
        raise InvalidRequest("checkpoint_id", "printable ASCII")
    return id.removesuffix(_LAST).translate(_BACKWARDS) + ("" if id.endswith(_LAST) else _LAST)


def _config(place: Room, id: str) -> RunnableConfig:
    ns = place[4].removeprefix("ns:")
    return {"configurable": {"thread_id": place[3], "checkpoint_ns": ns, "checkpoint_id": id}}
