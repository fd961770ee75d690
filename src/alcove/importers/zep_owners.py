"""Whose a record of Zep's is: it may say so itself, or by its thread, by its graph, or not at all."""

from __future__ import annotations

from typing import Any

from alcove.importers import fields
from alcove.importers.account import Target

NAMES = (
    "uuid", "uuid_", "user_id", "user_uuid", "graph_uuid", "thread_uuid", "thread_id", "session_id",
    "group_id",
    "source_node_uuid", "target_node_uuid",
)  # fmt: skip
"""The fields by which records name themselves and one another."""


def id_of(record: fields.Record) -> str | None:
    """The id of a record; Zep's own library spells it `uuid_` where it prints one."""
    return fields.text(record, "uuid") or fields.text(record, "uuid_")


class Owners:
    """Knows the users of a document by everything that records name them with."""

    def __init__(self, users: list[dict[str, Any]], threads: list[dict[str, Any]], target: Target) -> None:
        self._fallback = target.user
        self._known: dict[str, str] = {}
        """Users by their uuid, by that of their graph, and by their threads."""
        for user in users:
            if name := user.get("user_id") or id_of(user):
                self._know(user, ("uuid", "uuid_", "graph_uuid"), name)
        for thread in threads:
            if name := self._told(thread):
                self._know(thread, ("uuid", "uuid_", "thread_id", "session_id"), name)

    def of(self, record: fields.Record) -> str | None:
        """The user whom a record is of: whom it names, or `--user`, or its `group_id`, a part of a graph."""
        return self._told(record) or self._fallback or fields.text(record, "group_id")

    def _told(self, record: fields.Record) -> str | None:
        if own := fields.text(record, "user_id"):
            return own
        pointers = ("user_uuid", "graph_uuid", "thread_uuid", "thread_id", "session_id")
        named = (self._known.get(str(record.get(each))) for each in pointers if record.get(each))
        return next(filter(None, named), None)

    def _know(self, record: dict[str, Any], names: tuple[str, ...], user: str) -> None:
        self._known |= {str(record[name]): user for name in names if record.get(name)}
