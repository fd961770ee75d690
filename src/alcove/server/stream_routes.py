"""What has no end that can be known beforehand: events as they happen, exports, imports, backups."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from alcove.agents.service import Agents
from alcove.api import wire
from alcove.api.operations import EVENTS, NDJSON
from alcove.core import cursor
from alcove.core.clock import system_clock
from alcove.core.cursor import PIECE_BYTES
from alcove.core.errors import AlcoveError
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import Event, EventPage, Kind
from alcove.server.limits import ThreadPool
from alcove.server.routes import Call, Handler, Resource
from alcove.server.streaming import ASK_AGAIN_SECONDS, Allowed, Stream, Tail, gathered, while_allowed
from alcove.store.memories import Memories
from alcove.store.reading import View
from alcove.upkeep.transfer import MOST_BYTES, Importer, Imports

HEARTBEAT_SECONDS = 15.0
_PAGE = 100
_BACKUP_PIECE_BYTES = 256 * 1024
Page = tuple[EventPage, list[bytes]]
"""A page without its events, and what is sent of those."""
_encode = msgspec.json.Encoder().encode


class _ImportQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    wait_for_index: Literal["true", "false"] = "false"


class Streams:
    """Answers and bodies that come in pieces."""

    def __init__(
        self, memories: Memories, agents: Agents, reads: ThreadPool, changes: ThreadPool, tail: Tail
    ) -> None:
        self._memories = memories
        self._agents = agents
        self._reads = reads
        self._changes = changes
        self._tail = tail

    def handlers(self) -> dict[str, Handler]:
        """What serves the operations of tables that stream, by their names."""
        return {
            "follow": self.follow,
            "export_memories": self.export_memories,
            "export": self.export_user,
            "watch_room": self.watch_room,
        }

    def resources(self) -> list[Resource]:
        """What streams and stands in no table."""
        return [
            Resource(
                name="import_memories", tag="memories", method="POST", path="/v1/memories/import",
                handler=self.import_memories, summary="Import lines of an export", query=_ImportQuery,
                takes_lines=True, answer=Imports, errors=(400, 401, 403, 415),
            ),
            Resource(
                name="backup", tag="admin", method="GET", path="/v1/admin/backup", handler=self.backup,
                summary="The whole store as one file, verified", role="admin", unhurried=True,
                streams="application/octet-stream",
            ),
        ]  # fmt: skip

    async def follow(self, call: Call) -> Struct:
        namespace = Namespace.checked(call.asked.ns, "ns")
        return await self._follow(call, lambda: call.principal, namespace, call.asked.kinds)

    async def watch_room(self, call: Call) -> Struct:
        where = call.path["agent"], call.path["kind"], call.asked.instance
        room = partial(self._agents.scratch_room, call.principal, *where)
        namespace = (await self._changes(room)).at
        return await self._follow(call, lambda: room().who, namespace, None)

    async def _follow(
        self, call: Call, who: Callable[[], Principal], namespace: Namespace, kinds: Sequence[Kind] | None
    ) -> Struct:
        """The events of a namespace from where the caller left off; `who` says each time who may see them."""
        resumed = call.headers.get(b"last-event-id")
        seen = self._tail.end()
        after = self._memories.end_of_events() if resumed is None else resumed.decode("latin-1")

        def read(position: str) -> Page:
            page = self._memories.event_page(
                who(), namespace, kinds=kinds, after_cursor=position, limit=_PAGE, most_bytes=PIECE_BYTES
            )
            return msgspec.structs.replace(page, events=[]), [*gathered(map(_told, page.events))]

        allowed = self._allowed(call, self._memories.view(who, namespace))
        first = await self._reads(partial(read, after))  # refused here, with a status
        events = self._events(read, after, first, seen)
        return Stream(events, EVENTS.encode(), allowed, b": ended %s\n\n")

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

    async def export_memories(self, call: Call) -> Struct:
        call.hold(MOST_BYTES)  # of what is read and not yet taken
        view = self._memories.view(lambda: call.principal, Namespace.checked(call.asked.ns, "ns"))
        return self._lines(self._memories.seen(view), self._allowed(call, view))

    async def export_user(self, call: Call) -> Struct:
        admin = self._memories.admin
        found = await self._changes(partial(admin.export, call.principal, call.path["user"]))
        return self._lines(found, call.ask_again)

    async def backup(self, call: Call) -> Struct:
        folder = tempfile.TemporaryDirectory(prefix="alcove-backup-")  # gone when the last lets go of it
        admin, to = self._memories.admin, Path(folder.name) / "backup.db"
        await self._reads(lambda: [*admin.backup(call.principal, to)])

        async def pieces() -> AsyncIterator[bytes]:
            with folder, to.open("rb") as file:
                while piece := await self._reads(partial(file.read, _BACKUP_PIECE_BYTES)):
                    yield piece

        return Stream(pieces(), b"application/octet-stream", call.ask_again)

    def _lines(self, found: Iterator[Struct], allowed: Allowed) -> Stream:
        """Records as lines of JSON, read and written out in the pool, no more than a piece at a time."""
        lines = gathered(wire.encoded(each) + b"\n" for each in found)

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await self._reads(lambda: next(lines, None)):
                yield piece

        return Stream(pieces(), NDJSON.encode(), allowed, b"%s\n")

    @staticmethod
    def _allowed(call: Call, view: View) -> Allowed:
        """Whether who calls is who they were, and may see what they might when they began."""

        async def allowed() -> None:
            await call.ask_again()
            view()

        return allowed

    async def import_memories(self, call: Call) -> Struct:
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
        for pause in importer.index_pauses() if call.asked.wait_for_index == "true" else ():
            await asyncio.sleep(min(pause, ASK_AGAIN_SECONDS))
            await call.ask_again()


def _told(event: Event) -> bytes:
    return b"id: %s\ndata: %s\n\n" % (event.cursor.encode(), _encode(event))
