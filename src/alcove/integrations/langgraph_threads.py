"""LangGraph: its checkpoints, kept in Alcove.

    graph = builder.compile(checkpointer=AlcoveSaver("memory.db"))

Threads are in the caller's own room, sealed, and erased with them.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from alcove.core.errors import needed_by
from alcove.core.waiting import at_once, in_turn
from alcove.integrations.langgraph_checkpoints import Checkpoints
from alcove.integrations.opened import At, Opened

with needed_by("alcove.integrations.langgraph_threads", extra="langgraph"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol

R = TypeVar("R")


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

    async def _of(self, alcove: Any) -> Checkpoints:
        return Checkpoints(alcove, self.serde, await self._caller(alcove))

    def _now(self, do: Callable[[Checkpoints], Coroutine[Any, Any, R]]) -> R:
        """Does something in this thread."""
        return at_once(do(at_once(self._of(self._store))))

    async def _here(self, do: Callable[[Checkpoints], Coroutine[Any, Any, R]]) -> R:
        """Does something on this event loop."""
        return await do(await self._of(self._twin()))

    # LangGraph has each twice

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._now(lambda kept: kept.read(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._here(lambda kept: kept.read(config))

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

    async def _listed(self, alcove: Any, *asked: Any) -> AsyncGenerator[CheckpointTuple, None]:
        async for found in (await self._of(alcove)).listed(*asked):
            yield found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._now(lambda kept: kept.keep(config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._here(lambda kept: kept.keep(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._now(lambda kept: kept.keep_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._here(lambda kept: kept.keep_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._now(lambda kept: kept.delete([thread_id]))

    async def adelete_thread(self, thread_id: str) -> None:
        await self._here(lambda kept: kept.delete([thread_id]))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._now(lambda kept: kept.delete_runs({*run_ids}))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._here(lambda kept: kept.delete_runs({*run_ids}))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._now(lambda kept: kept.copy(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._here(lambda kept: kept.copy(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._now(lambda kept: kept.prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._here(lambda kept: kept.prune(thread_ids, strategy))
