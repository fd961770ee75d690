"""Chat messages: check them, count their tokens, and find the part of a conversation that a window holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from alcove.agents.specs.records import Conversation
from alcove.core import validation
from alcove.core.decoding import convert
from alcove.core.errors import InvalidRequest
from alcove.core.records import Message

MAX_MESSAGES = 200
"""Messages that one call may add."""
MESSAGE_TOKENS = 4
"""About what a chat API adds to each message."""
_ROLES = ("user", "assistant", "tool")
Text = Annotated[str, Meta(min_length=1)]


class StoredMessage(NamedTuple):
    """A message of a session: its number, counted from 1, and the id of its memory."""

    number: int
    id: str
    message: Message


def user_message(text: str, field: str = "message") -> Message:
    """Makes a user's message; an error names the field that the text came in."""
    if not validation.encode_text(text, field).strip():
        raise InvalidRequest(field, "a text that is not blank")
    return Message(role="user", content=text)


def parse_messages(messages: Sequence[Message | Mapping[str, Any]]) -> list[Message]:
    """Checks messages before they are stored; an error names the first invalid one."""
    is_list = isinstance(messages, Sequence) and not isinstance(messages, str)
    if not is_list or not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidRequest("messages", f"a list of 1 to {MAX_MESSAGES} messages")
    return [parse_message(message, f"messages[{n}]") for n, message in enumerate(messages)]


def parse_message(data: Message | Mapping[str, Any], argument: str) -> Message:
    """Checks a message before it is stored; an error names the argument and its invalid field."""
    try:
        message = convert(msgspec.to_builtins(data), Message)
        problem = find_problem(message)
    except msgspec.ValidationError as error:
        invalid = validation.to_invalid_request(error, Message, "role")
        problem = invalid.field, invalid.expected
    except (TypeError, UnicodeEncodeError):
        problem = "content", "JSON data"
    if problem:
        raise InvalidRequest(f"{argument}.{problem[0]}", problem[1])
    return message


def find_problem(message: Message) -> tuple[str, str] | None:
    """Why a message cannot be stored: the invalid field, and what was expected there; None if it can."""
    calls = message.tool_calls
    if message.role not in _ROLES:
        return "role", f"one of {', '.join(_ROLES)}; instructions belong into the spec"
    if message.content is None and not calls:
        return "content", "a text, unless there are tool calls"
    if calls and message.role != "assistant":
        return "tool_calls", "none, unless the role is assistant"
    if not all(map(_is_tool_call, calls)) or len({call["id"] for call in calls}) < len(calls):
        return "tool_calls", "{id, type: function, function: {name, arguments}}, each with a unique id"
    if (message.tool_call_id is None) is (message.role == "tool"):
        return "tool_call_id", "the id of the call that it answers if the role is tool, otherwise nothing"
    return None


def _is_tool_call(call: Mapping[str, Any]) -> bool:
    function = call.get("function")
    if call.get("type") != "function" or not isinstance(function, dict):
        return False
    return all(
        isinstance(text, str) for text in (call.get("id"), function.get("name"), function.get("arguments"))
    )


def message_tokens(message: Message, count: Callable[[str], int]) -> int:
    """The tokens of a message; `count` counts those of a text."""
    calls = msgspec.json.encode(message.tool_calls).decode() if message.tool_calls else None
    texts = filter(None, (message.content, calls, message.name, message.tool_call_id))
    return MESSAGE_TOKENS + sum(map(count, texts))


def group_tool_calls(messages: Sequence[StoredMessage]) -> list[list[StoredMessage]]:
    """Groups messages, in their order, so that tool calls and their results stay together."""
    groups: list[list[StoredMessage]] = []
    open_calls: set[str] = set()
    for each in messages:
        if each.message.role == "tool" and each.message.tool_call_id in open_calls:
            groups[-1].append(each)
            open_calls.discard(each.message.tool_call_id)
        else:
            groups.append([each])
            open_calls = {call["id"] for call in each.message.tool_calls}
    return groups


def is_complete(group: Sequence[StoredMessage]) -> bool:
    """Whether each call has its result and each result its call, which chat APIs require."""
    first, *results = (each.message for each in group)
    return first.role != "tool" and len(results) == len(first.tool_calls)


def window_start(
    groups: Sequence[Sequence[StoredMessage]], spec: Conversation, count: Callable[[str], int]
) -> int:
    """The index of the first group that the window of a conversation holds."""
    messages = tokens = 0
    for start in range(len(groups), 0, -1):
        group = groups[start - 1]
        messages += len(group)
        tokens += sum(message_tokens(each.message, count) for each in group)
        if messages > spec.window_size or (spec.max_tokens and tokens > spec.max_tokens):
            return start
    return 0


def new_messages(messages: Sequence[Message], last: Message | None) -> list[Message]:
    """The new messages of a conversation that a caller sends whole: those after `last`, which is stored.

    If the caller's conversation does not contain it, those after its last answer. If nothing is stored, all.
    """
    if last is None:
        return [*messages]
    positions = [n for n, each in enumerate(messages) if _identity(each) == _identity(last)] or [
        n for n, each in enumerate(messages) if each.role == "assistant" and not each.tool_calls
    ]
    return [*messages[positions[-1] + 1 :]] if positions else [*messages]


def _identity(message: Message) -> tuple[object, ...]:
    calls = [call["id"] for call in message.tool_calls]
    return message.role, message.content or "", message.tool_call_id, calls
