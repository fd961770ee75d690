"""OpenAI's Agents SDK: conversations as its sessions, and an agent's memory tools as its tools.

The SDK's items (messages, calls, outputs, reasoning) are stored as messages of the conversation, which
`alcove session` shows, summaries use, and a wipe of the user erases. A message also has the original items,
if they cannot be restored from it, so that the SDK reads exactly what it wrote.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast, overload

import msgspec
from msgspec import structs

from alcove.agents.sessions import MAX_SESSIONS, SessionLog
from alcove.agents.transcripts import MAX_MESSAGES
from alcove.client.agent import AgentHandle, AsyncAgentHandle
from alcove.core.errors import Conflict, NotFound, requires_extra
from alcove.core.records import Message
from alcove.integrations.adapter import CORRECTABLE_ERRORS, call_handle, check_handle

with requires_extra("alcove.integrations.openai_agents", extra="openai-agents"):
    from agents import FunctionTool, SessionSettings, Tool

if TYPE_CHECKING:
    from agents import TResponseInputItem
    from agents.tool_context import ToolContext

Item = dict[str, Any]
_MAX_ATTEMPTS = 50


class AlcoveSession:
    """A conversation of one agent with one user, for `Runner.run(agent, message, session=…)`."""

    def __init__(
        self, handle: AgentHandle | AsyncAgentHandle, *, session_settings: SessionSettings | None = None
    ) -> None:
        """`handle`: the agent, the user and the conversation: `store.agent("helper", session_id="monday")`.

        `session_settings`: `SessionSettings(limit=50)` gives the model only the last fifty items.
        """
        check_handle(handle)
        self.session_id = handle.session_id
        self.session_settings = session_settings
        self._handle = handle

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The last items, oldest first: at most `limit`, or the limit of the settings, or all of them."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        items: list[Item] = []
        before: int | None = None
        while limit is None or len(items) < limit:
            page = await self._page(MAX_SESSIONS if limit is None else min(MAX_SESSIONS, limit), before)
            items[:0] = (item for message in (page.said if page else ()) for item in _items(message))
            if page is None or (before := page.before) is None:
                break
        return cast(
            "list[TResponseInputItem]", items if limit is None else items[max(0, len(items) - limit) :]
        )

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Appends items, in one transaction for each 200 messages."""
        messages = _messages(cast("list[Item]", items))
        for start in range(0, len(messages), MAX_MESSAGES):
            await call_handle(self._handle.remember, messages[start : start + MAX_MESSAGES])

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes and returns the last item, or returns None; concurrent callers get different items."""
        agents, name = self._handle.agents, self._handle.name
        for attempt in range(_MAX_ATTEMPTS):
            if (page := await self._page(1)) is None:
                return None
            (last,) = page.said
            try:
                message = _without_last(last)
                await call_handle(agents.replace_last, name, self.session_id, last=last, message=message)
                return cast("TResponseInputItem", _items(last)[-1])
            except Conflict:
                await asyncio.sleep(random.random() * min(attempt + 1, 10) * 0.005)  # noqa: S311
        raise Conflict("too many callers change this conversation at once; try again later")

    async def clear_session(self) -> None:
        """Deletes the conversation; summaries of earlier conversations remain."""
        with suppress(NotFound):
            await call_handle(self._handle.agents.delete_session, self._handle.name, self.session_id)

    async def _page(self, limit: int, before: int | None = None) -> SessionLog | None:
        """The last messages, or those before one; None if there are no messages yet."""
        agents, name = self._handle.agents, self._handle.name
        with suppress(NotFound):
            return await call_handle(agents.session, name, self.session_id, limit, before)
        await call_handle(agents.spec, name)  # raises NotFound if there is no such agent
        return None


@overload
def function_tools(handle: AgentHandle) -> list[Tool]: ...
@overload
def function_tools(handle: AsyncAgentHandle) -> Coroutine[Any, Any, list[Tool]]: ...
def function_tools(handle: AgentHandle | AsyncAgentHandle) -> list[Tool] | Coroutine[Any, Any, list[Tool]]:
    """The agent's memory tools, for `Agent(tools=…)`; await it for an `AsyncAgentHandle`."""
    check_handle(handle)
    if isinstance(handle, AgentHandle):
        return [_tool(handle, description) for description in handle.tools("responses")]

    async def load() -> list[Tool]:
        return [_tool(handle, description) for description in await handle.tools("responses")]

    return load()


def _tool(handle: AgentHandle | AsyncAgentHandle, description: Item) -> Tool:
    async def invoke(_: ToolContext[Any], arguments: str) -> str:
        try:
            tool_arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
            return (await call_handle(handle.call, description["name"], tool_arguments)).text
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return "error: arguments: expected a JSON object"
        except CORRECTABLE_ERRORS as error:
            return error.tool_text

    return FunctionTool(
        name=description["name"],
        description=description["description"],
        params_json_schema=description["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=False,  # some arguments are optional
    )


def _messages(items: Iterable[Item]) -> list[Message]:
    """Items as messages: parallel calls are one message; items without text go with the next message."""
    messages: list[Message] = []
    original: list[Item] = []
    for item in items:
        original.append(item)
        message = _message(item)
        if message is None:
            continue
        calls = messages[-1].tool_calls if messages and message.tool_calls else []
        if calls and message.tool_calls[0]["id"] not in [call["id"] for call in calls]:
            last = messages.pop()
            message = structs.replace(last, tool_calls=[*calls, *message.tool_calls])
            original = [*last.original, *original]
        messages.append(structs.replace(message, original=original))
        original = []
    if original:
        kinds = ", ".join(str(each.get("type") or each.get("role")) for each in original)
        messages.append(Message(role="assistant", content=f"[{kinds}]", original=original))
    plain = [structs.replace(message, original=[]) for message in messages]
    return [
        short if _items(short) == message.original else message
        for short, message in zip(plain, messages, strict=True)
    ]


def _message(item: Item) -> Message | None:
    """An item as a message; None for an item without text, such as reasoning."""
    kind, role, call = item.get("type", "message"), item.get("role"), item.get("call_id")
    if kind == "message" and role in ("user", "assistant"):
        return Message(role=role, content=_text(item.get("content")))
    if kind == "function_call_output" and isinstance(call, str):
        return Message(role="tool", content=_text(item.get("output")), tool_call_id=call)
    name, arguments = item.get("name"), item.get("arguments")
    if kind == "function_call" and all(isinstance(each, str) for each in (call, name, arguments)):
        function = {"name": name, "arguments": arguments}
        return Message(role="assistant", tool_calls=[{"id": call, "type": "function", "function": function}])
    return None


def _text(content: object) -> str:
    """The text of a content; a part without text is shown by its type."""
    if isinstance(content, str):
        return content
    parts = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    texts = (each.get("text") or each.get("refusal") or f"[{each.get('type')}]" for each in parts)
    return "\n".join(map(str, texts))


def _items(message: Message) -> list[Item]:
    """The items of a message."""
    if message.original:
        return message.original
    text, id = message.content, message.tool_call_id
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": id, "output": text or ""}]
    calls = [
        {"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.tool_calls
    ]
    return calls if text is None else [{"role": message.role, "content": text}, *calls]


def _without_last(message: Message) -> Message | None:
    """A message without its last item; None if it has no other."""
    if message.original:
        items = message.original[:-1]
        return structs.replace(_messages(items)[0], at=message.at, original=items) if items else None
    calls = message.tool_calls[:-1]
    is_empty = not message.tool_calls or (message.content is None and not calls)
    return None if is_empty else structs.replace(message, tool_calls=calls)
