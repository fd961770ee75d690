"""Memories as resources of the Model Context Protocol: their addresses, and which of them are listed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace
from alcove.core.records import Entry

if TYPE_CHECKING:
    from alcove.integrations.mcp import Connected

SCHEME = "alcove://"
PAGE = 100
"""Memories in one answer that lists them."""
_OPEN = ("pool", "team")
"""Rooms of several users that each of them may read without an agent."""


def memory_uri(namespace: Namespace, key: str) -> str:
    """The address of a memory: the segments of its namespace and its key, each percent-encoded."""
    return SCHEME + "/".join(map(_quoted, (*namespace, key)))


def memory_at(uri: str) -> tuple[Namespace, str]:
    """The namespace and the key that an address stands for."""
    *segments, key = uri.removeprefix(SCHEME).split("/")
    if not uri.startswith(SCHEME) or not segments:
        raise InvalidRequest("uri", f"{SCHEME}namespace/key, each part percent-encoded")
    try:
        namespace = [unquote(each, errors="strict") for each in segments]
        return Namespace.checked(namespace, "uri"), unquote(key, errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest("uri", "percent-encoded UTF-8") from None


def _quoted(part: str) -> str:
    """A part of an address; dots alone would mean a folder to a program that tidies addresses up."""
    return quote(part, safe="") if part.strip(".") else part.replace(".", "%2E")


async def listed(at: Connected, after: str | None) -> tuple[list[Entry], str | None]:
    """A page of the memories that a client is shown, and where the next one begins, if there is more.

    `after`: where this page begins, as an earlier one said.
    """
    begin, skip = _place(after)
    found: list[Entry] = []
    for room in await _rooms(at):
        if room >= begin:
            offset, before = skip if room == begin else 0, len(found)
            found += await at.memory.list(room, limit=PAGE + 1 - before, offset=offset)
            if len(found) > PAGE:
                return found[:PAGE], f"{offset + PAGE - before}:{room}"
    return found, None


async def _rooms(at: Connected) -> list[Namespace]:
    """The user's own subtree, and those rooms of the agent that they may look into; none inside another."""
    user = (await at.memory.whoami()).user
    rooms = {Namespace(("user", user))}
    for each in await at.memory.rooms(at.agent):
        if each.memories and (each.namespace.owner == user or each.room in _OPEN):
            rooms.add(each.namespace)
    apart: list[Namespace] = []
    for room in sorted(rooms):  # what lies inside a room follows it
        if not apart or room[: len(apart[-1])] != apart[-1]:
            apart.append(room)
    return apart


def _place(cursor: str | None) -> tuple[Namespace, int]:
    """The room in which a page begins, and how many memories of it were on earlier ones."""
    skipped, found, room = ("0:" if cursor is None else cursor).partition(":")
    if not found or not re.fullmatch("[0-9]{1,9}", skipped):
        raise InvalidRequest("cursor", "one that an earlier answer gave")
    return Namespace.parse(room, "cursor"), int(skipped)
