"""Whether the process is alive, and whether it can do its work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from msgspec import Struct, json

from alcove.core.errors import AlcoveError
from alcove.server.answers import HealthAnswer
from alcove.server.application import Page
from alcove.server.resource import Call, Resource
from alcove.server.thread_pool import Offload


class HealthApi:
    """`/healthz` for the process, `/readyz` for what it stands on; both open to everybody.

    A check that raises holds everything up; one that answers with a text has something to say.
    """

    def __init__(self, checks: Mapping[str, Callable[[], object]], offload: Offload) -> None:
        self._checks = checks
        self._offload = offload
        self._checking: asyncio.Task[Struct] | None = None

    def resources(self) -> list[Resource]:
        return [
            Resource(
                method="GET", path="/healthz", handler=self.alive, summary="Whether the process is alive",
                answer=HealthAnswer, errors=(400,), open=True,
            ),
            Resource(
                method="GET", path="/readyz", handler=self.ready, summary="Whether it can do its work",
                answer=HealthAnswer, errors=(400, 503), open=True,
            ),
        ]  # fmt: skip

    async def alive(self, call: Call) -> Struct:
        return HealthAnswer("ok")

    async def ready(self, call: Call) -> Struct:
        """All who ask at once share one answer: whoever they are, they cost no more than one of them."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._checked())
        return await asyncio.shield(self._checking)

    async def _checked(self) -> Struct:
        checks, ready = {}, True
        for name, check in self._checks.items():
            try:
                said = await self._offload(check)
                checks[name] = said if isinstance(said, str) else "ok"
            except AlcoveError as error:
                checks[name], ready = error.message, False
        if ready:
            return HealthAnswer("ok", checks)
        return Page(json.encode(HealthAnswer("unavailable", checks)), b"application/json", 503)
