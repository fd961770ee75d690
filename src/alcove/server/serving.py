"""Operations of a table as resources of the server: parse, call, answer."""

from __future__ import annotations

from typing import Any

from alcove.api.operation import Operation, operations
from alcove.server.answers import NoQuery
from alcove.server.application import Page, encoded
from alcove.server.resource import Call, Resource
from alcove.server.thread_pool import ThreadPool


def served(table: type, service: object, *, reads: ThreadPool, changes: ThreadPool) -> list[Resource]:
    """What is at the routes of a table's operations, done by the methods of a service."""
    return [_resource(each, service, reads if each.reads else changes) for each in operations(table)]


def _resource(operation: Operation[..., Any], service: object, threads: ThreadPool) -> Resource:
    method = getattr(service, operation.does.__name__)

    async def handle(call: Call) -> Page | None:
        def done() -> Page | None:
            asked = call.query if operation.in_query else call.body
            result = method(call.principal, **operation.arguments(asked, call.path))
            answer = operation.told(result)
            return None if answer is None else encoded(answer)

        return await threads(done)

    handle.__name__ = operation.name
    body = None if operation.in_query else operation.request
    query = operation.request if operation.in_query else None
    return Resource(
        method=operation.method,
        path=operation.path,
        summary=operation.summary,
        handler=handle,
        query=query or NoQuery,
        body=body,
        answer=operation.answer,
        errors=(400, 401, 403, *((413, 415) if body else ()), *operation.errors),
        role=operation.role,
        unhurried=operation.unhurried,
    )
