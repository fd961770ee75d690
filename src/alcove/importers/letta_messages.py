"""Letta's messages as chat APIs have them: what was said comes out of the packages that Letta wraps it in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from alcove.importers import fields, lines
from alcove.importers.account import Account, numbered

_SEND = "send_message"
"""The tool by which older agents of Letta talk; its argument is what they said."""
_NOBODY = "said by Letta, not in the conversation"


def said(given: list[Any], account: Account) -> Iterator[dict[str, Any]]:
    """What the user, the assistant and its tools said, in order; the rest is accounted for."""
    sent = set[str]()
    for place, each in numbered("messages", given):
        with account.noting(place):
            message = fields.record(each)
            at, name = fields.moment(message, "created_at"), lines.speaker(fields.text(message, "name"))
            for found in _of(message, sent, account):
                yield {**found, "at": at, **({"name": name} if found["role"] != "tool" else {})}


def _of(message: fields.Record, sent: set[str], account: Account) -> Iterator[dict[str, Any]]:
    """What one of Letta's messages says; `sent` collects the calls that only carried what was said."""
    text = _text(message, account)
    match message.get("role"):
        case "user":
            if (unwrapped := _unwrapped(text)) is None:
                account.leave("message", _NOBODY)
            else:
                yield {"role": "user", "content": unwrapped}
        case "assistant":
            yield from _answered(message, text, sent, account)
        case "tool":
            yield from _returned(message, text, sent, account)
        case _:
            account.leave("message", _NOBODY)


def _text(message: fields.Record, account: Account) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    texts = []
    for part in map(fields.record, parts):
        if part.get("type") == "text":
            texts.append(fields.text(part, "text") or "")
        elif part.get("type") not in ("tool_call", "tool_return"):  # those stand beside the content, too
            account.leave(str(part.get("type")).replace("_", " "), "a turn has text only")
    return "\n".join(filter(None, texts))


def _unwrapped(text: str) -> str | None:
    """What a user said, which may be in a package; None for a package of Letta's own, such as a heartbeat."""
    package = _object(text) if text.startswith("{") else {}
    if not isinstance(package.get("type"), str) or "time" not in package:
        return text
    found = package.get("message") if package["type"] == "user_message" else None
    return found if isinstance(found, str) else None


def _answered(
    message: fields.Record, text: str, sent: set[str], account: Account
) -> Iterator[dict[str, Any]]:
    answers, calls = list[str](), list[dict[str, Any]]()
    for call in map(fields.record, fields.listed(message, "tool_calls")):
        function = fields.mapping(call, "function")
        name, arguments = fields.required(function, "name"), fields.text(function, "arguments") or "{}"
        answer = _object(arguments).get("message") if name == _SEND else None
        if isinstance(answer, str):
            answers.append(answer)
            sent.add(str(call.get("id")))
        else:
            calls.append({"id": fields.required(call, "id"), "type": "function",
                          "function": {"name": name, "arguments": arguments}})  # fmt: skip
    if answers and text:
        account.leave("thought", "what an agent thinks is not a part of the conversation")
    content = "\n".join(answers) if answers else text
    if content or calls:
        yield {"role": "assistant", "content": content or None, "tool_calls": calls}
    else:
        account.leave("message", "it says nothing")


def _object(text: str) -> dict[str, Any]:
    """A JSON object; an empty one where a text is none."""
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(text), dict):
            return found
    return {}


def _returned(
    message: fields.Record, text: str, sent: set[str], account: Account
) -> Iterator[dict[str, Any]]:
    """What tools answered: one message may have several answers."""
    returns = [fields.record(each) for each in fields.listed(message, "tool_returns")]
    answers = [(fields.text(each, "tool_call_id"), each.get("func_response")) for each in returns]
    if not [id for id, _ in answers if id]:
        answers = [(fields.text(message, "tool_call_id"), text)]
    for id, answer in answers:
        if id in sent:
            account.leave("message", "only says that send_message was done")
        elif not id:
            account.leave("message", "a tool's answer that does not say to which call")
        else:
            content = answer if isinstance(answer, str) else text
            yield {"role": "tool", "tool_call_id": id, "content": content}
