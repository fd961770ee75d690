"""Zep's messages, and Graphiti's episodes that are messages, as conversations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from alcove.importers import records
from alcove.importers.job import NO_AGENT, NO_USER, ImportJob, enumerate_records
from alcove.importers.memory_lines import speaker_name, turn_lines
from alcove.importers.zep_owners import Owners, id_of

_ROLES = ("user", "assistant")
_EPISODE = re.compile(r"(?P<role>user|assistant): (?P<content>.+)", re.DOTALL | re.IGNORECASE)
"""The form of a message in Graphiti."""
_RAW_TEXT = "raw text that the facts were made from; alcove knowledge takes documents"


def read_conversations(
    document: dict[str, list[dict[str, Any]]], owners: Owners, job: ImportJob
) -> Iterator[bytes]:
    """The messages inside and outside of threads, or the episodes if there are no messages."""
    threads = document["threads"]
    thread_names = {id: _thread_name(thread) for thread in threads if (id := id_of(thread))}
    messages = [message for thread in threads for message in _messages_of(thread, owners)]
    messages += document["messages"]
    sessions: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for kind, values in (("messages", messages), ("episodes", document["episodes"])):
        for place, value in enumerate_records(kind, values):
            with job.catching(place):
                record = records.check_record(value)
                is_message = kind == "messages"
                message = _message(record, job) if is_message else _episode(record, job, messages)
                if message and (key := _session(record, owners, job, thread_names)):
                    sessions.setdefault(key, []).append(message)

    for (user, session), turns in sessions.items():
        assert job.target.agent is not None  # otherwise there is no session
        room = job.target.agent, user, session
        to_lines = partial(turn_lines, job, f"session {session}", room)
        yield from job.lines([(f"session {session}", turns)], to_lines)


def _messages_of(thread: dict[str, Any], owners: Owners) -> Iterator[Any]:
    """The messages inside a thread, with its name and its user."""
    messages = thread.get("messages")
    for message in messages if isinstance(messages, list) else ():
        ids = {"thread_id": _thread_name(thread), "user_id": owners.of(thread)}
        yield {**message, **ids} if isinstance(message, dict) else message


def _session(
    record: records.Record, owners: Owners, job: ImportJob, thread_names: dict[str, str]
) -> tuple[str, str] | None:
    """The user and the session of a message; None if one of them is unknown."""
    user = owners.of(record)
    if user is None or job.target.agent is None:
        job.skip("message", NO_USER if job.target.agent else NO_AGENT)
        return None
    name = thread_names.get(records.text(record, "thread_uuid") or "") or _thread_name(record)
    return user, f"zep-{name}" if name else "zep"


def _thread_name(record: records.Record) -> str:
    """The name of a thread, or of a message's thread: the developer's own, otherwise Zep's."""
    is_message = "content" in record  # its uuid is not the thread's
    own_ids = () if is_message else ("uuid", "uuid_")
    fields = ("thread_id", "session_id", "thread_uuid", *own_ids, "group_id")
    return next(filter(None, (records.text(record, name) for name in fields)), "")


def _message(record: records.Record, job: ImportJob) -> dict[str, Any] | None:
    """A chat message; older records have its role in `role_type`, and a name in `role`."""
    role = records.text(record, "role_type") or records.text(record, "role")
    older_name = records.text(record, "role") if record.get("role_type") else None
    if role not in _ROLES:
        job.skip("message", "its role is neither user nor assistant")
        return None
    if record.get("metadata"):
        job.skip("metadata object", "of a message; a turn has no place for it")
    return {
        "role": role,
        "content": records.required_text(record, "content"),
        "name": speaker_name(records.text(record, "name") or older_name),
        "at": records.time(record, "reference_time") or records.time(record, "created_at"),
    }


def _episode(record: records.Record, job: ImportJob, messages: list[Any]) -> dict[str, Any] | None:
    if record.get("source") != "message":
        job.skip("episode", _RAW_TEXT)
        return None
    if messages:
        job.skip("episode", "the same as the messages")
        return None
    content = records.required_text(record, "content")
    match = _EPISODE.fullmatch(content)
    times = (records.time(record, name) for name in ("reference_time", "valid_at", "created_at"))
    message = {
        **record,
        "role": records.text(record, "role") or (match["role"].lower() if match else "user"),
        "content": match["content"] if match else content,
        "name": records.text(record, "role_name"),
        "role_type": None,
        "reference_time": next(filter(None, times), None),
    }
    return _message(message, job)
