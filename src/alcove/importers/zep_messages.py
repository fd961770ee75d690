"""Zep's messages, and Graphiti's episodes that are messages, as conversations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from alcove.importers import fields, lines
from alcove.importers.account import NO_AGENT, NO_USER, Account, Target, numbered
from alcove.importers.zep_owners import Owners, id_of
from alcove.upkeep.transfer import Line

_ROLES = ("user", "assistant")
_SAID = re.compile(r"(?P<who>user|assistant): (?P<what>.+)", re.DOTALL | re.IGNORECASE)
"""How Graphiti has a message: who said it, and what."""
_RAW = "raw text, of which the facts were made; alcove knowledge takes documents"


def conversations(
    found: dict[str, list[dict[str, Any]]], owners: Owners, target: Target, account: Account
) -> Iterator[bytes]:
    """The messages of threads, and those that stand alone; episodes where there are no messages."""
    threads = found["threads"]
    called = {id_of(each): _name(each) for each in threads}
    messages = [*(each for thread in threads for each in _inside(thread, owners)), *found["messages"]]
    sessions: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for kind, records in (("messages", messages), ("episodes", found["episodes"])):
        for place, each in numbered(kind, records):
            with account.noting(place):
                record = fields.record(each)
                said = (
                    _message(record, account) if kind == "messages" else _episode(record, account, messages)
                )
                if said and (room := _room(record, owners, target, account, called)):
                    sessions.setdefault(room, []).append(said)

    def turns(given: tuple[tuple[str, str], list[dict[str, Any]]]) -> Iterator[Line]:
        (user, session), said = given
        assert target.agent is not None  # else there is no room
        yield from lines.turns(account, f"session {session}", (target.agent, user, session), said)

    yield from account.each(((f"session {each[0][1]}", each) for each in sessions.items()), turns)


def _inside(thread: dict[str, Any], owners: Owners) -> Iterator[Any]:
    """The messages that stand in a thread, with its name and its user."""
    messages = thread.get("messages")
    for each in messages if isinstance(messages, list) else ():
        here = {"thread_id": _name(thread), "user_id": owners.of(thread)}
        yield {**each, **here} if isinstance(each, dict) else each


def _room(
    record: fields.Record, owners: Owners, target: Target, account: Account, called: dict[str | None, str]
) -> tuple[str, str] | None:
    """The user and the session that a message is of; None where that is not known."""
    user = owners.of(record)
    if user is None or target.agent is None:
        account.leave("message", NO_USER if target.agent else NO_AGENT)
        return None
    thread = fields.text(record, "thread_uuid")
    return user, f"zep-{called.get(thread) or _name(record)}" if thread or _name(record) else "zep"


def _name(thread: fields.Record) -> str:
    """What a thread is called: by the developer, if they did, otherwise by Zep."""
    own = () if "content" in thread else ("uuid", "uuid_")  # of a message, that is not its thread's
    names = ("thread_id", "session_id", "thread_uuid", *own, "group_id")
    return next(filter(None, (fields.text(thread, each) for each in names)), "")


def _message(record: fields.Record, account: Account) -> dict[str, Any] | None:
    """A message; what `role` says is `role_type` in older ones, where `role` is a name."""
    kind = fields.text(record, "role_type") or fields.text(record, "role")
    name = fields.text(record, "name") or (fields.text(record, "role") if record.get("role_type") else None)
    if kind not in _ROLES:
        account.leave("message", "neither of the user nor of the assistant")
        return None
    if record.get("metadata"):
        account.leave("metadata object", "of a message; a turn has no place for it")
    at = fields.moment(record, "reference_time") or fields.moment(record, "created_at")
    return {
        "role": kind,
        "content": fields.required(record, "content"),
        "name": lines.speaker(name),
        "at": at,
    }


def _episode(record: fields.Record, account: Account, messages: list[Any]) -> dict[str, Any] | None:
    if record.get("source") != "message":
        account.leave("episode", _RAW)
        return None
    if messages:
        account.leave("episode", "the same as the messages")
        return None
    content = fields.required(record, "content")
    found = _SAID.fullmatch(content)
    role = fields.text(record, "role") or (found["who"].lower() if found else "user")
    said = {**record, "role": role, "content": found["what"] if found else content,
            "name": fields.text(record, "role_name"), "role_type": None}  # fmt: skip
    times = ("reference_time", "valid_at", "created_at")
    at = next(filter(None, (fields.moment(record, each) for each in times)), None)
    return _message({**said, "reference_time": at}, account)
