"""Letta's messages in the form of chat APIs, without the JSON packages that Letta wraps them in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from alcove.importers import records
from alcove.importers.job import ImportJob, enumerate_records
from alcove.importers.memory_lines import speaker_name

_SEND = "send_message"
"""The tool by which older agents of Letta talk; its argument is the answer to the user."""
_INTERNAL = "internal to Letta, not part of the conversation"


def chat_messages(messages: list[Any], job: ImportJob) -> Iterator[dict[str, Any]]:
    """The messages of the user, the assistant and its tools, in order; the others are skipped."""
    send_calls = set[str]()
    for place, value in enumerate_records("messages", messages):
        with job.catching(place):
            record = records.check_record(value)
            time = records.time(record, "created_at")
            name = speaker_name(records.text(record, "name"))
            for message in _convert(record, send_calls, job):
                yield {**message, "at": time, **({"name": name} if message["role"] != "tool" else {})}


def _convert(record: records.Record, send_calls: set[str], job: ImportJob) -> Iterator[dict[str, Any]]:
    """The chat messages of one record; `send_calls` collects the ids of calls that only carry an answer."""
    text = _text(record, job)
    match record.get("role"):
        case "user" if (content := _unwrap(text)) is not None:
            yield {"role": "user", "content": content}
        case "assistant":
            yield from _convert_answer(record, text, send_calls, job)
        case "tool":
            yield from _convert_tool_returns(record, text, send_calls, job)
        case _:
            job.skip("message", _INTERNAL)


def _text(record: records.Record, job: ImportJob) -> str:
    content = record.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    texts = []
    for part in map(records.check_record, parts):
        if part.get("type") == "text":
            texts.append(records.text(part, "text") or "")
        elif part.get("type") not in ("tool_call", "tool_return"):  # the record has those as fields, too
            job.skip(str(part.get("type")).replace("_", " "), "a turn has text only")
    return "\n".join(filter(None, texts))


def _unwrap(text: str) -> str | None:
    """The text of a user, also from a package; None for a package of Letta's own, such as a heartbeat."""
    package = _parse_object(text) if text.startswith("{") else {}
    if not isinstance(package.get("type"), str) or "time" not in package:
        return text
    message = package.get("message") if package["type"] == "user_message" else None
    return message if isinstance(message, str) else None


def _convert_answer(
    record: records.Record, text: str, send_calls: set[str], job: ImportJob
) -> Iterator[dict[str, Any]]:
    answers, calls = list[str](), list[dict[str, Any]]()
    for call in map(records.check_record, records.items(record, "tool_calls")):
        function = records.mapping(call, "function")
        name = records.required_text(function, "name")
        arguments = records.text(function, "arguments") or "{}"
        answer = _parse_object(arguments).get("message") if name == _SEND else None
        if isinstance(answer, str):
            answers.append(answer)
            send_calls.add(str(call.get("id")))
        else:
            id, function = records.required_text(call, "id"), {"name": name, "arguments": arguments}
            calls.append({"id": id, "type": "function", "function": function})
    if answers and text:
        job.skip("thought", "thoughts of an agent are not part of the conversation")
    content = "\n".join(answers) if answers else text
    if content or calls:
        yield {"role": "assistant", "content": content or None, "tool_calls": calls}
    else:
        job.skip("message", "it is empty")


def _parse_object(text: str) -> dict[str, Any]:
    """A JSON object; empty if the text is not one."""
    with suppress(ValueError, RecursionError):
        if isinstance(value := json.loads(text), dict):
            return value
    return {}


def _convert_tool_returns(
    record: records.Record, text: str, send_calls: set[str], job: ImportJob
) -> Iterator[dict[str, Any]]:
    """The answers of tools, of which one record may have several."""
    returns = [records.check_record(value) for value in records.items(record, "tool_returns")]
    answers = [(records.text(each, "tool_call_id"), each.get("func_response")) for each in returns]
    if not any(id for id, _ in answers):
        answers = [(records.text(record, "tool_call_id"), text)]
    for id, answer in answers:
        if id in send_calls:
            job.skip("message", "it only confirms send_message")
        elif not id:
            job.skip("message", "a tool's answer without the id of its call")
        else:
            content = answer if isinstance(answer, str) else text
            yield {"role": "tool", "tool_call_id": id, "content": content}
