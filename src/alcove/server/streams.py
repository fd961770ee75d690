"""Events as they happen, and memories by the line: what has no end that can be known beforehand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial

import msgspec
from msgspec import Struct

from alcove.core import cursor
from alcove.core.clock import system_clock
from alcove.core.cursor import PIECE_BYTES
from alcove.core.errors import AlcoveError
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import Event, EventPage, Kind
from alcove.server import answers
from alcove.server.resource import Call, Resource
from alcove.server.streaming import ASK_AGAIN_SECONDS, Allowed, Stream, Tail, gathered, while_allowed
from alcove.server.thread_pool import ThreadPool
from alcove.store.memories import Memories
from alcove.store.reading import View
from alcove.upkeep.transfer import MOST_BYTES, Importer, Imports

HEARTBEAT_SECONDS = 15.0
_PAGE = 100
NDJSON = b"application/x-ndjson"
Page = tuple[EventPage, list[bytes]]
"""A page without its events, and what is sent of those."""
_encode = msgspec.json.Encoder().encode


class StreamsApi:
    """The resources under `/v1/memories` that stream."""

    def __init__(self, memories: Memories, reads: ThreadPool, changes: ThreadPool, tail: Tail) -> None:
        self._memories = memories
        self._reads = reads
        self._changes = changes
        self._tail = tail

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
                query=answers.ImportQuery, takes_lines=True, answer=Imports, errors=(400, 401, 403, 415),
            ),
        ]  # fmt: skip

    async def stream(self, call: Call) -> Struct:
        namespace = Namespace.checked(call.query.ns, "ns")
        return await self.follow(call, lambda: call.principal, namespace, call.query.kinds)

    async def follow(
        self, call: Call, who: Callable[[], Principal], namespace: Namespace, kinds: Sequence[Kind] | None
    ) -> Struct:
        """The events of a namespace from where the caller left off; `who` says each time who may see them."""
        resumed = call.headers.get(b"last-event-id")
        seen = self._tail.end()
        after = self._memories.end_of_events() if resumed is None else resumed.decode("latin-1")

        def read(position: str) -> Page:
            page = self._memories.events(
                who(), namespace, kinds=kinds, after_cursor=position, limit=_PAGE, most_bytes=PIECE_BYTES
            )
            return msgspec.structs.replace(page, events=[]), [*gathered(map(_told, page.events))]

        allowed = self._allowed(call, self._memories.view(who, namespace))
        first = await self._reads(partial(read, after))  # refused here, with a status
        events = self._events(read, after, first, seen)
        return Stream(events, b"text/event-stream", allowed, b": ended %s\n\n")

    async def _events(
        self, read: Callable[[str], Page], after: str, found: Page, seen: int
    ) -> AsyncIterator[bytes]:
        """Pages of events; `seen` is how far the log went before the page was read, if it has an end."""
        page, pieces = found
        yield b"retry: 1000\nid: %s\n\n" % after.encode()  # who is cut off before an event resumes here
        if page.truncated_before:
            yield b"event: truncated\ndata: %s\n\n" % _encode({"truncated_before": page.truncated_before})
        heard = time.monotonic()
        while not self._tail.stopping:
            for piece in pieces:
                yield piece
                heard = time.monotonic()
            position = cursor.decode(page.after_cursor)
            if not page.more:
                position = max(position, seen)  # what came before it was not for this reader
                await self._tail.beyond(position, heard + HEARTBEAT_SECONDS - time.monotonic())
            if time.monotonic() - heard >= HEARTBEAT_SECONDS:
                yield b": still here\n\n"
                heard = time.monotonic()
            seen = self._tail.end()
            page, pieces = await self._reads(partial(read, cursor.encode(position)))

    async def export(self, call: Call) -> Struct:
        call.hold(MOST_BYTES)  # of what is read and not yet taken
        view = self._memories.view(lambda: call.principal, Namespace.checked(call.query.ns, "ns"))
        found = map(answers.MemoryAnswer.of_memory, self._memories.seen(view))
        return json_lines(self._reads, found, self._allowed(call, view))

    @staticmethod
    def _allowed(call: Call, view: View) -> Allowed:
        """Whether who calls is who they were, and may see what they might when they began."""

        async def allowed() -> None:
            await call.ask_again()
            view()

        return allowed

    async def bring(self, call: Call) -> Struct:
        importer = Importer(self._memories, lambda: call.principal, system_clock)
        lines, room = importer.lines, MOST_BYTES
        call.hold(room)
        try:
            async for piece in while_allowed(call.pieces, call.ask_again):
                if lines.begun > room:
                    room = lines.most
                    call.hold(room)
                for bundle in lines.bundles(piece):
                    await self._take(importer, bundle, call)
            await self._take(importer, lines.rest(), call)
        except AlcoveError as error:
            error.details |= importer.report.counts
            raise
        return importer.report

    async def _take(self, importer: Importer, bundle: Sequence[bytes], call: Call) -> None:
        await self._changes(partial(importer.take, bundle))
        for pause in importer.index_pauses() if call.query.wait_for_index == "true" else ():
            await asyncio.sleep(min(pause, ASK_AGAIN_SECONDS))
            await call.ask_again()


def _told(event: Event) -> bytes:
    return b"id: %s\ndata: %s\n\n" % (event.cursor.encode(), _encode(event))


def json_lines(offload: ThreadPool, found: Iterator[Struct], allowed: Allowed) -> Stream:
    """Records as lines of JSON, read and written out in the pool, no more than a piece at a time."""
    lines = gathered(_encode(each) + b"\n" for each in found)

    async def pieces() -> AsyncIterator[bytes]:
        while piece := await offload(lambda: next(lines, None)):
            yield piece

    return Stream(pieces(), NDJSON, allowed, b"%s\n")
