"""Streams: events as they happen, exports, imports and backups."""

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
from alcove.api.operation import encode_answer
from alcove.api.operations import EVENTS, NDJSON
from alcove.core import cursor
from alcove.core.errors import AlcoveError
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import EventKind, EventPage
from alcove.server.limits import ThreadPool, TimeLimit
from alcove.server.routes import Endpoint, Request, endpoint
from alcove.store.memories import Memories
from alcove.upkeep.transfer import MAX_BATCH_BYTES, Importer, Imports

HEARTBEAT_SECONDS = 15.0
ACCESS_CHECK_SECONDS = 2.0
"""How often access is checked again while a request stays open."""
_POLL_SECONDS = 0.05
_MAX_AGE_SECONDS = 2.0
"""How old the known end of the log may be if the store notifies of writes, in case a notification is lost."""
PART_BYTES = 64 * 1024
"""What a connection takes without waiting for its reader."""
_PAGE = 100
_BACKUP_PIECE_BYTES = 256 * 1024
T = TypeVar("T")
_EncodedPage = tuple[EventPage, list[bytes]]
"""A page without its events, and the encoded events."""
_encode = msgspec.json.Encoder().encode


class Stream(Struct):
    """An answer that is sent piece by piece, as long as its caller has access."""

    pieces: AsyncIterator[bytes]
    media_type: bytes
    last_words: bytes | None = None
    """A template for the error that ends the answer if access is withdrawn; None breaks the answer off."""
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ((b"cache-control", b"no-store"),)
    waits: bool = True
    """Whether it may have nothing to send for long, so that access must be checked while it waits."""


class Tail:
    """The end of the log, which is read once for all readers in this process.

    Another process may write, too. So it is read after each notification of the store, or again and again if
    the store sends none.
    """

    def __init__(self, read_end: Callable[[], int], on_commit: Callable[[Callable[[], None]], bool]) -> None:
        """`on_commit` calls a function after each commit; it returns False if the store cannot do that."""
        self._read_end = read_end
        self._end = 0
        self._read_at = 0.0
        self._waiting_count = 0
        self._max_age_seconds = _MAX_AGE_SECONDS if on_commit(self._notify) else _POLL_SECONDS
        self.stopping = False

    def stop(self) -> None:
        """Ends every stream, so that the server can stop."""
        self.stopping = True

    def end(self) -> int:
        """The highest sequence number, at most a moment old."""
        now = time.monotonic()
        if now - self._read_at >= self._max_age_seconds:
            self._read_at = now  # before reading: a notification during the read causes another one
            self._end = max(self._end, self._read_end())
        return self._end

    def _notify(self) -> None:
        """Reads the end on the thread that listens to the store, to spare the event loop."""
        self._read_at = 0.0
        if self._waiting_count:
            self._end, self._read_at = max(self._end, self._read_end()), time.monotonic()

    async def wait_beyond(self, position: int, seconds: float) -> None:
        """Waits until the log goes beyond a position, the time is over, or the server stops."""
        deadline = time.monotonic() + seconds
        self._waiting_count += 1
        try:
            while not self.stopping and time.monotonic() < deadline and self.end() <= position:
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._waiting_count -= 1


class _ImportQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    wait_for_index: Literal["true", "false"] = "false"


@dataclass
class Streams:
    """Handlers of the operations that stream, by their names."""

    services: Mapping[str, Any]
    memories: Memories
    agents: Agents
    reads: ThreadPool
    changes: ThreadPool
    tail: Tail

    def endpoints(self) -> list[Endpoint]:
        """Streaming endpoints that are in no table of operations."""
        return [
            endpoint(
                "POST /v1/memories/import",
                self.import_memories,
                "Import lines of an export",
                tag="memories",
                request_record=_ImportQuery,
                line_body=True,
                answer_record=Imports,
            ),
            endpoint(
                "GET /v1/admin/backup",
                self.backup,
                "Back up the whole store as one file, verified",
                tag="admin",
                role="admin",
                unlimited_time=True,
                stream_type="application/octet-stream",
            ),
        ]

    async def follow(self, request: Request) -> Struct:
        namespace = Namespace.checked(request.parameters.ns, "ns")
        return await self._follow(request, lambda: request.principal, namespace, request.parameters.kinds)

    async def watch_room(self, request: Request) -> Struct:
        path, instance = request.path, request.parameters.instance
        room = partial(self.agents.scratch_room, request.principal, path["agent"], path["kind"], instance)
        namespace = (await self.changes(room)).namespace
        return await self._follow(request, lambda: room().principal, namespace, None)

    async def _follow(
        self,
        request: Request,
        current_principal: Callable[[], Principal],
        namespace: Namespace,
        kinds: Sequence[EventKind] | None,
    ) -> Struct:
        """Streams the events of a namespace, from where the caller left off.

        `current_principal` returns the reader; each page is read with the access that it has at that time.
        """
        last_id = request.headers.get(b"last-event-id")
        end = self.tail.end()
        after = self.memories.timeline.end() if last_id is None else last_id.decode("latin-1")

        def read(position: str) -> _EncodedPage:
            page = self.memories.timeline.event_page(
                current_principal(),
                namespace,
                kinds=kinds,
                after_cursor=position,
                limit=_PAGE,
                max_bytes=cursor.STREAM_CHUNK_BYTES,
            )
            events = (b"id: %s\ndata: %s\n\n" % (each.cursor.encode(), _encode(each)) for each in page.events)
            return msgspec.structs.replace(page, events=[]), [*join_small(events)]

        request.view = self.memories.access.view(current_principal, namespace)
        first = await self.reads.run(partial(read, after))  # refused here, with a status
        events = self._events(read, after, first, end)
        return Stream(events, EVENTS.encode(), b": ended %s\n\n")

    async def _events(
        self, read: Callable[[str], _EncodedPage], after: str, first: _EncodedPage, end: int
    ) -> AsyncIterator[bytes]:
        """Encoded events; `end` is the end of the log before the first page was read."""
        page, pieces = first
        yield b"retry: 1000\nid: %s\n\n" % after.encode()  # clients resume here if cut off before an event
        if page.truncated_before:
            yield b"event: truncated\ndata: %s\n\n" % _encode({"truncated_before": page.truncated_before})
        last_sent = time.monotonic()
        while not self.tail.stopping:
            for piece in pieces:
                yield piece
                last_sent = time.monotonic()
            position = cursor.decode(page.after_cursor)
            if not page.more:
                position = max(position, end)  # earlier events are not for this reader
                await self.tail.wait_beyond(position, last_sent + HEARTBEAT_SECONDS - time.monotonic())
            if time.monotonic() - last_sent >= HEARTBEAT_SECONDS:
                yield b": still here\n\n"
                last_sent = time.monotonic()
            end = self.tail.end()
            page, pieces = await self.reads.run(partial(read, cursor.encode(position)))

    async def export_memories(self, request: Request) -> Struct:
        request.reserve_bytes(MAX_BATCH_BYTES)  # read ahead of the client
        namespace, principal = Namespace.checked(request.parameters.ns, "ns"), request.principal
        view = request.view = self.memories.access.view(lambda: request.principal, namespace)
        # Reads by a role sometimes wait for the audit log, which must not block the threads of readers.
        threads = self.changes if principal.has_role else self.reads
        return self._lines(self.memories.reader.scan_view(principal, namespace, view), threads)

    async def export(self, request: Request) -> Struct:
        export = partial(self.services["PersonalDataReader"].export, request.principal, request.path["user"])
        return self._lines(await self.changes(export), self.reads)

    async def backup(self, request: Request) -> Struct:
        folder = tempfile.TemporaryDirectory(prefix="alcove-backup-")  # deleted with its last reference
        writer, path = self.services["BackupWriter"], Path(folder.name) / "backup.db"
        await self.reads(lambda: [*writer.write(request.principal, path)])

        async def pieces() -> AsyncIterator[bytes]:
            with folder, path.open("rb") as file:
                while piece := await self.reads(partial(file.read, _BACKUP_PIECE_BYTES)):
                    yield piece

        return Stream(pieces(), b"application/octet-stream")

    def _lines(self, records: Iterator[Struct], threads: ThreadPool) -> Stream:
        """Records as lines of JSON, read and encoded in threads, at most a piece ahead."""
        lines = join_small(encode_answer(each) + b"\n" for each in records)

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await threads(lambda: next(lines, None)):
                yield piece

        return Stream(pieces(), NDJSON.encode(), b"%s\n")

    async def import_memories(self, request: Request) -> Struct:
        importer = Importer(self.memories, lambda: request.principal)
        lines, reserved_bytes = importer.lines, MAX_BATCH_BYTES
        request.reserve_bytes(reserved_bytes)
        try:
            async for piece in while_allowed(request.pieces, request):
                if lines.partial_bytes > reserved_bytes:
                    reserved_bytes = lines.max_bytes
                    request.reserve_bytes(reserved_bytes)
                for bundle in lines.batches(piece):
                    await self._import(importer, bundle, request)
            await self._import(importer, lines.last_batch(), request)
        except AlcoveError as error:
            error.details |= importer.report.counts
            raise
        return importer.report

    async def _import(self, importer: Importer, bundle: Sequence[bytes], request: Request) -> None:
        await self.changes(partial(importer.take, bundle))
        if request.parameters.wait_for_index == "true":
            await run_allowed(self.reads.run(importer.wait_for_index), request)


async def send_body(pieces: AsyncIterator[bytes], receive: Any, send: Any, limit_time: TimeLimit) -> None:
    """Sends every piece, unless the client goes away.

    A client that takes too long for a part of a piece is cut off and may resume. Nothing is read ahead for
    it, and a piece is freed once all but its last part was taken.
    """
    disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        async for piece in pieces:
            for start in range(0, len(piece), PART_BYTES):
                part = piece[start : start + PART_BYTES]
                await limit_time(send({"type": "http.response.body", "body": part, "more_body": True}))
                if disconnected.done():
                    return
        await limit_time(send({"type": "http.response.body", "body": b""}))
    finally:
        disconnected.cancel()
        await pieces.aclose()  # type: ignore[attr-defined]


async def run_allowed(work: Awaitable[T], request: Request) -> T:
    """Awaits the work; checks every few seconds, and at the end, that the caller still has access."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=ACCESS_CHECK_SECONDS)
            await request.check_access()
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def while_allowed(pieces: AsyncIterator[bytes], request: Request) -> AsyncIterator[bytes]:
    """The same pieces; checks access before each of them, and every few seconds while none comes."""
    try:
        while (piece := await run_allowed(anext(pieces, None), request)) is not None:
            yield piece
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


async def _wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def join_small(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Joins small parts into pieces of some size; a piece stays in memory until its reader takes it."""
    piece = bytearray()
    for part in parts:
        piece += part
        if len(piece) >= PART_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)
