"""LangGraph: its checkpoints, kept in Alcove.

    graph = builder.compile(checkpointer=AlcoveSaver("memory.db"))

A thread is below the caller's own room, at `user:<caller>:langgraph-threads:<thread>:ns:<checkpoint_ns>`. It
has checkpoints (`at`, the newest first), the values of channels by their versions (`values`), and what tasks
wrote after a checkpoint (`writes:<checkpoint>`). All of it is sealed, and erased with the user.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any

from alcove.core.errors import InvalidRequest, needed_by
from alcove.core.namespace import THREADS
from alcove.core.records import Delete, Get, Memory, Operation, Put
from alcove.core.waiting import at_once, in_turn
from alcove.integrations.opened import At, Opened, given, got, searched, written
from alcove.integrations.things import Room, deletes, puts, things

with needed_by("alcove.integrations.langgraph_threads", extra="langgraph"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        get_checkpoint_id,
        get_checkpoint_metadata,
        writes_sort_key,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol

_BACKWARDS = {n: 0x9E - n for n in range(0x20, 0x7F)}
_LAST = "\x7f"


class AlcoveSaver(Opened, BaseCheckpointSaver[str]):
    """A `BaseCheckpointSaver` on a file or a URL; threads and event loops share one."""

    def __init__(self, at: At, *, serde: SerializerProtocol | None = None, **opening: Any) -> None:
        """Opens a store, or takes one that is open.

        `at`: the path of a file, a URL, or a store; `opening`: what `alcove.connect` takes beside it.
        `serde`: what makes bytes of values, if not LangGraph's own.
        """
        Opened.__init__(self, at, opening)
        BaseCheckpointSaver.__init__(self, serde=serde)

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """A version that no other branch of a thread gives to another value."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:032}.{secrets.token_hex(8)}"

    # LangGraph has each twice; `_read` and the others below are for both

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return at_once(self._read(self._store, config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._read(self._twin(), config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return in_turn(self._listed(self._store, config, filter, before, limit))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        async for found in self._listed(self._twin(), config, filter, before, limit):
            yield found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return at_once(self._kept(self._store, config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._kept(self._twin(), config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        at_once(self._keep_writes(self._store, config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._keep_writes(self._twin(), config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        at_once(self._delete(self._store, [thread_id]))

    async def adelete_thread(self, thread_id: str) -> None:
        await self._delete(self._twin(), [thread_id])

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        at_once(self._delete_runs(self._store, {*run_ids}))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._delete_runs(self._twin(), {*run_ids})

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        at_once(self._copy(self._store, source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._copy(self._twin(), source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        at_once(self._prune(self._store, thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._prune(self._twin(), thread_ids, strategy)

    # Reading

    async def _read(self, alcove: Any, config: RunnableConfig) -> CheckpointTuple | None:
        place = await self._place(alcove, config)
        if id := get_checkpoint_id(config):
            memory = await given(alcove.get((*place, "at"), _newest_first(id)))
            return await self._tuple(alcove, memory) if memory else None
        async for memory in searched(alcove, (*place, "at"), exact=True, limit=1):
            return await self._tuple(alcove, memory)
        return None

    async def _listed(
        self,
        alcove: Any,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncGenerator[CheckpointTuple, None]:
        asked = config["configurable"] if config else {}
        wanted, left = asked.get("checkpoint_id"), limit
        last = get_checkpoint_id(before) if before else None
        for place in await self._places(alcove, asked.get("thread_id"), asked.get("checkpoint_ns")):
            async for memory in searched(alcove, place, exact=True):
                id = _newest_first(memory.key)
                if left == 0 or (wanted and id != wanted) or (last and id >= last):
                    continue
                found = await self._tuple(alcove, memory)
                if all(found.metadata.get(name) == value for name, value in (filter or {}).items()):
                    left = None if left is None else left - 1
                    yield found

    async def _tuple(self, alcove: Any, memory: Memory) -> CheckpointTuple:
        place, id = (*memory.namespace[:-1],), _newest_first(memory.key)
        (kept,) = await things(self.serde, alcove, [memory])
        channels: dict[str, str] = kept["values"]
        blobs = await got(alcove, [Get((*place, "values"), key) for key in channels.values()])
        there = {channel: blob for channel, blob in zip(channels, blobs, strict=True) if blob}
        values = dict(zip(there, await things(self.serde, alcove, [*there.values()]), strict=True))
        wrote = [each async for each in searched(alcove, (*place, "writes", id), exact=True)]
        tasks = sorted(
            await things(self.serde, alcove, wrote), key=lambda each: writes_sort_key(*each["order"])
        )
        return CheckpointTuple(
            config=_config(place, id),
            checkpoint=kept["checkpoint"] | {"channel_values": values},
            metadata=kept["metadata"],
            parent_config=_config(place, kept["parent"]) if kept["parent"] else None,
            pending_writes=[(each["order"][1], each["channel"], each["value"]) for each in tasks],
        )

    # Writing

    async def _kept(
        self,
        alcove: Any,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        place, id = await self._place(alcove, config), checkpoint["id"]
        versions, values = {**checkpoint["channel_versions"], **new_versions}, checkpoint["channel_values"]
        channels = {channel: f"{versions.get(channel)}:{channel}" for channel in values}
        operations: list[Operation] = []
        for channel in values:
            if channel in new_versions or channel not in versions:
                operations += puts(self.serde, (*place, "values"), channels[channel], values[channel])
        record = {
            "checkpoint": {**checkpoint, "channel_values": {}},
            "metadata": get_checkpoint_metadata(config, metadata),
            "parent": get_checkpoint_id(config),
            "values": channels,
        }
        operations += puts(self.serde, (*place, "at"), _newest_first(id), record)  # last: it names the others
        await written(alcove, operations)
        return _config(place, id)

    async def _keep_writes(
        self, alcove: Any, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str, path: str
    ) -> None:
        """Keeps what a task wrote; a task that is done again changes only errors, interrupts and the like."""
        room = (*await self._place(alcove, config), "writes", config["configurable"]["checkpoint_id"])
        numbered = [
            (WRITES_IDX_MAP.get(channel, n), channel, value) for n, (channel, value) in enumerate(writes)
        ]
        keys = [f"{task}:{n}" for n, _, _ in numbered]
        there = await got(alcove, [Get(room, key) for key in keys])
        operations: list[Operation] = []
        for key, known, (n, channel, value) in zip(keys, there, numbered, strict=True):
            if known is None or n < 0:
                operations += puts(
                    self.serde, room, key, {"order": (path, task, n), "channel": channel, "value": value}
                )
        if operations:
            await written(alcove, operations)

    async def _delete(self, alcove: Any, threads: Sequence[str]) -> None:
        for thread in threads:
            await _emptied(alcove, await self._thread(alcove, thread))

    async def _delete_runs(self, alcove: Any, runs: set[str]) -> None:
        for place in await self._places(alcove):
            gone = [memory async for memory in searched(alcove, place, exact=True)]
            kept = await things(self.serde, alcove, gone)
            await _without(
                alcove, [m for m, k in zip(gone, kept, strict=True) if k["metadata"].get("run_id") in runs]
            )

    async def _copy(self, alcove: Any, source: str, target: str) -> None:
        old, new = await self._thread(alcove, source), await self._thread(alcove, target)
        copies: list[Operation] = []
        async for each in searched(alcove, old):
            copies.append(Put((*new, *each.namespace[len(old) :]), each.key, each.value))
        await written(alcove, copies)

    async def _prune(self, alcove: Any, threads: Sequence[str], strategy: str) -> None:
        if strategy == "delete":
            return await self._delete(alcove, threads)
        if strategy != "keep_latest":
            raise InvalidRequest("strategy", "keep_latest or delete")
        for place in [each for thread in threads for each in await self._places(alcove, thread)]:
            kept, *gone = [memory async for memory in searched(alcove, place, exact=True)]
            (record,) = await things(self.serde, alcove, [kept])
            if record["metadata"].get("counters_since_delta_snapshot"):
                raise NotImplementedError("what a DeltaChannel holds is in the checkpoints before the last")
            await _without(alcove, gone)
            named, values = {*record["values"].values()}, (*place[:-1], "values")
            old = [each async for each in searched(alcove, values, exact=True) if each.key not in named]
            await written(alcove, deletes(old))
        return None

    # Where things are, and how

    async def _thread(self, alcove: Any, thread: str) -> Room:
        return ("user", await self._caller(alcove), THREADS, str(thread))

    async def _place(self, alcove: Any, config: RunnableConfig) -> Room:
        asked = config["configurable"]
        return (*await self._thread(alcove, asked["thread_id"]), f"ns:{asked.get('checkpoint_ns', '')}")

    async def _places(self, alcove: Any, thread: str | None = None, ns: str | None = None) -> Sequence[Room]:
        """Where checkpoints are: of a thread and a namespace of it, or of all."""
        below: Room = ("user", await self._caller(alcove), THREADS)
        below = below if thread is None else (*below, str(thread))
        if thread is not None and ns is not None:
            return [(*below, f"ns:{ns}", "at")]
        return [(*each,) for each in await given(alcove.namespaces(below)) if each[5:] == ("at",)]


async def _emptied(alcove: Any, prefix: Room) -> None:
    """Deletes all that is below a prefix."""
    while found := await given(alcove.list(prefix, limit=1000)):
        await written(alcove, [Delete(each.namespace, each.key) for each in found])


async def _without(alcove: Any, checkpoints: Sequence[Memory]) -> None:
    """Deletes checkpoints with what was written after them."""
    for each in checkpoints:
        await _emptied(alcove, (*each.namespace[:-1], "writes", _newest_first(each.key)))
    await written(alcove, deletes(checkpoints))


def _newest_first(id: str) -> str:
    """A key that comes the earlier the later an id is; and the id of such a key."""
    if not (id.removesuffix(_LAST).isascii() and id.removesuffix(_LAST).isprintable()):
        raise InvalidRequest("checkpoint_id", "printable ASCII")
    return id.removesuffix(_LAST).translate(_BACKWARDS) + ("" if id.endswith(_LAST) else _LAST)


def _config(place: Room, id: str) -> RunnableConfig:
    ns = place[4].removeprefix("ns:")
    return {"configurable": {"thread_id": place[3], "checkpoint_ns": ns, "checkpoint_id": id}}
