"""Events as they happen, and memories by the line: what has no end that can be known beforehand."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import msgspec
from msgspec import Struct

from alcove import cursor
from alcove.clock import system_clock
from alcove.http import answers
from alcove.http.offload import Offload
from alcove.http.resource import Call, Resource
from alcove.http.streaming import Stream, Tail, gathered, lines
from alcove.namespace import Namespace
from alcove.principal import Principal
from alcove.records import Event, EventPage, Kind, Memory
from alcove.service import Memories
from alcove.transfer import AT_A_TIME, Importer, Imports

HEARTBEAT_SECONDS = 15.0
_PAGE = 100
NDJSON = b"application/x-ndjson"
Read = Callable[..., EventPage]
_encode = msgspec.json.Encoder().encode


class StreamsApi:
    """The resources under `/v1/memories` that stream."""

    def __init__(self, memories: Memories, offload: Offload, tail: Tail, *, most_line: int) -> None:
        self._memories = memories
        self._offload = offload
        self._tail = tail
        self._most_line = most_line

    def resources(self) -> list[Resource]:
        at = "/v1/memories"
        return [
            Resource(
                method="GET", path=f"{at}/events/stream", handler=self.stream, query=answers.StreamQuery,
                summary="Follow the timeline as server-sent events; resumes with Last-Event-ID",
                streams="text/event-stream",
            ),
            Resource(
                method="GET", path=f"{at}/export", handler=self.export, query=answers.ExportQuery,
                summary="Every memory the caller may see below a namespace, one a line",
                streams=NDJSON.decode(),
            ),
            Resource(
                method="POST", path=f"{at}/import", handler=self.bring, summary="Import lines of an export",
                takes_lines=True, answer=Imports, errors=(400, 401, 403, 415),
            ),
        ]  # fmt: skip

    async def stream(self, call: Call) -> Struct:
        namespace = Namespace.checked(call.query.ns, "ns")
        return await self.follow(call, lambda: call.principal, namespace, call.query.kinds)

    async def follow(
        self, call: Call, who: Callable[[], Principal], namespace: Namespace, kinds: Sequence[Kind] | None
    ) -> Struct:
        """The events of a namespace from where the caller left off; who may see them is asked every time."""
        resumed = call.headers.get(b"last-event-id")
        seen = self._tail.end()
        after = self._memories.end_of_events() if resumed is None else resumed.decode("latin-1")

        def read(**position: str) -> EventPage:
            return self._memories.events(who(), namespace, kinds=kinds, limit=_PAGE, **position)

        page = await self._offload(lambda: read(after_cursor=after))  # refused here, with a status
        expiry = call.principal.claims.get("exp")
        until = float(expiry) if isinstance(expiry, int | float) else math.inf
        return Stream(self._events(read, after, page, seen, until), b"text/event-stream")

    async def _events(
        self, read: Read, after: str, page: EventPage, seen: int, until: float
    ) -> AsyncIterator[bytes]:
        """Pages of events; `seen` is how far the log went before the page was read, if it has an end.

        It ends when the token does that it was opened with.
        """
        yield b"retry: 1000\nid: %s\n\n" % after.encode()  # who is cut off before an event resumes here
        if page.truncated_before:
            yield b"event: truncated\ndata: %s\n\n" % _encode({"truncated_before": page.truncated_before})
        while time.time() < until:
            told = (
                b"id: %s\ndata: %s\n\n" % (event.cursor.encode(), _encode(event)) for event in page.events
            )
            for piece in gathered(told):
                yield piece
            position = cursor.decode(page.after_cursor)
            if len(page.events) < _PAGE:
                position = max(position, seen)  # what came before it was not for this reader
                while not await self._tail.beyond(position, HEARTBEAT_SECONDS):
                    if self._tail.stopping or time.time() >= until:
                        return
                    yield b": still here\n\n"
            seen = self._tail.end()
            at = cursor.encode(position)
            page = await self._offload(partial(read, after_cursor=at))

    async def export(self, call: Call) -> Struct:
        found = self._memories.export(call.principal, Namespace.checked(call.query.ns, "ns"))
        return memory_lines(self._offload, found)

    async def bring(self, call: Call) -> Struct:
        importer = Importer(self._memories, call.principal, system_clock)
        bundle: list[bytes] = []
        async for line in lines(call.pieces, self._most_line):
            bundle.append(line)
            if len(bundle) == AT_A_TIME:
                await self._offload(partial(importer.take, bundle))
                bundle = []
        await self._offload(partial(importer.take, bundle))
        return importer.report


def _told(event: Event) -> bytes:
    return b"id: %s\ndata: %s\n\n" % (event.cursor.encode(), _encode(event))


def memory_lines(offload: Offload, found: Iterator[Memory]) -> Stream:
    """Memories as lines of JSON, read a page at a time in the pool."""

    async def pieces() -> AsyncIterator[bytes]:
        while page := await offload(lambda: [*islice(found, _PAGE)]):
            for piece in gathered(_encode(answers.MemoryAnswer.of_memory(each)) + b"\n" for each in page):
                yield piece

    return Stream(pieces(), NDJSON)
