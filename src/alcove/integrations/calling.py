"""Shared by the adapters: calls to both kinds of handles, and the errors that a model can correct."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

from alcove.api.operation import AsyncHandle
from alcove.client.agent import AgentHandle, AsyncAgentHandle
from alcove.core.errors import Conflict, InvalidRequest, NotFound

P = ParamSpec("P")
R = TypeVar("R")
MENDABLE = (InvalidRequest, NotFound, Conflict)
"""Errors that a model can do something about: wrong arguments, nothing there, changed since it was read."""


def checked_handle(handle: object) -> None:
    """Refuses what is no agent's handle before anything is done with it."""
    if not isinstance(handle, AgentHandle | AsyncAgentHandle):
        raise InvalidRequest("handle", 'an agent of a store: store.agent("helper")')


async def call_handle(
    call: Callable[P, R] | Callable[P, Coroutine[Any, Any, R]], *args: P.args, **named: P.kwargs
) -> R:
    """Calls a method of either kind of handle: awaits it, or runs it in a thread if it blocks."""
    if isinstance(getattr(call, "__self__", None), AsyncHandle | AsyncAgentHandle):
        return await cast("Callable[P, Coroutine[Any, Any, R]]", call)(*args, **named)
    return cast(R, await asyncio.to_thread(call, *args, **named))
