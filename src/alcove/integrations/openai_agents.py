"""Alcove for OpenAI's Agents SDK: conversations as its sessions, and an agent's memory tools as its tools.

What the SDK calls items (messages, calls, outputs, reasoning) is kept as messages of the conversation, which
`alcove session` shows, summaries draw on, and a wipe of the user erases. Beside a message stand the items as
the SDK had them, unless the message says it all, so that it gets back exactly what it added.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast, overload

import msgspec
from msgspec import structs

from alcove.agents.chat_messages import MAX_MESSAGES
from alcove.agents.sessions import MAX_SESSIONS, SessionLog
from alcove.client.agent import AgentHandle, AsyncAgentHandle
from alcove.core.errors import Conflict, NotFound, requires_extra
from alcove.core.records import Message
from alcove.integrations.calling import MENDABLE, call_handle, checked_handle

with requires_extra("alcove.integrations.openai_agents", extra="openai-agents"):
    from agents import FunctionTool, SessionSettings, Tool

if TYPE_CHECKING:
    from agents import TResponseInputItem
    from agents.tool_context import ToolContext

Item = dict[str, Any]
_ATTEMPTS = 50


class AlcoveSession:
    """A conversation of one agent with one user, for `Runner.run(agent, message, session=…)`."""

    def __init__(
        self, handle: AgentHandle | AsyncAgentHandle, *, session_settings: SessionSettings | None = None
    ) -> None:
        """`handle`: the agent, the user and the conversation: `store.agent("helper", session_id="monday")`.

        `session_settings`: `SessionSettings(limit=50)` gives the model the last fifty items, not all of them.
        """
        checked_handle(handle)
        self.session_id = handle.session_id
        self.session_settings = session_settings
        self._handle = handle

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The last items in their order, at most `limit`, or what the settings say; all without either."""
        most = limit if limit is not None or self.session_settings is None else self.session_settings.limit
        items: list[Item] = []
        before: int | None = None
        while most is None or len(items) < most:
            page = await self._page(MAX_SESSIONS if most is None else min(MAX_SESSIONS, most), before)
            items[:0] = (item for message in (page.said if page else ()) for item in _items(message))
            if page is None or (before := page.before) is None:
                break
        return cast("list[TResponseInputItem]", items if most is None else items[max(0, len(items) - most) :])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Keeps items after those that are there, in one transaction, or in one for each 200 messages."""
        messages = _messages(cast("list[Item]", items))
        for start in range(0, len(messages), MAX_MESSAGES):
            await call_handle(self._handle.remember, messages[start : start + MAX_MESSAGES])

    async def pop_item(self) -> TResponseInputItem | None:
        """Takes the last item away and gives it; None where there is none. Of two at once, each gets one."""
        agents, name = self._handle.agents, self._handle.name
        for attempt in range(_ATTEMPTS):
            if (page := await self._page(1)) is None:
                return None
            (last,) = page.said
            try:
                left = _without_last(last)
                await call_handle(agents.replace_last, name, self.session_id, last=last, message=left)
                return cast("TResponseInputItem", _items(last)[-1])
            except Conflict:
                await asyncio.sleep(random.random() * min(attempt + 1, 10) * 0.005)  # noqa: S311
        raise Conflict("too many change this conversation at once; try later")

    async def clear_session(self) -> None:
        """Takes the conversation away, without a trace but in summaries of earlier ones."""
        with suppress(NotFound):
            await call_handle(self._handle.agents.delete_session, self._handle.name, self.session_id)

    async def _page(self, limit: int, before: int | None = None) -> SessionLog | None:
        """The last messages, or those before one; None where nothing was said yet."""
        agents, name = self._handle.agents, self._handle.name
        with suppress(NotFound):
            return await call_handle(agents.session, name, self.session_id, limit, before)
        await call_handle(agents.agent, name)  # that there is no such agent must not look like silence
        return None


@overload
def function_tools(handle: AgentHandle) -> list[Tool]: ...
@overload
def function_tools(handle: AsyncAgentHandle) -> Coroutine[Any, Any, list[Tool]]: ...
def function_tools(handle: AgentHandle | AsyncAgentHandle) -> list[Tool] | Coroutine[Any, Any, list[Tool]]:
    """The agent's memory tools, for `Agent(tools=…)`; of a handle that is awaited, await it."""
    checked_handle(handle)
    if isinstance(handle, AgentHandle):
        return [_tool(handle, each) for each in handle.tools("responses")]

    async def made() -> list[Tool]:
        return [_tool(handle, each) for each in await handle.tools("responses")]

    return made()


def _tool(handle: AgentHandle | AsyncAgentHandle, about: Item) -> Tool:
    async def invoke(_: ToolContext[Any], arguments: str) -> str:
        try:
            given = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
            return (await call_handle(handle.call, about["name"], given)).text
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return "error: arguments: expected a JSON object"
        except MENDABLE as error:
            return error.tool_text

    return FunctionTool(
        name=about["name"],
        description=about["description"],
        params_json_schema=about["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=False,  # arguments may be left out
    )


def _messages(items: Iterable[Item]) -> list[Message]:
    """Items as messages: calls made together are one; what nobody said goes with the message after it."""
    messages: list[Message] = []
    held: list[Item] = []
    for item in items:
        held.append(item)
        message = _message(item)
        if message is None:
            continue
        before = messages[-1].tool_calls if messages and message.tool_calls else []
        if before and message.tool_calls[0]["id"] not in [call["id"] for call in before]:
            last = messages.pop()
            message = structs.replace(last, tool_calls=[*before, *message.tool_calls])
            held = [*last.original, *held]
        messages.append(structs.replace(message, original=held))
        held = []
    if held:
        kinds = ", ".join(str(each.get("type") or each.get("role")) for each in held)
        messages.append(Message(role="assistant", content=f"[{kinds}]", original=held))
    alone = (structs.replace(each, original=[]) for each in messages)
    return [
        short if _items(short) == each.original else each for short, each in zip(alone, messages, strict=True)
    ]


def _message(item: Item) -> Message | None:
    """What an item says, as a message; None where it is no turn of anybody, such as reasoning."""
    kind, role, call = item.get("type", "message"), item.get("role"), item.get("call_id")
    if kind == "message" and role in ("user", "assistant"):
        return Message(role=role, content=_text(item.get("content")))
    if kind == "function_call_output" and isinstance(call, str):
        return Message(role="tool", content=_text(item.get("output")), tool_call_id=call)
    name, arguments = item.get("name"), item.get("arguments")
    if kind == "function_call" and all(isinstance(each, str) for each in (call, name, arguments)):
        made = {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
        return Message(role="assistant", tool_calls=[made])
    return None


def _text(content: object) -> str:
    """The text of a content; a part that has none is named."""
    if isinstance(content, str):
        return content
    parts = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    texts = (each.get("text") or each.get("refusal") or f"[{each.get('type')}]" for each in parts)
    return "\n".join(map(str, texts))


def _items(message: Message) -> list[Item]:
    """The items that a message stands for."""
    if message.original:
        return message.original
    text, made = message.content, "function_call"
    if message.role == "tool":
        return [{"type": f"{made}_output", "call_id": message.tool_call_id, "output": text or ""}]
    calls = [{"type": made, "call_id": call["id"], **call["function"]} for call in message.tool_calls]
    return calls if text is None else [{"role": message.role, "content": text}, *calls]


def _without_last(message: Message) -> Message | None:
    """A message without the last item that it stands for; None where that leaves nothing."""
    if message.original:
        items = message.original[:-1]
        return structs.replace(_messages(items)[0], at=message.at, original=items) if items else None
    calls = message.tool_calls[:-1]
    unsaid = not message.tool_calls or (message.content is None and not calls)
    return None if unsaid else structs.replace(message, tool_calls=calls)
