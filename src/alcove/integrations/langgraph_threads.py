"""LangGraph: its checkpoints, kept in Alcove.

    graph = builder.compile(checkpointer=AlcoveSaver("memory.db"))

Threads are in the caller's own namespace, encrypted, and erased with them. Each is signed with a key that
users do not have, and decoding builds known safe types only: a checkpoint that a user plants is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from alcove.core.errors import InvalidRequest, requires_extra
from alcove.core.waiting import at_once, in_turn
from alcove.integrations.langgraph_checkpoints import Checkpoints
from alcove.integrations.langgraph_serde import AllowedType, StrictSerializer
from alcove.integrations.opened import At, Opened
from alcove.integrations.signing import make_signer, secret_key
from alcove.integrations.things import Codec

with requires_extra("alcove.integrations.langgraph_threads", extra="langgraph"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.checkpoint.serde.base import SerializerProtocol

P = ParamSpec("P")
R = TypeVar("R")
_PURPOSE = "langgraph checkpoints"


def _twice(
    do: Callable[Concatenate[Checkpoints, P], Coroutine[Any, Any, R]],
) -> tuple[
    Callable[Concatenate[AlcoveSaver, P], R], Callable[Concatenate[AlcoveSaver, P], Coroutine[Any, Any, R]]
]:
    """A method for threads and one for event loops, as LangGraph has each."""

    @wraps(do)
    def blocking(self: AlcoveSaver, /, *args: P.args, **named: P.kwargs) -> R:
        return at_once(do(at_once(self._of(self._store)), *args, **named))

    @wraps(do)
    async def awaited(self: AlcoveSaver, /, *args: P.args, **named: P.kwargs) -> R:
        return await do(await self._of(self._twin()), *args, **named)

    return blocking, awaited


class AlcoveSaver(Opened, BaseCheckpointSaver[str]):
    """A `BaseCheckpointSaver` on a file or a URL; threads and event loops share one."""

    def __init__(
        self,
        at: At,
        *,
        signing_key: str | bytes | None = None,
        allowed_types: Sequence[AllowedType] = (),
        serde: SerializerProtocol | None = None,
        **opening: Any,
    ) -> None:
        """Opens a store, or takes one that is open.

        `at`: the path of a file, a URL, or a store; `opening`: what `alcove.connect` takes beside it.
        `signing_key`: the secret that tells this app's checkpoints from those of others; without it,
        `ALCOVE_CHECKPOINT_KEY`. A file needs none: the store derives one.
        `allowed_types`: classes of the app that a state may hold, beside those that LangGraph knows as safe.
        `serde`: a serialiser of your own. It decodes only what is signed; what it builds is up to it.
        """
        if serde is not None and allowed_types:
            raise InvalidRequest("allowed_types", "none with a serde, which itself decides what it builds")
        strict = serde or StrictSerializer(allowed_types)
        secret = secret_key(signing_key, at)
        Opened.__init__(self, at, opening)
        BaseCheckpointSaver.__init__(self, serde=strict)
        self._signer = make_signer(self._store, secret, _PURPOSE)

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """A version that no other branch of a thread gives to another value."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:032}.{secrets.token_hex(8)}"

    async def _of(self, alcove: Any) -> Checkpoints:
        return Checkpoints(alcove, Codec(self.serde, self._signer), await self._caller(alcove))

    get_tuple, aget_tuple = _twice(Checkpoints.read)
    put, aput = _twice(Checkpoints.keep)
    put_writes, aput_writes = _twice(Checkpoints.keep_writes)
    delete_thread, adelete_thread = _twice(Checkpoints.delete)
    delete_for_runs, adelete_for_runs = _twice(Checkpoints.delete_runs)
    copy_thread, acopy_thread = _twice(Checkpoints.copy)
    prune, aprune = _twice(Checkpoints.prune)
    sign_threads, asign_threads = _twice(Checkpoints.sign)

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
