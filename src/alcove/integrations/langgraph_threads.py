"""LangGraph: its checkpoints, kept in Alcove.

    graph = builder.compile(checkpointer=AlcoveSaver("memory.db"))

Threads are in the caller's own namespace, encrypted, and erased with them. Each is signed with a key that
users do not have, and decoding builds known safe types only: a checkpoint that a user plants is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from alcove.core.errors import InvalidRequest, requires_extra
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


def _for_both(
    do: Callable[Concatenate[Checkpoints, P], R],
) -> tuple[
    Callable[Concatenate[AlcoveSaver, P], R], Callable[Concatenate[AlcoveSaver, P], Coroutine[Any, Any, R]]
]:
    """A method for threads and one for event loops, as LangGraph has each."""

    @wraps(do)
    def blocking(self: AlcoveSaver, /, *args: P.args, **named: P.kwargs) -> R:
        return do(self._checkpoints(), *args, **named)

    @wraps(do)
    async def awaited(self: AlcoveSaver, /, *args: P.args, **named: P.kwargs) -> R:
        return await self._threads.run(partial(blocking, self, *args, **named))

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

    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self._store, Codec(self.serde, self._signer), self._caller())

    get_tuple, aget_tuple = _for_both(Checkpoints.read)
    put, aput = _for_both(Checkpoints.keep)
    put_writes, aput_writes = _for_both(Checkpoints.keep_writes)
    delete_thread, adelete_thread = _for_both(Checkpoints.delete)
    delete_for_runs, adelete_for_runs = _for_both(Checkpoints.delete_runs)
    copy_thread, acopy_thread = _for_both(Checkpoints.copy)
    prune, aprune = _for_both(Checkpoints.prune)
    sign_threads, asign_threads = _for_both(Checkpoints.sign)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return self._checkpoints().listed(config, filter, before, limit)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        listed = partial(self.list, config, filter=filter, before=before, limit=limit)
        async with aclosing(self._threads.iterate(listed)) as checkpoints:
            async for checkpoint in checkpoints:
                yield checkpoint
