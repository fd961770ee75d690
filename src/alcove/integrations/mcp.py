"""An agent's memory for clients of the Model Context Protocol: tools, memories as resources, and a prompt.

Stdio (`cli/mcp.py`) and HTTP (`server/mcp.py`) share this module; a `McpAgent` is what one client can reach.
The official SDK does the protocol. It takes a second to load, so it is imported only by servers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

from alcove.agents.tools import READ_ONLY_TOOLS
from alcove.api.agent_operations import AgentOperations, SessionOperations
from alcove.api.operation import AsyncHandle, Operation, encode_answer
from alcove.api.operations import MemoryOperations
from alcove.core import __version__
from alcove.core.errors import STATUS, AlcoveError, InvalidRequest, NotFound, requires_extra
from alcove.core.namespace import Namespace
from alcove.core.records import Entry

if TYPE_CHECKING:
    from mcp import types
    from mcp.server.lowlevel import Server

PROMPT = "context"
LISTEN = "subscriptions/listen"
"""The method that asks for notifications."""
DEFAULT_SESSION = "mcp"
"""The session of the prompt if the client chose none; it never has any messages."""
SCHEME = "alcove://"
PAGE_SIZE = 100
"""Memories in one list of resources."""
_SHARED_ROOMS = ("pool", "team")
"""Rooms of several users that each of them may read without an agent."""
_JSON = "application/json"
_INSTRUCTIONS = (
    "The memory of an agent. Its tools store and find what is worth remembering; memories are also "
    f"resources; the prompt `{PROMPT}` returns a message together with the memories that are relevant to it."
)
_RESULT_FIELDS = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""Fields of every answer since 2026-07-28; the SDK removes them for older protocols."""
Answer = dict[str, Any]


class AsyncTransport(Protocol):
    """Returns the function that performs an operation; its result is awaited."""

    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]: ...


class McpOperations(AgentOperations, SessionOperations, MemoryOperations, AsyncHandle):
    """The operations that clients use, for one principal."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.transport = transport


@dataclass(frozen=True)
class McpAgent:
    """An agent for one client, in the session, team and runs that the client chose."""

    operations: McpOperations
    name: str
    session_id: str | None = None
    team: str | None = None
    instances: Mapping[str, str] = field(default_factory=dict)
    """Ids of runs by their kind."""
    specs: Callable[[], object] = object
    """Returns another object when specs may have changed; only then are the tools compared."""
    poll_seconds: float = 1.0


async def _tools(agent: McpAgent, _: types.PaginatedRequestParams) -> Answer:
    tools = await agent.operations.tools(agent.name, "mcp", agent.team)
    hints = [{"readOnlyHint": tool["name"] in READ_ONLY_TOOLS, "openWorldHint": False} for tool in tools]
    return {"tools": [{**tool, "annotations": hint} for tool, hint in zip(tools, hints, strict=True)]}


async def _call(agent: McpAgent, request: types.CallToolRequestParams) -> Answer:
    """The text of a tool's answer, in which quoted memories cannot pass for Alcove's own words.

    Leaves out the structured result: clients that get both show only that to the model.
    """
    place: dict[str, Any] = {
        "session_id": agent.session_id, "team": agent.team, "instances": agent.instances
    }  # fmt: skip
    arguments = request.arguments or {}
    try:
        answer = await agent.operations.call_with(agent.name, request.name, arguments, **place)
        text, is_error = answer.text, False
    except AlcoveError as error:
        text, is_error = error.tool_text, True
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


async def _resources(agent: McpAgent, request: types.PaginatedRequestParams) -> Answer:
    entries, cursor = await _list_entries(agent, request.cursor)
    resources = [
        {
            "uri": memory_uri(entry.namespace, entry.key),
            "name": entry.key,
            "description": f"in {entry.namespace}",
            "mimeType": _JSON,
            "annotations": {"lastModified": entry.created_at.isoformat()},
        }
        for entry in entries
    ]
    return {"resources": resources, **({"nextCursor": cursor} if cursor else {})}


async def _templates(agent: McpAgent, _: types.PaginatedRequestParams) -> Answer:
    template = {
        "uriTemplate": f"{SCHEME}{{+namespace}}/{{key}}",
        "name": "memory",
        "description": "A memory: the segments of its namespace and its key, each percent-encoded.",
        "mimeType": _JSON,
    }
    return {"resourceTemplates": [template]}


async def _read(agent: McpAgent, request: types.ReadResourceRequestParams) -> Answer:
    """A memory as `GET /v1/memories` returns it."""
    memory = await agent.operations.get(*parse_memory_uri(request.uri))
    if memory is None:
        raise NotFound("there is no such memory")
    text = encode_answer(memory).decode()
    return {"contents": [{"uri": request.uri, "mimeType": _JSON, "text": text}]}


async def _prompts(agent: McpAgent, _: types.PaginatedRequestParams) -> Answer:
    await agent.operations.spec(agent.name)
    message = {"name": "message", "description": "Your next message.", "required": True}
    description = f"A message with what {agent.name} remembers that is relevant to it."
    return {"prompts": [{"name": PROMPT, "description": description, "arguments": [message]}]}


async def _prompt(agent: McpAgent, request: types.GetPromptRequestParams) -> Answer:
    """The context as messages of user and assistant, the only roles of MCP."""
    if request.name != PROMPT:
        raise InvalidRequest("name", PROMPT)
    if not (message := (request.arguments or {}).get("message")):
        raise InvalidRequest("message", "a text")
    context = await agent.operations.context(agent.name, agent.session_id or DEFAULT_SESSION, message)
    messages = [
        {
            "role": "assistant" if each.role == "assistant" else "user",
            "content": {"type": "text", "text": each.content},
        }
        for each in context.messages
        if each.content
    ]
    return {"messages": messages, "description": f"{context.receipt.total_tokens} tokens"}


def make_server() -> Server[McpAgent]:
    """The SDK's server, for any number of clients; raises `MissingExtra` if the SDK is not installed."""
    with requires_extra("alcove mcp", extra="mcp"):
        from mcp import MCPError, types  # noqa: PLC0415  takes a second
        from mcp.server.lowlevel import Server  # noqa: PLC0415

    async def translate_errors(ctx: Any, call_next: Any) -> Any:
        """Handles every message; a client that connects learns at once if there is no such agent."""
        agent: McpAgent = ctx.lifespan_context
        try:
            if ctx.method in ("initialize", "server/discover"):
                await agent.operations.spec(agent.name)
            return await call_next(ctx)
        except AlcoveError as error:
            code = types.INVALID_PARAMS if STATUS[error.code] < 500 else types.INTERNAL_ERROR
            raise MCPError(code, error.public_message, {"code": error.code}) from None

    def add(method: str, kind: Any, handler: Callable[[McpAgent, Any], Awaitable[Answer]]) -> None:
        async def handle(context: Any, request: Any) -> Answer:
            return {**_RESULT_FIELDS, **await handler(context.lifespan_context, request)}

        server.add_request_handler(method, kind, handle)

    async def listen(context: Any, request: types.SubscriptionsListenRequestParams) -> Answer:
        """Sends notifications while the request is open: the protocol since 2026-07-28."""
        id = context.request_id
        async for batch in watch_changes(context.lifespan_context, request.notifications, id):
            for notification in batch:
                await context.session.send_notification(notification, related_request_id=id)
        return {}

    async def initialized(context: Any, _: types.NotificationParams) -> None:
        """Sends notifications without a request: the earlier protocols."""
        async for batch in watch_changes(context.lifespan_context):
            for notification in batch:
                await context.session.send_notification(notification)

    server: Server[McpAgent] = Server("alcove", version=__version__, instructions=_INSTRUCTIONS)
    server.middleware[:] = [translate_errors]  # replaces a tracing span per message: requests have their own
    add("tools/list", types.PaginatedRequestParams, _tools)
    add("tools/call", types.CallToolRequestParams, _call)
    add("resources/list", types.PaginatedRequestParams, _resources)
    add("resources/templates/list", types.PaginatedRequestParams, _templates)
    add("resources/read", types.ReadResourceRequestParams, _read)
    add("prompts/list", types.PaginatedRequestParams, _prompts)
    add("prompts/get", types.GetPromptRequestParams, _prompt)
    server.add_request_handler(LISTEN, types.SubscriptionsListenRequestParams, listen)
    server.add_notification_handler("notifications/initialized", types.NotificationParams, initialized)
    return server


# Notifications


async def watch_changes(
    agent: McpAgent, filter: types.SubscriptionFilter | None = None, request_id: str | int | None = None
) -> AsyncGenerator[list[types.ServerNotification], None]:
    """Yields notifications at each poll; an empty list if nothing changed for this client.

    A new or removed pool changes which memories are visible, and a removed agent removes its prompt, so all
    lists count as changed if the tools changed. A client with a `filter` and a `request_id` gets a
    confirmation first, and then only the notifications that it asked for.
    """
    from mcp import types  # noqa: PLC0415  takes a second
    from mcp.shared import subscriptions as sdk  # noqa: PLC0415

    meta: dict[str, Any] = {} if request_id is None else {sdk.SUBSCRIPTION_ID_META_KEY: request_id}
    events = (sdk.ToolsListChanged(), sdk.ResourcesListChanged(), sdk.PromptsListChanged())
    specs, tools = agent.specs(), await _load_tools(agent, None)
    batch: list[types.ServerNotification] = []
    if filter is not None:
        filter = filter.model_copy(update={"resource_subscriptions": None})
        params = types.SubscriptionsAcknowledgedNotificationParams(notifications=filter, _meta=meta)
        batch = [types.SubscriptionsAcknowledgedNotification(params=params)]
    while True:
        yield batch
        await asyncio.sleep(agent.poll_seconds)
        batch = []
        if (current_specs := agent.specs()) is specs:
            continue
        specs, old_tools = current_specs, tools
        tools = await _load_tools(agent, old_tools)
        if tools != old_tools:
            batch = [
                sdk.event_to_notification(event, meta)
                for event in events
                if filter is None or sdk.event_matches(filter, frozenset(), event)
            ]


async def _load_tools(agent: McpAgent, default: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The agent's tools; None if there is no such agent, the default after another error."""
    try:
        return await agent.operations.tools(agent.name, "mcp", agent.team)
    except AlcoveError as error:
        return None if isinstance(error, NotFound) else default


# Resources


def memory_uri(namespace: Namespace, key: str) -> str:
    """The URI of a memory: the segments of its namespace and its key, each percent-encoded."""
    # Dots alone would mean a folder to a program that normalizes URIs.
    encoded = (
        quote(part, safe="") if part.strip(".") else part.replace(".", "%2E") for part in (*namespace, key)
    )
    return SCHEME + "/".join(encoded)


def parse_memory_uri(uri: str) -> tuple[Namespace, str]:
    """The namespace and the key in a URI."""
    *segments, key = uri.removeprefix(SCHEME).split("/")
    if not uri.startswith(SCHEME) or not segments:
        raise InvalidRequest("uri", f"{SCHEME}namespace/key, each part percent-encoded")
    try:
        namespace = [unquote(segment, errors="strict") for segment in segments]
        return Namespace.checked(namespace, "uri"), unquote(key, errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest("uri", "percent-encoded UTF-8") from None


async def _list_entries(agent: McpAgent, cursor: str | None) -> tuple[list[Entry], str | None]:
    """A page of the memories that a client can see, and the cursor of the next page if there is one.

    A cursor is a room, and how many of its memories were on earlier pages.
    """
    skipped, separator, text = ("0:" if cursor is None else cursor).partition(":")
    if not separator or not re.fullmatch("[0-9]{1,9}", skipped):
        raise InvalidRequest("cursor", "one from an earlier answer")
    first_room = Namespace.parse(text, "cursor")
    entries: list[Entry] = []
    for room in await _rooms(agent):
        if room >= first_room:
            offset, count = int(skipped) if room == first_room else 0, len(entries)
            entries += await agent.operations.list(room, limit=PAGE_SIZE + 1 - count, offset=offset)
            if len(entries) > PAGE_SIZE:
                return entries[:PAGE_SIZE], f"{offset + PAGE_SIZE - count}:{room}"
    return entries, None


async def _rooms(agent: McpAgent) -> list[Namespace]:
    """The user's own subtree, and the agent's rooms that the user may read; none inside another."""
    user = (await agent.operations.whoami()).user
    rooms = {Namespace(("user", user))}
    for each in await agent.operations.rooms(agent.name):
        if each.memories and (each.namespace.owner == user or each.room in _SHARED_ROOMS):
            rooms.add(each.namespace)
    outermost: list[Namespace] = []
    for room in sorted(rooms):  # a room is followed by those inside it
        if not outermost or room[: len(outermost[-1])] != outermost[-1]:
            outermost.append(room)
    return outermost
