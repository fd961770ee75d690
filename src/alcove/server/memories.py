"""The memories API."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from msgspec import UNSET, Struct

from alcove.core import records
from alcove.core.cursor import Portion
from alcove.core.errors import AlcoveError, NotFound
from alcove.core.namespace import Namespace
from alcove.core.records import Delete, Entry, Get, Memory, Operation, Put, Result, Touch
from alcove.engine.base import Waited
from alcove.server import answers
from alcove.server.application import encoded
from alcove.server.limits import SMALL_BYTES
from alcove.server.resource import Call, Resource
from alcove.server.thread_pool import ThreadPool
from alcove.store.memories import Memories

_RECORDS: dict[type[Struct], type[Operation]] = {
    answers.PutOperation: Put,
    answers.GetOperation: Get,
    answers.DeleteOperation: Delete,
    answers.TouchOperation: Touch,
}


class MemoriesApi:
    """The resources under `/v1/memories`.

    A single get or write that is small is done on the event loop: it takes less time than handing it over.
    Whatever is larger, or may read many rows, goes to the pool, and its answer is encoded there.
    """

    def __init__(self, memories: Memories, offload: ThreadPool, *, patience: float) -> None:
        self._memories = memories
        self._offload = offload
        self._patience = patience

    def resources(self) -> list[Resource]:
        at = "/v1/memories"
        return [
            Resource(
                method="PUT", path=at, handler=self.put, summary="Store a memory",
                body=answers.PutOneBody, answer=answers.EntryAnswer, idempotent=True,
                errors=(400, 401, 403, 409, 413, 415),
            ),
            Resource(
                method="GET", path=at, handler=self.get, summary="Read a memory",
                query=answers.GetQuery, answer=answers.MemoryAnswer, errors=(400, 401, 403, 404), quick=True,
            ),
            Resource(
                method="DELETE", path=at, handler=self.delete, summary="Delete a memory; absent is fine",
                query=answers.DeleteQuery, idempotent=True, errors=(400, 401, 403, 409),
            ),
            Resource(
                method="POST", path=f"{at}/search", handler=self.search, summary="Find memories",
                body=answers.SearchBody, answer=answers.SearchAnswer, errors=(400, 401, 403, 413, 415, 503),
            ),
            Resource(
                method="POST", path=f"{at}/batch", handler=self.batch,
                summary="Many operations in one transaction: all of them or none",
                body=answers.BatchBody, answer=answers.BatchAnswer, idempotent=True,
                errors=(400, 401, 403, 404, 409, 413, 415),
            ),
            Resource(
                method="GET", path=f"{at}/namespaces", handler=self.namespaces,
                summary="List the namespaces that hold something",
                query=answers.NamespacesQuery, answer=answers.NamespacesAnswer,
            ),
            Resource(
                method="GET", path=f"{at}/events", handler=self.events, summary="Read the timeline",
                query=answers.EventsQuery, answer=answers.EventsAnswer,
            ),
            Resource(
                method="GET", path=f"{at}/history", handler=self.history,
                summary="Every retained version of one memory, newest first",
                query=answers.HistoryQuery, answer=answers.HistoryAnswer,
            ),
        ]  # fmt: skip

    async def put(self, call: Call) -> Struct:
        entry = await self._write_one(call, _record(Put, call.body))
        assert isinstance(entry, Entry)
        if call.body.wait_for_index and call.body.index:
            for pause in self._memories.index_pauses(entry, self._patience):
                await asyncio.sleep(pause)
        return answers.EntryAnswer.of(entry)

    async def get(self, call: Call) -> Struct:
        query = call.query
        size, opened = self._memories.locate(call.principal, _ns(query.ns), query.key, as_of=query.as_of)

        def found() -> Struct:
            if (memory := opened()) is None:
                raise NotFound("there is no such memory")
            return answers.MemoryAnswer.of_memory(memory)

        if size <= SMALL_BYTES:
            return found()
        async with asyncio.timeout(2 * self._patience):
            return await self._offload(lambda: encoded(found()))

    async def delete(self, call: Call) -> None:
        query = call.query
        delete = Delete(namespace=_ns(query.ns), key=query.key, expected_revision=query.expected_revision)
        await self._write_one(call, delete)

    async def batch(self, call: Call) -> Struct:
        def steps() -> Generator[Waited, None, Portion[Result]]:
            operations = [_record(_RECORDS[type(each)], each) for each in call.body.operations]
            return (
                yield from self._memories.write_steps(
                    call.principal, operations, call.idempotency_key, call.body.after_cursor
                )
            )

        results = await self._offload.settled(steps(), large=True)

        def answer() -> Struct:
            return encoded(answers.BatchAnswer([*map(_answer, results)], results.after_cursor or UNSET))  # type: ignore[list-item]

        return await self._offload(answer)

    async def search(self, call: Call) -> Struct:
        body = call.body

        def find() -> Struct:
            found = self._memories.search(
                call.principal,
                body.namespace_prefix,
                query=body.query,
                mode=body.mode,
                explain=body.explain,
                filter=body.filter,
                limit=body.limit,
                offset=body.offset,
                as_of=body.as_of,
            )
            items = [answers.MemoryAnswer.of_memory(each) for each in found]
            return encoded(answers.SearchAnswer(items, found.degraded or UNSET, found.next_offset or UNSET))

        return await self._offload(find)

    async def namespaces(self, call: Call) -> Struct:
        query = call.query

        def find() -> Struct:
            found = self._memories.namespaces(
                call.principal,
                query.prefix,
                suffix=query.suffix,
                max_depth=query.max_depth,
                limit=query.limit,
                offset=query.offset,
            )
            return encoded(answers.NamespacesAnswer(found))  # type: ignore[arg-type]

        return await self._offload(find)

    async def events(self, call: Call) -> Struct:
        query, prefix = call.query, _ns(call.query.ns)

        def find() -> Struct:
            page = self._memories.events(
                call.principal,
                prefix,
                kinds=query.kinds,
                after=query.after,
                before=query.before,
                after_cursor=query.after_cursor,
                limit=query.limit,
            )
            truncated = page.truncated_before or UNSET
            answer = answers.EventsAnswer(page.events, page.after_cursor, truncated, page.more or UNSET)  # type: ignore[arg-type]
            return encoded(answer)

        return await self._offload(find)

    async def history(self, call: Call) -> Struct:
        query = call.query

        def find() -> Struct:
            versions = self._memories.history(
                call.principal, _ns(query.ns), query.key, after_cursor=query.after_cursor
            )
            return encoded(answers.HistoryAnswer(versions, versions.after_cursor or UNSET))  # type: ignore[arg-type]

        return await self._offload(find)

    async def _write_one(self, call: Call, operation: Operation) -> Result:
        try:
            steps = self._memories.write_steps(call.principal, [operation], call.idempotency_key)
            (result,) = await self._offload.settled(steps, large=call.large)
        except AlcoveError as error:
            error.details.pop("operation", None)
            raise
        return result


def _ns(segments: list[str]) -> Namespace:
    """The namespace that the parameter `ns` gives, segment by segment."""
    return Namespace.checked(segments, "ns")


def _record(kind: type[Operation], body: Any) -> Operation:
    return kind(**{name: getattr(body, name) for name in kind.__struct_fields__})


def _answer(result: Result) -> answers.EntryAnswer | records.Deletion | None:
    match result:
        case Memory():
            return answers.MemoryAnswer.of_memory(result)
        case Entry():
            return answers.EntryAnswer.of(result)
        case _:
            return result
