"""The lines that things from elsewhere become: long-term memories of a user, and turns of a conversation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from alcove.agents.chat_messages import parse_messages
from alcove.agents.conversations import turns_room
from alcove.agents.specs.records import OWNER_SEGMENTS
from alcove.agents.tools.long_term import MAX_TAG_CHARACTERS, MAX_TAGS
from alcove.core import validation
from alcove.core.errors import InvalidRequest
from alcove.core.messages import Message
from alcove.core.principal import check_user_id
from alcove.core.records import Author
from alcove.core.settings import Settings
from alcove.importers import fields
from alcove.importers.account import Account, numbered
from alcove.upkeep.transfer import Line

_LAST = 10**12
"""Keys of turns count down from here: `agents.conversations`."""
_NAME = 64
"""The longest name that a message can have."""


def long_term(
    project: str,
    record: fields.Record,
    user: str,
    *,
    id: str,
    content: str,
    known: Iterable[str] = (),
    agent: str | None = None,
    expires_at: datetime | None = None,
    tags: Iterable[object] = (),
    metadata: Mapping[str, Any] | None = None,
    **more: Any,
) -> Line:
    """A long-term memory of a user, as `memory_remember` writes it and `memory_recall` finds it.

    `id` and `content` are the fields of the record that have them. `project` and its id there are what it is
    recognised by when it is brought again. Of an agent, it is in the room that only that agent enters. `more`
    is added to the value, and fields of the record that have no place here, which are those not `known`, to
    what the value says of its origin. It is always of the type `fact`: a text from outside is not to become
    an instruction.
    """
    name, text = fields.required(record, id), fields.required(record, content)
    rest = fields.rest(record, id, content, "created_at", *known)
    scope = "agent" if agent else "all"
    value = {"content": text, "type": "fact", "tags": _tags(tags), "scope": scope}
    origin = {"from": project, "id": name}
    return Line(
        namespace=[
            "user",
            check_user_id(user, "user"),
            "long-term",
            *(("agent", agent) if agent else ("all",)),
        ],
        key=f"{scope}-{project}-{name}",
        value={
            **value,
            **({"metadata": dict(metadata)} if metadata else {}),
            **more,
            "origin": {**origin, **rest, **origin},
        },
        index={"content": cut(text)},
        created_at=fields.moment(record, "created_at"),
        expires_at=expires_at,
        written_by=Author(user, None, agent),
    )


def turns(
    account: Account, place: str, room: tuple[str, str, str], said: Iterable[Mapping[str, Any]]
) -> Iterator[Line]:
    """The messages of a session as turns of a conversation, in the order of their times.

    `room` is the agent, the user and the session; `place` names the messages where one of them is broken. A
    turn is numbered by the second in which it was said, so that it has the same key in every export that has
    it, and what was said later comes after it; those of one second count on.
    """
    agent, user, session = room
    if agent in OWNER_SEGMENTS:
        raise InvalidRequest("agent", f"another name: {agent!r} has a meaning in namespaces")
    namespace = [*turns_room(agent, check_user_id(user, "user"), session)]
    messages = [*_checked(account, place, said)]
    if all(each.at for each in messages):
        messages.sort(key=_time)
    number = 0
    for message in messages:
        number = max(number + 1, int(_time(message)))
        yield Line(
            namespace=namespace,
            key=f"{_LAST - number:012d}",
            value=msgspec.to_builtins(message),
            created_at=message.at,
            written_by=Author(user, None, agent),
        )


def _checked(account: Account, place: str, said: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    """Messages as records; one that is broken holds up no other."""
    for name, given in numbered(place, said):
        try:
            [message] = parse_messages([given])
            validation.encode_json(msgspec.to_builtins(message), "message")
        except InvalidRequest as error:
            account.fail(name, error.message.removeprefix("messages[0]."))
        else:
            yield message


def speaker(name: str | None) -> str | None:
    """A name as messages can have it."""
    plain = "".join(c for c in name or "" if c.isprintable()).strip()
    return plain[:_NAME] or None


def cut(text: str, most: int = Settings().max_index_bytes) -> str:
    """What of a text can be indexed: all of it, or its beginning."""
    encoded = text.encode(errors="surrogatepass")
    return text if len(encoded) <= most else encoded[:most].decode(errors="ignore")


def _time(message: Message) -> float:
    return max(message.at.timestamp(), 0.0) if message.at else 0.0


def _tags(words: Iterable[object]) -> list[str]:
    """Words as tags of memories are spelled; those that are too long, and more than eight, are none."""
    spelled = [re.sub(r"[\s_]+", "-", word.strip().lower()) for word in words if isinstance(word, str)]
    return [tag for tag in dict.fromkeys(spelled) if 0 < len(tag) <= MAX_TAG_CHARACTERS][:MAX_TAGS]
