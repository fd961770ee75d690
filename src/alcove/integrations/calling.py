"""What adapters have in common: they await a handle of either kind, and tell a model of some errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

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


async def awaited(
    call: Callable[P, R] | Callable[P, Coroutine[Any, Any, R]], *args: P.args, **named: P.kwargs
) -> R:
    """What a method of a handle gives: awaited, or done in a thread where it blocks."""
    if inspect.iscoroutinefunction(call):
        return cast(R, await call(*args, **named))
    return cast(R, await asyncio.to_thread(call, *args, **named))
