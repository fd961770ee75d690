"""Operations of a table as resources of the server: parse, call, answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from alcove.api.messages import NoQuery
from alcove.api.operation import Operation, operations
from alcove.core.errors import InvalidRequest
from alcove.server.application import Page, encoded
from alcove.server.limits import ThreadPool
from alcove.server.route import Call, Resource
from alcove.store.common import Steps, Work

Handler = Callable[[Call], Awaitable[Struct | None]]
_PREFERS_TO_BE_TOLD = b"return=representation"
_SHARED = (
    "name", "tag", "method", "path", "summary", "answer", "errors", "role", "streams", "idempotent", "quiet",
    "unhurried", "example",
)  # fmt: skip
"""What a resource has from its operation as it is."""


def served(
    table: type,
    service: object,
    *,
    reads: ThreadPool,
    changes: ThreadPool,
    handlers: Mapping[str, Handler] | None = None,
) -> list[Resource]:
    """What is at the routes of a table's operations, done by the methods of a service.

    `reads` and `changes` have the threads for operations that only read, and for the others. `handlers` are
    there for those that stream.
    """
    more = handlers or {}
    return [
        _resource(each, more.get(each.name) or _handler(each, service, reads, changes))
        for each in operations(table)
    ]


def _handler(
    operation: Operation[..., Any], service: object, reads: ThreadPool, changes: ThreadPool
) -> Handler:
    method = getattr(service, operation.does.__name__)
    steps = operation.steps and operation.steps.__get__(service)

    async def handle(call: Call) -> Page | None:
        arguments = operation.arguments(call)

        def done() -> Steps[Page | None]:
            if steps is None or call.large:
                yield Work.LARGE
            try:
                if steps:
                    result = yield from steps(call.principal, **arguments)
                else:
                    result = method(call.principal, **arguments)
            except InvalidRequest as error:
                raise operation.named(error) from None
            answer = operation.told(result)
            if operation.quiet and call.headers.get(b"prefer") != _PREFERS_TO_BE_TOLD:
                return None
            return None if answer is None else encoded(answer)

        return await (reads if operation.reads(arguments) else changes).settled(done())

    return handle


def _resource(operation: Operation[..., Any], handler: Handler) -> Resource:
    body = None if operation.in_query else operation.request
    query = operation.request if operation.in_query else None
    told: dict[str, Any] = {name: getattr(operation, name) for name in _SHARED}
    query = query or NoQuery
    return Resource(**told, description=operation.__doc__, handler=handler, query=query, body=body)
