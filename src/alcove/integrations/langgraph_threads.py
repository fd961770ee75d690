"""LangGraph: checkpoints of threads, stored in Alcove.

    graph = builder.compile(checkpointer=AlcoveSaver("memory.db"))

A thread is at `user:<user>:langgraph-threads:<thread>:ns:<checkpoint_ns>`: in the caller's own namespace,
encrypted, and erased with it. It has checkpoints (`at`, the newest first), the values of channels by their
versions (`values`), and what tasks wrote after a checkpoint (`writes:<checkpoint>`). All of it is signed with
a key that users do not have, and decoding builds only known safe types: a forged checkpoint is refused.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial, wraps
from hashlib import sha256
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar

from alcove.core.errors import InvalidRequest, NotFound, Unreadable, requires_extra
from alcove.core.namespace import THREADS
from alcove.core.records import BatchOperation, Delete, Get, Memory, Put, Touch
from alcove.integrations.adapter import StoreAdapter, StoreLocation, read_all, search_all, write_all
from alcove.integrations.signed_values import (
    AllowedType,
    Room,
    SignedValues,
    StrictSerializer,
    check_key,
    deletes,
    signing_keys,
)

with requires_extra("alcove.integrations.langgraph_threads", extra="langgraph"):
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

P = ParamSpec("P")
R = TypeVar("R")
_REVERSED = {n: 0x9E - n for n in range(0x20, 0x7F)}
_KEY_SUFFIX = "\x7f"
"""Distinguishes a key from an id."""
_SIGNING_BATCH = 100
_MAX_ATTEMPTS = 10
"""How often a checkpoint is read anew because it was deleted while it was read."""


def _awaited(
    method: Callable[Concatenate[AlcoveSaver, P], R],
) -> Callable[Concatenate[AlcoveSaver, P], Coroutine[Any, Any, R]]:
    """The same method for event loops; a thread runs it."""

    @wraps(method)
    async def run(self: AlcoveSaver, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._threads.run(partial(method, self, *args, **kwargs))

    return run


class AlcoveSaver(StoreAdapter, BaseCheckpointSaver[str]):
    """A `BaseCheckpointSaver` on a file or a URL; threads and event loops may share it."""

    def __init__(
        self,
        at: StoreLocation,
        *,
        signing_key: str | bytes | None = None,
        allowed_types: Sequence[AllowedType] = (),
        serde: SerializerProtocol | None = None,
        **options: Any,
    ) -> None:
        """Opens a store, or uses an open one.

        `at`: the path of a file, a URL, or a store; `options`: the other arguments of `alcove.connect`.
        `signing_key`: the secret that signs this app's checkpoints; by default that of
        `ALCOVE_CHECKPOINT_KEY`. A file needs none: the store derives one.
        `allowed_types`: classes of your app that a state may contain, besides those that LangGraph knows as
        safe.
        `serde`: a serializer of your own. It decodes only signed data; you decide which types it builds.
        """
        if serde is not None and allowed_types:
            raise InvalidRequest("allowed_types", "none with a serde, which itself decides what it builds")
        serde = serde or StrictSerializer(allowed_types)
        app_key = check_key(signing_key)
        StoreAdapter.__init__(self, at, options)
        BaseCheckpointSaver.__init__(self, serde=serde)
        self._keys = signing_keys(self._store, app_key, "langgraph checkpoints")

    @property
    def _values(self) -> SignedValues:
        return SignedValues(self._store, self.serde, self._keys)  # LangGraph may set another `serde`

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """A version that no other branch of a thread gives to another value."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:032}.{secrets.token_hex(8)}"

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the newest of its thread."""
        room = (*self._thread_room(config), "at")
        id = get_checkpoint_id(config)
        for _ in range(_MAX_ATTEMPTS):
            if id:
                memory: Memory | None = self._store.get(room, _reverse_order(id))
            else:
                memory = next(search_all(self._store, room, exact=True, limit=1), None)
            if memory is None:
                return None
            if checkpoint := self._load(memory):
                return checkpoint
        return None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, the newest of each thread first."""
        names = config["configurable"] if config else {}
        id, count = names.get("checkpoint_id"), math.inf if limit is None else limit
        before_id = get_checkpoint_id(before) if before else None
        for room in self._checkpoint_rooms(names.get("thread_id"), names.get("checkpoint_ns")):
            for memory in search_all(self._store, room, exact=True):
                memory_id = _reverse_order(memory.key)
                if count <= 0:
                    return
                if (id and memory_id != id) or (before_id and memory_id >= before_id):
                    continue
                checkpoint = self._load(memory)
                metadata = checkpoint.metadata if checkpoint else {}
                if checkpoint and all(metadata.get(key) == value for key, value in (filter or {}).items()):
                    count -= 1
                    yield checkpoint

    def _load(self, memory: Memory) -> CheckpointTuple | None:
        """A checkpoint with its values and writes; None if it was deleted while it was read."""
        room, id = (*memory.namespace[:-1],), _reverse_order(memory.key)
        checkpoint, is_complete = None, False
        with suppress(NotFound):
            [record] = self._values.load([memory])
            channels: dict[str, str] = record["values"]
            headers = read_all(self._store, [Get((*room, "values"), key) for key in channels.values()])
            stored = {name: header for name, header in zip(channels, headers, strict=True) if header}
            values = dict(zip(stored, self._values.load([*stored.values()]), strict=True))
            writes = self._values.load([*search_all(self._store, (*room, "writes", id), exact=True)])
            writes.sort(key=lambda write: writes_sort_key(*write["order"]))
            checkpoint = CheckpointTuple(
                config=_config(room, id),
                checkpoint=record["checkpoint"] | {"channel_values": values},
                metadata=record["metadata"],
                parent_config=_config(room, record["parent"]) if record["parent"] else None,
                pending_writes=[(each["order"][1], each["channel"], each["value"]) for each in writes],
            )
            is_complete = len(stored) == len(channels)
        # A value may be missing because its channel has a version and no value, or because of a deletion.
        return checkpoint if is_complete or self._store.get(memory.namespace, memory.key) else None

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint and its new values."""
        room, id = self._thread_room(config), checkpoint["id"]
        versions, values = {**checkpoint["channel_versions"], **new_versions}, checkpoint["channel_values"]
        channels = {channel: f"{versions.get(channel)}:{channel}" for channel in values}
        operations: list[BatchOperation] = []
        for channel, value in values.items():
            if channel in new_versions or channel not in versions:
                operations += self._values.puts((*room, "values"), channels[channel], value)
        record = {
            "checkpoint": {**checkpoint, "channel_values": {}},
            "metadata": get_checkpoint_metadata(config, metadata),
            "parent": get_checkpoint_id(config),
            "values": channels,
        }
        operations += self._values.puts((*room, "at"), _reverse_order(id), record)  # after its values
        write_all(self._store, operations)
        return _config(room, id)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores what a task wrote; if the task runs again, replaces only errors, interrupts and the like."""
        room = (*self._thread_room(config), "writes", config["configurable"]["checkpoint_id"])
        numbers = [WRITES_IDX_MAP.get(channel, n) for n, (channel, _) in enumerate(writes)]
        stored = read_all(self._store, [Get(room, f"{task_id}:{n}") for n in numbers])
        operations: list[BatchOperation] = []
        for memory, n, (channel, value) in zip(stored, numbers, writes, strict=True):
            if memory is None or n < 0 or not self._values.is_signed(memory):
                record = {"order": (task_path, task_id, n), "channel": channel, "value": value}
                operations += self._values.puts(room, f"{task_id}:{n}", record)
        write_all(self._store, operations)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread: its checkpoints last, and only those whose values are there.

        Nothing is copied once the source was deleted.
        """
        source, target = self._room(source_thread_id), self._room(target_thread_id)
        memories = [*search_all(self._store, source)]
        checkpoints = [each for each in memories if _is_checkpoint(each)]
        if not checkpoints:
            return
        values = {(*each.namespace[:5], each.key) for each in memories if each.namespace[5:] == ("values",)}
        incomplete = {
            (memory.namespace, memory.key)
            for memory, record in zip(checkpoints, self._values.load(checkpoints), strict=True)
            if not {(*memory.namespace[:5], key) for key in record["values"].values()} <= values
        }
        copies: list[BatchOperation] = []
        for memory in sorted(memories, key=_is_checkpoint):
            if (memory.namespace, memory.key) in incomplete:
                continue
            room = (*target, *memory.namespace[len(source) :])
            if _is_header(memory):
                self._values.check_signed(memory)
                copies.append(self._values.put_header(room, memory.key, memory.value))
            else:
                copies.append(Put(room, memory.key, memory.value))
        source_exists = Touch(checkpoints[0].namespace, checkpoints[0].key)
        write_all(self._store, copies, conditions=[source_exists])

    def sign_threads(self, thread_ids: Sequence[str] | None = None) -> int:
        """Signs everything in some threads, or in all, as it is now; returns how much was unsigned.

        For checkpoints that your app wrote before they were signed, or with another key. Nothing shows who
        wrote an unsigned checkpoint: call this only while you know that nobody else wrote any.
        """
        count = 0
        for room in [self._room()] if thread_ids is None else map(self._room, thread_ids):
            headers = filter(_is_header, search_all(self._store, room))
            unsigned = (header for header in headers if not self._values.is_signed(header))
            while batch := [*islice(unsigned, _SIGNING_BATCH)]:
                count += self._sign(batch)
        return count

    def _sign(self, memories: Sequence[Memory]) -> int:
        puts: list[BatchOperation] = []
        for memory in memories:
            with suppress(NotFound, Unreadable):  # skips an incomplete value, or one without a valid header
                [data] = self._values.read_bytes([memory])
                header = {**memory.value, "digest": sha256(data).hexdigest()}
                room = (*memory.namespace,)
                puts.append(self._values.put_header(room, memory.key, header, revision=memory.revision))
        write_all(self._store, puts)
        return len(puts)

    # Deleting

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread."""
        self._delete_below(self._room(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints of some runs."""
        for room in self._checkpoint_rooms():
            memories = [*search_all(self._store, room, exact=True)]
            records = zip(memories, self._values.load(memories), strict=True)
            runs = {*run_ids}
            self._delete([memory for memory, each in records if each["metadata"].get("run_id") in runs])

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes all but the newest checkpoint of each namespace, or all of them."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidRequest("strategy", "keep_latest or delete")
        if strategy == "delete":
            for thread in thread_ids:
                self.delete_thread(thread)
            return
        for room in [each for thread in thread_ids for each in self._checkpoint_rooms(thread)]:
            # Values first: the list cannot have those of a checkpoint that is put while the thread is pruned.
            values = [*search_all(self._store, (*room[:-1], "values"), exact=True)]
            checkpoints = [*search_all(self._store, room, exact=True)]
            if not checkpoints:
                continue
            [record] = self._values.load(checkpoints[:1])
            if record["metadata"].get("counters_since_delta_snapshot"):
                raise NotImplementedError("a DeltaChannel needs the checkpoints before the last")
            self._delete(checkpoints[1:])
            needed = {*record["values"].values()}
            write_all(self._store, deletes([each for each in values if each.key not in needed]))

    def _delete(self, checkpoints: Sequence[Memory]) -> None:
        """Deletes checkpoints with what was written after them."""
        for each in checkpoints:
            self._delete_below((*each.namespace[:-1], "writes", _reverse_order(each.key)))
        write_all(self._store, deletes(checkpoints))

    def _delete_below(self, prefix: Room) -> None:
        """Deletes everything below a prefix, and nothing else, even if a policy redirects the list."""
        while page := self._store.list(prefix, limit=1000):
            below = [each for each in page if each.namespace[: len(prefix)] == prefix]
            if not below:
                return
            write_all(self._store, [Delete(each.namespace, each.key) for each in below])

    # Addresses

    def _room(self, *thread: object) -> Room:
        """The room of a thread, or of all threads."""
        return ("user", self._caller(), THREADS, *map(str, thread))

    def _thread_room(self, config: RunnableConfig) -> Room:
        """The room of a thread's checkpoint namespace."""
        names = config["configurable"]
        return (*self._room(names["thread_id"]), f"ns:{names.get('checkpoint_ns', '')}")

    def _checkpoint_rooms(self, thread: str | None = None, ns: str | None = None) -> Sequence[Room]:
        """The rooms of checkpoints: of one thread, of one namespace of it, or of all threads."""
        if thread is not None and ns is not None:
            return [(*self._room(thread), f"ns:{ns}", "at")]
        below = self._room() if thread is None else self._room(thread)
        rooms = [(*each,) for each in self._store.namespaces(below) if each[5:] == ("at",)]
        return [each for each in rooms if each[: len(below)] == below]  # a policy may redirect the list

    aget_tuple = _awaited(get_tuple)
    aput, aput_writes = _awaited(put), _awaited(put_writes)
    adelete_thread, adelete_for_runs = _awaited(delete_thread), _awaited(delete_for_runs)
    acopy_thread, aprune, asign_threads = _awaited(copy_thread), _awaited(prune), _awaited(sign_threads)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints, the newest of each thread first."""
        make = partial(self.list, config, filter=filter, before=before, limit=limit)
        async with aclosing(self._threads.iterate(make)) as checkpoints:
            async for checkpoint in checkpoints:
                yield checkpoint


def _is_checkpoint(memory: Memory) -> bool:
    return memory.namespace[5:] == ("at",)


def _is_header(memory: Memory) -> bool:
    """Whether this is the header of a checkpoint, a value or a write, and not a part of one."""
    kind, *labels = memory.namespace[5:] or ("",)
    return (kind in ("at", "values") and not labels) or (kind == "writes" and len(labels) == 1)


def _reverse_order(id: str) -> str:
    """A key that sorts before the keys of earlier ids; applied to a key, it returns the id."""
    text = id.removesuffix(_KEY_SUFFIX)
    if not (text.isascii() and text.isprintable()):
        raise InvalidRequest("checkpoint_id", "printable ASCII")
    return text.translate(_REVERSED) + ("" if id.endswith(_KEY_SUFFIX) else _KEY_SUFFIX)


def _config(room: Room, id: str) -> RunnableConfig:
    ns = room[4].removeprefix("ns:")
    return {"configurable": {"thread_id": room[3], "checkpoint_ns": ns, "checkpoint_id": id}}
