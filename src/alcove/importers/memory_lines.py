"""The lines of imported memories: long-term memories of a user, and turns of a conversation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from alcove.agents.specs.records import OWNER_SEGMENTS
from alcove.agents.tools.long_term import MAX_TAG_CHARACTERS, MAX_TAGS
from alcove.agents.transcripts import parse_messages, turns_room
from alcove.core import validation
from alcove.core.errors import InvalidRequest
from alcove.core.principal import check_user_id
from alcove.core.records import Author, Message
from alcove.core.settings import Settings
from alcove.importers import records
from alcove.importers.job import ImportJob
from alcove.upkeep.transfer import Line

_LAST_KEY = 10**12
"""Keys of turns count down from here, as in `agents.transcripts`."""
_MAX_NAME_CHARACTERS = 64
"""The limit of chat APIs on the name of a message's author."""


def long_term_line(
    project: str,
    record: records.Record,
    user: str,
    *,
    id: str,
    content: str,
    mapped: Iterable[str] = (),
    agent: str | None = None,
    expires_at: datetime | None = None,
    tags: Iterable[object] = (),
    metadata: Mapping[str, Any] | None = None,
    **extra: Any,
) -> Line:
    """A long-term memory of a user, as `memory_remember` writes it and `memory_recall` finds it.

    `id` and `content` name fields of the record. With `project`, the id identifies the record when it is
    imported again. A memory of an agent goes to the room that only this agent enters. `extra` is added to the
    value; fields of the record that are neither used here nor `mapped` are added to the value's `origin`. The
    type is always `fact`: a text from outside must not become an instruction.
    """
    record_id, text = records.required_text(record, id), records.required_text(record, content)
    scope = "agent" if agent else "all"
    origin = {"from": project, "id": record_id}
    extra_fields = records.other_fields(record, id, content, "created_at", *mapped)
    return Line(
        namespace=["user", check_user_id(user, "user"), "long-term", scope, *([agent] if agent else [])],
        key=f"{scope}-{project}-{record_id}",
        value={
            **{"content": text, "type": "fact", "tags": _clean_tags(tags), "scope": scope},
            **({"metadata": dict(metadata)} if metadata else {}),
            **extra,
            "origin": {**origin, **extra_fields, **origin},
        },
        index={"content": truncate_to_index(text)},
        created_at=records.time(record, "created_at"),
        expires_at=expires_at,
        written_by=Author(user, None, agent),
    )


def turn_lines(
    job: ImportJob, place: str, room: tuple[str, str, str], messages: Iterable[Mapping[str, Any]]
) -> Iterator[Line]:
    """The messages of a session as turns of a conversation, in the order of their times.

    `room` is the agent, the user and the session; `place` names a broken message. A turn is numbered by the
    second of its time, so that it has the same key in every export and later turns come after it; turns of
    the same second get the numbers that follow.
    """
    agent, user, session = room
    if agent in OWNER_SEGMENTS:
        raise InvalidRequest("agent", f"another name: {agent!r} has a meaning in namespaces")
    namespace = [*turns_room(agent, check_user_id(user, "user"), session)]
    valid = [*job.valid(place, messages, _parse)]
    if all(message.at for message in valid):
        valid.sort(key=_seconds)
    number = 0
    for message in valid:
        number = max(number + 1, int(_seconds(message)))
        yield Line(
            namespace=namespace,
            key=f"{_LAST_KEY - number:012d}",
            value=msgspec.to_builtins(message),
            created_at=message.at,
            written_by=Author(user, None, agent),
        )


def _parse(value: Any) -> Message:
    try:
        [message] = parse_messages([value])
    except InvalidRequest as error:
        raise InvalidRequest(error.field.removeprefix("messages[0]."), error.expected) from None
    validation.encode_json(msgspec.to_builtins(message), "message")
    return message


def speaker_name(name: str | None) -> str | None:
    """The name of a speaker, printable and within the limit; None if nothing is left."""
    printable = "".join(char for char in name or "" if char.isprintable()).strip()
    return printable[:_MAX_NAME_CHARACTERS] or None


def truncate_to_index(text: str, max_bytes: int = Settings().max_index_bytes) -> str:
    """The text, or its beginning if it is too long for an index text."""
    encoded = text.encode(errors="surrogatepass")
    return text if len(encoded) <= max_bytes else encoded[:max_bytes].decode(errors="ignore")


def _seconds(message: Message) -> float:
    return max(message.at.timestamp(), 0.0) if message.at else 0.0


def _clean_tags(words: Iterable[object]) -> list[str]:
    """Words as tags; those that are too long, and more than eight, are dropped."""
    tags = [re.sub(r"[\s_]+", "-", word.strip().lower()) for word in words if isinstance(word, str)]
    return [tag for tag in dict.fromkeys(tags) if 0 < len(tag) <= MAX_TAG_CHARACTERS][:MAX_TAGS]
