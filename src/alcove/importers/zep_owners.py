"""The owner of a record of Zep: it names the user, or the user's thread or graph, or nobody."""

from __future__ import annotations

from typing import Any

from alcove.importers import records
from alcove.importers.job import Target

ID_FIELDS = (
    "uuid", "uuid_", "user_id", "user_uuid", "graph_uuid", "thread_uuid", "thread_id", "session_id",
    "group_id", "source_node_uuid", "target_node_uuid",
)  # fmt: skip
"""The fields with the id of a record, or of another one."""


def id_of(record: records.Record) -> str | None:
    """The id of a record; Zep's own library prints it as `uuid_`."""
    return records.text(record, "uuid") or records.text(record, "uuid_")


class Owners:
    """The users of a document, by the ids of their records, graphs and threads."""

    def __init__(self, users: list[dict[str, Any]], threads: list[dict[str, Any]], target: Target) -> None:
        self._default = target.user
        self._users: dict[str, str] = {}
        for user in users:
            if name := user.get("user_id") or id_of(user):
                self._add(user, ("uuid", "uuid_", "graph_uuid"), name)
        for thread in threads:
            if name := self._find(thread):
                self._add(thread, ("uuid", "uuid_", "thread_id", "session_id"), name)

    def of(self, record: records.Record) -> str | None:
        """The user that a record names, else `--user`, else its `group_id`, which is a part of a graph."""
        return self._find(record) or self._default or records.text(record, "group_id")

    def _find(self, record: records.Record) -> str | None:
        if user := records.text(record, "user_id"):
            return user
        fields = ("user_uuid", "graph_uuid", "thread_uuid", "thread_id", "session_id")
        users = (self._users.get(str(record.get(name))) for name in fields if record.get(name))
        return next(filter(None, users), None)

    def _add(self, record: dict[str, Any], fields: tuple[str, ...], user: str) -> None:
        self._users |= {str(record[name]): user for name in fields if record.get(name)}
