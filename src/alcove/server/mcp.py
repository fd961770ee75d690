"""The Model Context Protocol over HTTP: `/mcp/{agent}`, with the limits and rules of every other request.

The SDK's own HTTP server would read, limit, check and log requests a second time; it keeps sessions in the
memory of one worker, or starts a task and two streams for each request. So only its handling of one message
is used (`ServerRunner`), and any worker can answer a POST with JSON. Notifications of changes are a stream: a
GET for clients of the older protocols, and since 2026-07-28 `subscriptions/listen`. Every worker watches the
specs itself, so any of them can serve the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from alcove.agents.rooms import RUNS
from alcove.agents.service import Agents
from alcove.api.operation import Operation
from alcove.api.operations import EVENTS
from alcove.client.embedded import LocalTransport
from alcove.core.errors import STATUS, AlcoveError, MissingExtra, NotFound, requires_extra
from alcove.core.principal import Principal
from alcove.integrations.mcp import LISTEN, McpAgent, McpOperations, watch_changes
from alcove.server.limits import ThreadPool
from alcove.server.routes import Endpoint, Page, Request, endpoint
from alcove.server.streams import HEARTBEAT_SECONDS, Stream, Tail

if TYPE_CHECKING:
    from alcove.server.mcp_exchanges import Exchanges, Notices

_MAX_NAMES = 10
"""Agents that the error lists if a request names none."""
_encode = msgspec.json.Encoder().encode


class McpQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """The session, team and runs in which an agent works."""

    session: str | None = None
    team: str | None = None
    workflow: str | None = None
    swarm: str | None = None
    debate: str | None = None


class RpcMessage(Struct, kw_only=True):
    """A message of JSON-RPC: a request, a notification without `id`, or an answer without `method`."""

    jsonrpc: Literal["2.0"]
    id: str | int | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: dict[str, Any] | UnsetType = UNSET


class RpcError(Struct, kw_only=True):
    """An error in the shape that MCP clients read."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: str | int | None = None
    error: dict[str, Any]

    @classmethod
    def of(cls, error: AlcoveError, request_id: str) -> RpcError:
        """The error of a request that was refused before its message was parsed, so it has no id."""
        data = {"code": error.code, "request_id": request_id, "details": error.details}
        code = -32600 if STATUS[error.code] == 400 else -32000
        return cls(error={"code": code, "message": error.public_message, "data": data})


class PooledTransport(LocalTransport):
    """Performs operations of the services in this process, each call in a thread of the server."""

    def __init__(
        self,
        services: Mapping[str, Any],
        principal: Principal,
        *,
        reads: ThreadPool | None = None,
        changes: ThreadPool | None = None,
    ) -> None:
        """Without `reads` and `changes`, calls run in the thread that awaits them."""
        super().__init__(services, principal)
        self._reads, self._changes = reads, changes

    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]:
        do = super().bound(operation)

        async def call(*args: Any, **named: Any) -> Any:
            arguments = operation.signature.bind(*args, **named).arguments
            only_reads = operation.tag == "memories" or operation.only_reads(arguments)
            threads = self._reads if only_reads else self._changes
            return await threads(partial(do, *args, **named)) if threads else do(*args, **named)

        return call


class McpHandlers:
    """Handlers of the messages of MCP clients."""

    def __init__(
        self, services: Mapping[str, Any], agents: Agents, reads: ThreadPool, changes: ThreadPool, tail: Tail
    ) -> None:
        self._services = services
        self._agents, self._tail = agents, tail
        self._reads, self._changes = reads, changes
        self._exchanges: Exchanges | None = None

    def endpoints(self) -> list[Endpoint]:
        """The routes, which the OpenAPI document leaves out: MCP describes itself."""
        mcp = partial(endpoint, error_record=RpcError, query_record=McpQuery)
        return [
            mcp("POST /mcp/{agent}", self.message, request_record=RpcMessage),
            mcp("GET /mcp/{agent}", self.changes, stream_type=EVENTS),
            mcp("POST /mcp", self.refuse_without_agent),
            mcp("GET /mcp", self.refuse_without_agent),
        ]

    async def message(self, request: Request) -> Struct:
        """Answers a request; accepts and ignores messages that need no answer."""
        message: RpcMessage = request.parameters
        if message.id is UNSET or message.method is UNSET:
            return Page(b"", status=202)
        params = None if message.params is UNSET else message.params
        exchanges = await self._load_exchanges()
        answer = partial(exchanges.answer, message.id, message.method, params, request.headers)
        if request.large and message.method != LISTEN:
            # The SDK takes a quarter of a second to check half a million arguments.
            connection = self._connection(request, PooledTransport(self._services, request.principal))
            result = await self._changes(lambda: asyncio.run(answer(connection)))
        else:
            result = await answer(self._connection(request))
        return result if isinstance(result, Page) else self._stream(result)

    async def changes(self, request: Request) -> Struct:
        """Streams notifications for as long as the client stays."""
        await self._load_exchanges()
        agent = self._connection(request)
        await agent.operations.spec(agent.name)
        return self._stream(watch_changes(agent))

    async def refuse_without_agent(self, request: Request) -> Struct:
        names = [each.name for each in self._agents.agents(request.principal)[:_MAX_NAMES]]
        choices = f"; you may use {', '.join(names)}" if names else ""
        raise NotFound(f"expected an agent's name after /mcp/{choices}")

    async def _load_exchanges(self) -> Exchanges:
        """The handlers of messages; the first client waits a second until they are loaded."""
        if self._exchanges is None:
            try:
                self._exchanges = await self._changes(_import_exchanges)
            except MissingExtra as error:
                raise NotFound(error.public_message) from None
        return self._exchanges

    def _stream(self, notices: Notices) -> Stream:
        """Notifications as server-sent events."""
        return Stream(self._encode_events(notices), EVENTS.encode(), b": ended %s\n\n")

    async def _encode_events(self, notices: Notices) -> AsyncIterator[bytes]:
        last_heartbeat = time.monotonic()
        yield b": listening\n\n"  # so that a client, or a proxy, need not wait for the first change
        async with aclosing(notices):
            async for batch in notices:
                for each in batch:
                    body = each.model_dump(mode="json", by_alias=True, exclude_none=True)
                    yield b"event: message\ndata: %b\n\n" % _encode({"jsonrpc": "2.0", **body})
                if self._tail.stopping:
                    return
                if time.monotonic() - last_heartbeat >= HEARTBEAT_SECONDS:
                    yield b": still here\n\n"
                    last_heartbeat = time.monotonic()

    def _connection(self, request: Request, transport: PooledTransport | None = None) -> McpAgent:
        """The agent that the path names, in the session, team and runs that the query names."""
        query = request.endpoint.parse_query(request.scope["query_string"])
        assert isinstance(query, McpQuery)
        instances: dict[str, str] = {
            kind: name for kind in RUNS if (name := getattr(query, kind)) is not None
        }
        pooled = PooledTransport(self._services, request.principal, reads=self._reads, changes=self._changes)
        return McpAgent(
            McpOperations(transport or pooled),
            request.path["agent"],
            query.session,
            query.team,
            instances,
            specs=lambda: self._agents.catalogue,
        )


def _import_exchanges() -> Exchanges:
    with requires_extra("/mcp", extra="mcp"):
        from alcove.server.mcp_exchanges import Exchanges  # noqa: PLC0415  loads the SDK

    return Exchanges()
