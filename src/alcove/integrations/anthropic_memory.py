"""Anthropic's memory tool: the files that Claude writes to /memories are memories of the user."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from alcove.client.asynchronous import AsyncAlcove
from alcove.client.remote import MAX_CALLS
from alcove.client.store import Store
from alcove.core.decoding import convert
from alcove.core.errors import InvalidRequest, requires_extra
from alcove.core.event_loop import CallThreads
from alcove.integrations.adapter import CORRECTABLE_ERRORS
from alcove.integrations.memory_files import MemoryFiles

with requires_extra("alcove.integrations.anthropic_memory", extra="anthropic"):
    from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
    from anthropic.types.beta import BetaCacheControlEphemeralParam, BetaMemoryTool20250818Command


class AlcoveMemoryTool(BetaAbstractMemoryTool):
    """An agent's memory for the user of a store, for `client.beta.messages.tool_runner(tools=[…])`."""

    def __init__(
        self, store: Store, agent: str, *, cache_control: BetaCacheControlEphemeralParam | None = None
    ) -> None:
        """`store`: opened for the user: `alcove.connect("memory.db", user="alice")`. `agent`: its name."""
        super().__init__(cache_control=cache_control)
        if not isinstance(store, Store):
            raise InvalidRequest("store", "an open store: alcove.connect(…)")
        self._files = MemoryFiles(store, agent)

    def call(self, input: object) -> str:
        """Performs a command of Claude; raises `ToolError` with the reason if it cannot."""
        return _perform(self._files, input)

    def execute(self, command: BetaMemoryTool20250818Command) -> str:
        """Performs a command that is a record of the client library."""
        return self.call(command.to_dict())

    view = create = str_replace = insert = delete = rename = execute

    def clear_all_memory(self) -> str:
        """Deletes every file of the user with this agent."""
        return self._files.clear()


class AsyncAlcoveMemoryTool(BetaAsyncAbstractMemoryTool):
    """An `AlcoveMemoryTool` for `AsyncAnthropic`, with an `AsyncAlcove`."""

    def __init__(
        self, store: AsyncAlcove, agent: str, *, cache_control: BetaCacheControlEphemeralParam | None = None
    ) -> None:
        """`store`: opened for the user: `AsyncAlcove("memory.db", user="alice")`. `agent`: its name."""
        super().__init__(cache_control=cache_control)
        if not isinstance(store, AsyncAlcove):
            raise InvalidRequest("store", "an AsyncAlcove: AsyncAlcove(…)")
        self._files = MemoryFiles(store.blocking(), agent)
        self._threads = CallThreads(MAX_CALLS, "alcove-files")

    async def call(self, input: object) -> str:
        """Performs a command of Claude; raises `ToolError` with the reason if it cannot."""
        return await self._threads.run(partial(_perform, self._files, input))

    async def execute(self, command: BetaMemoryTool20250818Command) -> str:
        """Performs a command that is a record of the client library."""
        return await self.call(command.to_dict())

    view = create = str_replace = insert = delete = rename = execute

    async def clear_all_memory(self) -> str:
        """Deletes every file of the user with this agent."""
        return await self._threads.run(self._files.clear)


# The commands, which a model may get wrong in any way; each has a method of `MemoryFiles`


class _View(Struct, tag_field="command", tag="view"):
    path: str
    view_range: tuple[int, int] | None = None


class _Create(Struct, tag_field="command", tag="create"):
    path: str
    file_text: str


class _StrReplace(Struct, tag_field="command", tag="str_replace"):
    path: str
    old_str: str
    new_str: str = ""


class _Insert(Struct, tag_field="command", tag="insert"):
    path: str
    insert_line: int
    insert_text: str


class _Delete(Struct, tag_field="command", tag="delete"):
    path: str


class _Rename(Struct, tag_field="command", tag="rename"):
    old_path: str
    new_path: str


_Command: Any = _View | _Create | _StrReplace | _Insert | _Delete | _Rename


def _perform(files: MemoryFiles, input: object) -> str:
    """Performs a command and returns the text for the model."""
    try:
        command = convert(input, _Command)
        method = getattr(files, command.__struct_config__.tag)
        return str(method(*msgspec.structs.astuple(command)))
    except msgspec.ValidationError as error:
        raise ToolError(f"This is not a command of the memory tool: {str(error)[:300]}") from None
    except CORRECTABLE_ERRORS as error:
        raise ToolError(error.public_message) from error
