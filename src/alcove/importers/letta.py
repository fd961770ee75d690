"""Letta: agent files (.af) of both formats, and lists of passages from its API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from alcove.core.errors import InvalidRequest
from alcove.importers import records, source_files
from alcove.importers.job import NO_AGENT, NO_USER, ImportJob, enumerate_records
from alcove.importers.memory_lines import long_term_line, speaker_name, turn_lines
from alcove.upkeep.transfer import Line

_FILE = "an agent file of Letta (.af) with agents and blocks, or a list of passages"
_PASSAGES = ("passages", "archival_memory", "archival_passages")
_MAPPED = ("metadata", "is_deleted", "tags", "embedding", "embedding_config")
"""Fields of a passage that have a place in Alcove, or that are computed from its text."""
_NOT_MEMORY = {
    "tools": "code is not memory: give it to the new agent",
    "mcp_servers": "they belong to the agent and are not memory",
    "skills": "they belong to the agent and are not memory",
    "groups": "write a team into the specs",
    "sources": "alcove knowledge reads the documents themselves",
    "files": "alcove knowledge reads the documents themselves",
}
_SEND = "send_message"
"""The tool by which older agents of Letta talk; its argument is the answer to the user."""
_INTERNAL = "internal to Letta, not part of the conversation"


def read(source: str, job: ImportJob) -> Iterator[bytes]:
    """The lines of an agent file, or of passages."""
    path = Path(source)
    document = source_files.read_json(path, _FILE)
    if isinstance(document, list):
        return _read_passages({"passages": document}, job)
    if not isinstance(document, dict) or not ("core_memory" in document or "agents" in document):
        raise InvalidRequest(path.name, _FILE)
    return _read_agents(_to_new_format(document), path.name, job)


def _to_new_format(document: dict[str, Any]) -> dict[str, Any]:
    """An agent file of the first format, which has one agent, in the current format."""
    if "agents" in document:
        return document
    core_memory = document.get("core_memory")
    blocks = [
        {"id": f"block-{n}", **block} if isinstance(block, dict) else block
        for n, block in enumerate(core_memory if isinstance(core_memory, list) else [])
    ]
    agent = {**document, "block_ids": [f"block-{n}" for n in range(len(blocks))]}
    return {**document, "agents": [agent], "blocks": blocks}


def _read_agents(document: dict[str, Any], name: str, job: ImportJob) -> Iterator[bytes]:
    agents = [*job.valid("agents", _items(document, "agents", name), _check_agent)]
    for kind, reason in _NOT_MEMORY.items():
        job.skip(kind.removesuffix("s").replace("_", " "), reason, len(_items(document, kind, name)))
    prompts = sum("system" in agent for agent in agents)
    job.skip("system prompt", "write it into the spec, as instructions", prompts)
    owners = dict[str, str | None]()
    for agent in agents:
        for id in agent["block_ids"]:
            owners.setdefault(id, agent["name"])
    blocks = enumerate_records("blocks", _items(document, "blocks", name))
    created_at = document.get("created_at")
    yield from job.lines(blocks, partial(_block_lines, job=job, owners=owners, created_at=created_at))
    for part in (document, *agents):
        yield from _read_passages(part, job)
    conversations = ((f"agents[{n}].messages", agent) for n, agent in enumerate(agents))
    yield from job.lines(conversations, partial(_conversation_lines, job=job))


def _items(document: dict[str, Any], kind: str, name: str) -> list[Any]:
    try:
        return records.items(document, kind)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error.field}", error.expected) from None


def _check_agent(value: object) -> dict[str, Any]:
    agent = records.check_record(value)
    name, block_ids = records.text(agent, "name"), records.texts(agent, "block_ids")
    return {**agent, "name": name, "block_ids": block_ids}


def _block_lines(
    value: object, job: ImportJob, owners: Mapping[str, str | None], created_at: str | None
) -> Iterator[Line]:
    """A block of core memory, identified by agent and label: ids count from 0 in every file.

    `owners` has the name of the first agent of each block by the block's id.
    """
    block = records.check_record(value)
    if not (records.text(block, "value") or "").strip():
        return job.skip("block", "it is empty")
    if job.target.user is None:
        return job.skip("block", NO_USER)
    id, label = records.text(block, "id"), records.text(block, "label")
    owner = owners.get(id) if id else None
    new_id = "-".join(map(str, (owner or "no-agent", label or id)))
    yield long_term_line(
        "letta",
        {**block, "id": new_id, "created_at": block.get("created_at") or created_at},
        job.target.user,
        id="id",
        content="value",
        mapped=("metadata", "metadata_"),
        agent=job.target.agent,
        tags=[label],
        metadata=records.mapping(block, "metadata") or records.mapping(block, "metadata_"),
    )


def _read_passages(document: dict[str, Any], job: ImportJob) -> Iterator[bytes]:
    """The passages of archival memory; an agent file has none unless somebody added them."""
    for kind in _PASSAGES:
        passages = document.get(kind)
        places = enumerate_records(kind, passages if isinstance(passages, list) else ())
        yield from job.lines(places, partial(_passage_lines, job=job))


def _passage_lines(value: object, job: ImportJob) -> Iterator[Line]:
    passage = records.check_record(value)
    if job.target.user is None:
        return job.skip("passage", NO_USER)
    if passage.get("is_deleted"):
        return job.skip("passage", "already deleted there")
    yield long_term_line(
        "letta",
        passage,
        job.target.user,
        id="id",
        content="text",
        mapped=_MAPPED,
        agent=job.target.agent,
        tags=records.items(passage, "tags"),
        metadata=records.mapping(passage, "metadata"),
    )


def _conversation_lines(agent: dict[str, Any], job: ImportJob) -> Iterator[Line]:
    messages, target = records.items(agent, "messages"), job.target
    if target.user is None or target.agent is None:
        return job.skip("message", NO_USER if target.agent else NO_AGENT, len(messages))
    room = target.agent, target.user, f"letta-{records.text(agent, 'name') or 'agent'}"
    yield from turn_lines(job, "messages", room, _chat_messages(messages, job))


def _chat_messages(messages: list[Any], job: ImportJob) -> Iterator[dict[str, Any]]:
    """The messages of the user, the assistant and its tools in the form of chat APIs; skips the others."""
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
