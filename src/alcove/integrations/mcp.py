"""An agent's memory for clients of the Model Context Protocol: tools, memories as resources, and a prompt.

Stdio (`cli/mcp.py`) and HTTP (`server/mcp.py`) share all that stands here. What a request can reach is the
`Connected` it comes with: a store as one principal has it, and one agent. The official SDK does the protocol;
it takes a second to load, so only who serves loads it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from alcove.agents.tools import READ_ONLY_TOOLS
from alcove.api.agent_operations import AgentOperations, SessionOperations
from alcove.api.operation import AsyncHandle, Operation, encode_answer
from alcove.api.operations import MemoryOperations
from alcove.core import __version__
from alcove.core.errors import STATUS, AlcoveError, InvalidRequest, NotFound, requires_extra
from alcove.integrations.mcp_changes import notices
from alcove.integrations.mcp_resources import SCHEME, listed, memory_at, memory_uri

if TYPE_CHECKING:
    from mcp import types
    from mcp.server.lowlevel import Server

PROMPT = "context"
LISTEN = "subscriptions/listen"
"""The method that asks for notifications."""
NO_SESSION = "mcp"
"""The conversation that the prompt is made for where none was chosen; nothing is ever said in it."""
_JSON = "application/json"
_ABOUT = (
    "The memory of an agent. Its tools keep and find what is worth knowing again; memories are resources, "
    f"too; the prompt `{PROMPT}` gives a message together with what is remembered that bears on it."
)
_MODERN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""What answers say of themselves since 2026-07-28; the SDK leaves it out where that is not known."""
Told = dict[str, Any]
"""An answer, as MCP has it."""


class Bound(Protocol):
    """Gives for an operation the function that does it, whose answer is awaited."""

    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]: ...


class Memory(AgentOperations, SessionOperations, MemoryOperations, AsyncHandle):
    """The operations that clients are served with, for one principal."""

    def __init__(self, transport: Bound) -> None:
        self.transport = transport


@dataclass(frozen=True)
class Connected:
    """What a client is connected to: an agent at work for somebody, in the places that were chosen."""

    memory: Memory
    agent: str
    session_id: str | None = None
    team: str | None = None
    instances: Mapping[str, str] = field(default_factory=dict)
    """Ids of runs by their kind."""
    specs: Callable[[], object] = object
    """Gives another object when specs may have changed; only then is looked whether tools have."""
    look_seconds: float = 1.0


async def _tools(at: Connected, asked: types.PaginatedRequestParams) -> Told:
    tools = await at.memory.tools(at.agent, "mcp", at.team)
    hints = ({"readOnlyHint": each["name"] in READ_ONLY_TOOLS, "openWorldHint": False} for each in tools)
    return {"tools": [{**each, "annotations": about} for each, about in zip(tools, hints, strict=True)]}


async def _call(at: Connected, asked: types.CallToolRequestParams) -> Told:
    """What the tool says in words, in which nothing that somebody wrote can pass for ours.

    Its structured result stays here: clients that got both would show the model that one.
    """
    where: dict[str, Any] = {"session_id": at.session_id, "team": at.team, "instances": at.instances}
    try:
        text = (await at.memory.call_with(at.agent, asked.name, asked.arguments or {}, **where)).text
        failed = False
    except AlcoveError as error:
        text, failed = error.tool_text, True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


async def _resources(at: Connected, asked: types.PaginatedRequestParams) -> Told:
    found, more = await listed(at, asked.cursor)
    resources = [
        {
            "uri": memory_uri(each.namespace, each.key),
            "name": each.key,
            "description": f"in {each.namespace}",
            "mimeType": _JSON,
            "annotations": {"lastModified": each.created_at.isoformat()},
        }
        for each in found
    ]
    return {"resources": resources, **({"nextCursor": more} if more else {})}


async def _templates(at: Connected, asked: types.PaginatedRequestParams) -> Told:
    about = "A memory: the segments of its namespace and its key, each percent-encoded."
    template = f"{SCHEME}{{+namespace}}/{{key}}"
    return {
        "resourceTemplates": [
            {"uriTemplate": template, "name": "memory", "description": about, "mimeType": _JSON}
        ]
    }


async def _read(at: Connected, asked: types.ReadResourceRequestParams) -> Told:
    """A memory as `GET /v1/memories` answers it."""
    memory = await at.memory.get(*memory_at(asked.uri))
    if memory is None:
        raise NotFound("there is no such memory")
    return {"contents": [{"uri": asked.uri, "mimeType": _JSON, "text": encode_answer(memory).decode()}]}


async def _prompts(at: Connected, asked: types.PaginatedRequestParams) -> Told:
    await at.memory.spec(at.agent)
    message = {"name": "message", "description": "What you are about to say.", "required": True}
    about = f"A message with what {at.agent} remembers that bears on it."
    return {"prompts": [{"name": PROMPT, "description": about, "arguments": [message]}]}


async def _prompt(at: Connected, asked: types.GetPromptRequestParams) -> Told:
    """The context as messages of user and assistant: MCP has no others."""
    if asked.name != PROMPT:
        raise InvalidRequest("name", PROMPT)
    if not (message := (asked.arguments or {}).get("message")):
        raise InvalidRequest("message", "a text")
    context = await at.memory.context(at.agent, at.session_id or NO_SESSION, message)
    said = [("assistant" if each.role == "assistant" else "user", each.content) for each in context.messages]
    messages = [{"role": role, "content": {"type": "text", "text": text}} for role, text in said if text]
    return {"messages": messages, "description": f"{context.receipt.total_tokens} tokens"}


def make_server() -> Server[Connected]:
    """The SDK's server, for any number of clients; raises `MissingExtra` where the SDK is not installed."""
    with requires_extra("alcove mcp", extra="mcp"):
        from mcp import MCPError, types  # noqa: PLC0415  loaded by who serves
        from mcp.server.lowlevel import Server  # noqa: PLC0415

    async def in_our_words(ctx: Any, call_next: Any) -> Any:
        """Every message goes through here; who opens a connection is told at once that there is no agent."""
        at: Connected = ctx.lifespan_context
        try:
            if ctx.method in ("initialize", "server/discover"):
                await at.memory.spec(at.agent)
            return await call_next(ctx)
        except AlcoveError as error:
            code = types.INVALID_PARAMS if STATUS[error.code] < 500 else types.INTERNAL_ERROR
            raise MCPError(code, error.public_message, {"code": error.code}) from None

    def answered(method: str, kind: Any, handler: Callable[[Connected, Any], Awaitable[Told]]) -> None:
        async def handle(ctx: Any, asked: Any) -> Told:
            return {**_MODERN, **await handler(ctx.lifespan_context, asked)}

        server.add_request_handler(method, kind, handle)

    async def listen(context: Any, asked: types.SubscriptionsListenRequestParams) -> Told:
        """Tells of changes for as long as the request stays open: so it is since 2026-07-28."""
        async for told in notices(context.lifespan_context, asked.notifications, context.request_id):
            for each in told:
                await context.session.send_notification(each, related_request_id=context.request_id)
        return {}

    async def initialized(context: Any, asked: types.NotificationParams) -> None:
        """Tells of changes unasked: so it was before."""
        async for told in notices(context.lifespan_context):
            for each in told:
                await context.session.send_notification(each)

    server: Server[Connected] = Server("alcove", version=__version__, instructions=_ABOUT)
    server.middleware[:] = [in_our_words]  # in place of a span for each message: requests have theirs
    paged = types.PaginatedRequestParams
    answered("tools/list", paged, _tools)
    answered("tools/call", types.CallToolRequestParams, _call)
    answered("resources/list", paged, _resources)
    answered("resources/templates/list", paged, _templates)
    answered("resources/read", types.ReadResourceRequestParams, _read)
    answered("prompts/list", paged, _prompts)
    answered("prompts/get", types.GetPromptRequestParams, _prompt)
    server.add_request_handler(LISTEN, types.SubscriptionsListenRequestParams, listen)
    server.add_notification_handler("notifications/initialized", types.NotificationParams, initialized)
    return server
