"""What has no end that can be known beforehand: events as they happen, exports, imports, backups."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from alcove.agents.service import Agents
from alcove.api.operation import Operation, encode_answer
from alcove.api.operations import EVENTS, NDJSON
from alcove.core import cursor
from alcove.core.errors import AlcoveError
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import Event, EventKind, EventPage
from alcove.server.limits import ThreadPool, TimeLimit
from alcove.server.routes import Endpoint, Request
from alcove.store.memories import Memories
from alcove.upkeep.transfer import MOST_BYTES, Importer, Imports

HEARTBEAT_SECONDS = 15.0
ASK_AGAIN_SECONDS = 2.0
"""How long something open goes on before it is asked again whether it may."""
_POLL_SECONDS = 0.05
_UNHEARD_SECONDS = 2.0
"""After which the end of the log is asked for where nobody told of a write."""
PART_BYTES = 64 * 1024
"""What a connection takes without waiting for its reader."""
_PAGE = 100
_BACKUP_PIECE_BYTES = 256 * 1024
T = TypeVar("T")
Page = tuple[EventPage, list[bytes]]
"""A page without its events, and what is sent of those."""
_encode = msgspec.json.Encoder().encode


class Stream(Struct):
    """An answer that is sent piece by piece, as long as it is allowed."""

    pieces: AsyncIterator[bytes]
    media_type: bytes
    last_words: bytes | None = None
    """What is sent, around the error, before an answer ends that is no longer allowed; None breaks it off."""
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ((b"cache-control", b"no-store"),)
    waits: bool = True
    """Whether it may have nothing to send for a long time, and ends all the same when it is not allowed."""


class Tail:
    """The end of the log, as every reader in this process waits for it to move.

    It is asked for, because another process may have written, once for all readers. Where a store tells of
    writes, it is asked for after each, and otherwise only in case one was not heard of.
    """

    def __init__(
        self, last: Callable[[], int], when_told: Callable[[Callable[[], None]], bool] = lambda _: False
    ) -> None:
        self._last = last
        self._end = 0
        self._asked = 0.0
        self._waiting = 0
        self._holds = _UNHEARD_SECONDS if when_told(self._told) else _POLL_SECONDS
        self.stopping = False

    def stop(self) -> None:
        """Ends every stream, so that a server that is told to stop can."""
        self.stopping = True

    def end(self) -> int:
        """The highest sequence number, as it was a moment ago at most."""
        now = time.monotonic()
        if now - self._asked >= self._holds:
            self._asked = now  # first: what is told of meanwhile is asked for again
            self._end = max(self._end, self._last())
        return self._end

    def _told(self) -> None:
        """On the thread that listens, for those who wait: an event loop has no time to ask."""
        self._asked = 0.0
        if self._waiting:
            self._end, self._asked = max(self._end, self._last()), time.monotonic()

    async def beyond(self, position: int, seconds: float) -> bool:
        """Waits until the log goes beyond a position; False where it did not within that time."""
        deadline = time.monotonic() + seconds
        self._waiting += 1
        try:
            while not self.stopping and time.monotonic() < deadline:
                if self.end() > position:
                    return True
                await asyncio.sleep(_POLL_SECONDS)
            return False
        finally:
            self._waiting -= 1


class _ImportQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    wait_for_index: Literal["true", "false"] = "false"


@dataclass
class Streams:
    """Answers and bodies that come in pieces: a handler for each operation that streams, by its name."""

    services: Mapping[str, Any]
    memories: Memories
    agents: Agents
    reads: ThreadPool
    changes: ThreadPool
    tail: Tail

    def endpoints(self) -> list[Endpoint]:
        """What streams and stands in no table."""
        return [
            Endpoint(
                Operation(None, "POST /v1/memories/import", "Import lines of an export",
                          name="import_memories", tag="memories", request_record=_ImportQuery, line_body=True,
                          answer_record=Imports),
                self.import_memories,
            ),
            Endpoint(
                Operation(None, "GET /v1/admin/backup", "The whole store as one file, verified",
                          name="backup", tag="admin", role="admin", unlimited_time=True,
                          stream_type="application/octet-stream"),
                self.backup,
            ),
        ]  # fmt: skip

    async def follow(self, request: Request) -> Struct:
        namespace = Namespace.checked(request.parameters.ns, "ns")
        return await self._follow(request, lambda: request.principal, namespace, request.parameters.kinds)

    async def watch_room(self, request: Request) -> Struct:
        where = request.path["agent"], request.path["kind"], request.parameters.instance
        room = partial(self.agents.scratch_room, request.principal, *where)
        namespace = (await self.changes(room)).namespace
        return await self._follow(request, lambda: room().principal, namespace, None)

    async def _follow(
        self,
        request: Request,
        who: Callable[[], Principal],
        namespace: Namespace,
        kinds: Sequence[EventKind] | None,
    ) -> Struct:
        """The events of a namespace from where the caller left off; `who` says each time who may see them."""
        resumed = request.headers.get(b"last-event-id")
        seen = self.tail.end()
        after = self.memories.timeline.end() if resumed is None else resumed.decode("latin-1")

        def read(position: str) -> Page:
            page = self.memories.timeline.event_page(
                who(),
                namespace,
                kinds=kinds,
                after_cursor=position,
                limit=_PAGE,
                max_bytes=cursor.STREAM_CHUNK_BYTES,
            )
            return msgspec.structs.replace(page, events=[]), [*gathered(map(_told, page.events))]

        request.view = self.memories.access.view(who, namespace)
        first = await self.reads.run(partial(read, after))  # refused here, with a status
        events = self._events(read, after, first, seen)
        return Stream(events, EVENTS.encode(), b": ended %s\n\n")

    async def _events(
        self, read: Callable[[str], Page], after: str, found: Page, seen: int
    ) -> AsyncIterator[bytes]:
        """Pages of events; `seen` is how far the log went before the page was read, if it has an end."""
        page, pieces = found
        yield b"retry: 1000\nid: %s\n\n" % after.encode()  # who is cut off before an event resumes here
        if page.truncated_before:
            yield b"event: truncated\ndata: %s\n\n" % _encode({"truncated_before": page.truncated_before})
        heard = time.monotonic()
        while not self.tail.stopping:
            for piece in pieces:
                yield piece
                heard = time.monotonic()
            position = cursor.decode(page.after_cursor)
            if not page.more:
                position = max(position, seen)  # what came before it was not for this reader
                await self.tail.beyond(position, heard + HEARTBEAT_SECONDS - time.monotonic())
            if time.monotonic() - heard >= HEARTBEAT_SECONDS:
                yield b": still here\n\n"
                heard = time.monotonic()
            seen = self.tail.end()
            page, pieces = await self.reads.run(partial(read, cursor.encode(position)))

    async def export_memories(self, request: Request) -> Struct:
        request.reserve_bytes(MOST_BYTES)  # of what is read and not yet taken
        namespace, principal = Namespace.checked(request.parameters.ns, "ns"), request.principal
        view = request.view = self.memories.access.view(lambda: request.principal, namespace)
        # Who reads by a role waits for the audit log now and then: not in a thread that readers need.
        threads = self.changes if principal.has_role else self.reads
        return self._lines(self.memories.reader.scan_view(principal, namespace, view), threads)

    async def export(self, request: Request) -> Struct:
        export = partial(self.services["PersonalDataReader"].export, request.principal, request.path["user"])
        return self._lines(await self.changes(export), self.reads)

    async def backup(self, request: Request) -> Struct:
        folder = tempfile.TemporaryDirectory(prefix="alcove-backup-")  # gone when the last lets go of it
        backups, to = self.services["BackupWriter"], Path(folder.name) / "backup.db"
        await self.reads(lambda: [*backups.write(request.principal, to)])

        async def pieces() -> AsyncIterator[bytes]:
            with folder, to.open("rb") as file:
                while piece := await self.reads(partial(file.read, _BACKUP_PIECE_BYTES)):
                    yield piece

        return Stream(pieces(), b"application/octet-stream")

    def _lines(self, found: Iterator[Struct], threads: ThreadPool) -> Stream:
        """Records as lines of JSON, read and written out in threads, no more than a piece at a time."""
        lines = gathered(encode_answer(each) + b"\n" for each in found)

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await threads(lambda: next(lines, None)):
                yield piece

        return Stream(pieces(), NDJSON.encode(), b"%s\n")

    async def import_memories(self, request: Request) -> Struct:
        importer = Importer(self.memories, lambda: request.principal)
        lines, room = importer.lines, MOST_BYTES
        request.reserve_bytes(room)
        try:
            async for piece in while_allowed(request.pieces, request):
                if lines.begun > room:
                    room = lines.most
                    request.reserve_bytes(room)
                for bundle in lines.bundles(piece):
                    await self._take(importer, bundle, request)
            await self._take(importer, lines.rest(), request)
        except AlcoveError as error:
            error.details |= importer.report.counts
            raise
        return importer.report

    async def _take(self, importer: Importer, bundle: Sequence[bytes], request: Request) -> None:
        await self.changes(partial(importer.take, bundle))
        if request.parameters.wait_for_index == "true":
            await allowed(self.reads.run(importer.wait_for_index), request)


async def send_body(pieces: AsyncIterator[bytes], receive: Any, send: Any, in_time: TimeLimit) -> None:
    """Sends every piece, unless the client goes away.

    A reader that does not take a part of one `in_time` is cut off and may resume. Nothing is read ahead for
    it, and a piece is let go of once all but its last part was taken.
    """
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        async for piece in pieces:
            for at in range(0, len(piece), PART_BYTES):
                part = piece[at : at + PART_BYTES]
                await in_time(send({"type": "http.response.body", "body": part, "more_body": True}))
                if gone.done():
                    return
        await in_time(send({"type": "http.response.body", "body": b""}))
    finally:
        gone.cancel()
        await pieces.aclose()  # type: ignore[attr-defined]


async def allowed(work: Awaitable[T], request: Request) -> T:
    """What the work gives; whether the request is still allowed is asked every few seconds."""
    coming = asyncio.ensure_future(work)
    try:
        while not coming.done():
            await asyncio.wait((coming,), timeout=ASK_AGAIN_SECONDS)
            await request.check_access()
        return await coming
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


async def while_allowed(pieces: AsyncIterator[bytes], request: Request) -> AsyncIterator[bytes]:
    """The same pieces; whether the request is still allowed is asked before each, and every few seconds."""
    try:
        while (piece := await allowed(anext(pieces, None), request)) is not None:
            yield piece
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


async def while_allowed_by_clock(pieces: AsyncIterator[bytes], request: Request) -> AsyncIterator[bytes]:
    """The same for what always has something to send: it is asked every few seconds, and costs no task."""
    asked = time.monotonic()
    try:
        async for piece in pieces:
            if time.monotonic() - asked >= ASK_AGAIN_SECONDS:
                await request.check_access()
                asked = time.monotonic()
            yield piece
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def gathered(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Small parts together and large ones alone: what a reader does not take is held for as long."""
    piece = bytearray()
    for part in parts:
        piece += part
        if len(piece) >= PART_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def _told(event: Event) -> bytes:
    return b"id: %s\ndata: %s\n\n" % (event.cursor.encode(), _encode(event))
