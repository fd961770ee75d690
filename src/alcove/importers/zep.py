"""Zep and Graphiti: facts, entities and messages, as one JSON document of the records of their APIs.

They have no export, so the document has the answers of their API, each kind under its name: `users`,
`threads`, `messages`, `episodes`, `nodes`, `edges`. A list of one kind, or a page of one, is accepted, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from alcove.core.errors import InvalidRequest
from alcove.importers import records, source_files
from alcove.importers.job import NO_AGENT, NO_USER, ImportJob, enumerate_records
from alcove.importers.memory_lines import long_term_line, speaker_name, turn_lines
from alcove.importers.records import Record
from alcove.upkeep.transfer import Line

_DOCUMENT = "a JSON document with users, threads, messages, episodes, nodes or edges of Zep or Graphiti"
_ALIASES = {
    "entity_edges": "edges", "facts": "edges", "entity_nodes": "nodes", "entities": "nodes",
    "episodic_nodes": "episodes", "sessions": "threads",
}  # fmt: skip
_KINDS = ("users", "threads", "messages", "episodes", "nodes", "edges")
_MAPPED = ("uuid_", "attributes", "fact_embedding", "name_embedding", "score", "relevance", "rating")
"""Fields that have a place in Alcove, or that are computed from the others or for one search."""
_ID_FIELDS = (
    "uuid", "uuid_", "user_id", "user_uuid", "graph_uuid", "thread_uuid", "thread_id", "session_id",
    "group_id", "source_node_uuid", "target_node_uuid",
)  # fmt: skip
"""The fields with the id of a record, or of another one."""
_OWNER_FIELDS = ("user_uuid", "graph_uuid", "thread_uuid", "thread_id", "session_id")
_EPISODE = re.compile(r"(?P<role>user|assistant): (?P<content>.+)", re.DOTALL | re.IGNORECASE)
"""The form of a message in Graphiti."""
_RAW_TEXT = "raw text that the facts were made from; alcove knowledge takes documents"


def read(source: str, job: ImportJob) -> Iterator[bytes]:
    """The lines of a document."""
    path = Path(source)
    by_kind = _by_kind(source_files.read_json(path, _DOCUMENT), path.name, job)
    return _Document(
        {kind: [*job.valid(kind, values, _check_ids)] for kind, values in by_kind.items()}, job
    ).lines()


def _by_kind(document: Any, name: str, job: ImportJob) -> dict[str, list[Any]]:
    """The records of a document by their kind."""
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        document = document["items"]
    if isinstance(document, list):
        document = _guess_kinds(document, job)
    elif isinstance(document, dict) and "messages" in document and "user_id" in document:
        document = {"threads": [document]}  # one thread, as the API returns it
    if not isinstance(document, dict):
        raise InvalidRequest(name, _DOCUMENT)
    by_kind: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    for key, values in document.items():
        page = values.get("items", values) if isinstance(values, dict) else values
        kind = _ALIASES.get(key, key)
        if kind in by_kind and isinstance(page, list):
            by_kind[kind] += page
        elif kind in by_kind:
            raise InvalidRequest(f"{name}: {key}", "a list")
        elif isinstance(page, list):
            job.skip(key.removesuffix("s").replace("_", " "), "Alcove has no equivalent", len(page))
    if document and not {_ALIASES.get(key, key) for key in document} & {*by_kind}:
        raise InvalidRequest(name, _DOCUMENT)
    return by_kind


def _guess_kinds(values: list[Any], job: ImportJob) -> dict[str, list[Any]]:
    """The records of a list by the kinds that their fields suggest."""
    by_kind: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    for place, value in enumerate_records("", values):
        fields = value.keys() if isinstance(value, dict) else set[str]()
        if "fact" in fields or "source_node_uuid" in fields:
            kind = "edges"
        elif "content" in fields:
            kind = "episodes" if "source" in fields else "messages"
        elif "summary" in fields or "labels" in fields:
            kind = "nodes"
        elif fields & {"thread_id", "session_id"}:
            kind = "threads"
        else:
            job.fail(place, f"record: expected one of {', '.join(_KINDS)}")
            continue
        by_kind[kind].append(value)
    return by_kind


def _check_ids(value: object) -> Any:
    """A record with valid ids; its other fields are checked where they are used."""
    for name in _ID_FIELDS:
        records.text(records.check_record(value), name)
    return value


def _id(record: Record) -> str | None:
    """The id of a record; Zep's own library prints it as `uuid_`."""
    return records.text(record, "uuid") or records.text(record, "uuid_")


def _thread_name(record: Record) -> str:
    """The name of a thread, or of a message's thread: the developer's own, otherwise Zep's."""
    is_message = "content" in record  # its uuid is not the thread's
    own_ids = () if is_message else ("uuid", "uuid_")
    fields = ("thread_id", "session_id", "thread_uuid", *own_ids, "group_id")
    return next(filter(None, (records.text(record, name) for name in fields)), "")


class _Document:
    """The records of a document by kind, with the owners of their ids, graphs and threads."""

    def __init__(self, by_kind: dict[str, list[dict[str, Any]]], job: ImportJob) -> None:
        self._by_kind, self._job = by_kind, job
        self._node_names = {_id(node): node.get("name") for node in by_kind["nodes"]}
        self._thread_names = {id: _thread_name(each) for each in by_kind["threads"] if (id := _id(each))}
        self._users: dict[str, str] = {}
        for user in by_kind["users"]:
            self._add_owner(user, ("uuid", "uuid_", "graph_uuid"), user.get("user_id") or _id(user))
        for thread in by_kind["threads"]:
            ids = ("uuid", "uuid_", "thread_id", "session_id")
            self._add_owner(thread, ids, self._find_owner(thread))

    def _add_owner(self, record: dict[str, Any], fields: tuple[str, ...], user: str | None) -> None:
        if user:
            self._users |= {str(record[name]): user for name in fields if record.get(name)}

    def _find_owner(self, record: Record) -> str | None:
        if user := records.text(record, "user_id"):
            return user
        users = (self._users.get(str(record.get(name))) for name in _OWNER_FIELDS if record.get(name))
        return next(filter(None, users), None)

    def _owner(self, record: Record) -> str | None:
        """The user that a record names, else `--user`, else its `group_id`, which is a part of a graph."""
        return self._find_owner(record) or self._job.target.user or records.text(record, "group_id")

    def lines(self) -> Iterator[bytes]:
        """The lines of the facts, entities and conversations."""
        yield from self._job.lines(enumerate_records("edges", self._by_kind["edges"]), self._fact_lines)
        yield from self._job.lines(enumerate_records("nodes", self._by_kind["nodes"]), self._entity_lines)
        for (user, session), turns in self._conversations().items():
            room = str(self._job.target.agent), user, session
            to_lines = partial(turn_lines, self._job, f"session {session}", room)
            yield from self._job.lines([(f"session {session}", turns)], to_lines)

    def _fact_lines(self, edge: dict[str, Any]) -> Iterator[Line]:
        """An edge: a fact, which expires when it stops being true."""
        if records.text(edge, "fact") is None:
            return self._job.skip("edge", "it states no fact")
        ends = [time for name in ("invalid_at", "expired_at") if (time := records.time(edge, name))]
        if ends and min(ends) <= self._job.target.now:
            return self._job.skip("fact", "no longer true")
        if (user := self._owner(edge)) is None:
            return self._job.skip("fact", NO_USER)
        nodes = {f"{side}_node_name": edge.get(f"{side}_node_uuid") for side in ("source", "target")}
        names = {field: name for field, id in nodes.items() if (name := self._node_names.get(id))}
        times = {name: records.time(edge, name) for name in ("valid_at", "invalid_at")}
        validity = {name: time.isoformat() for name, time in times.items() if time}
        yield long_term_line(
            "zep",
            {**names, **edge, "uuid": _id(edge)},
            user,
            id="uuid",
            content="fact",
            mapped=("expired_at", *validity, *_MAPPED),
            expires_at=min(ends, default=None),
            metadata=records.mapping(edge, "attributes"),
            **validity,
        )

    def _entity_lines(self, node: dict[str, Any]) -> Iterator[Line]:
        """A node, by its summary."""
        if (summary := records.text(node, "summary")) is None:
            return self._job.skip("node", "it has no summary; its facts mention it")
        if (user := self._owner(node)) is None:
            return self._job.skip("node", NO_USER)
        yield long_term_line(
            "zep",
            {**node, "uuid": _id(node), "summary": f"{records.required_text(node, 'name')}: {summary}"},
            user,
            id="uuid",
            content="summary",
            mapped=_MAPPED,
            tags=[label for label in records.items(node, "labels") if label not in ("Entity", "Node")],
            metadata=records.mapping(node, "attributes"),
        )

    def _conversations(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """The messages, or the episodes if there are no messages, by user and session."""
        messages: list[Any] = []
        for thread in self._by_kind["threads"]:
            of_thread = thread.get("messages")
            for message in of_thread if isinstance(of_thread, list) else ():
                ids = {"thread_id": _thread_name(thread), "user_id": self._owner(thread)}
                messages.append({**message, **ids} if isinstance(message, dict) else message)
        messages += self._by_kind["messages"]
        conversations: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for kind, values in (("messages", messages), ("episodes", self._by_kind["episodes"])):
            for place, value in enumerate_records(kind, values):
                with self._job.catching(place):
                    record = records.check_record(value)
                    is_message = kind == "messages"
                    turn = self._message(record) if is_message else self._episode(record, bool(messages))
                    if turn and (session := self._session(record)):
                        conversations.setdefault(session, []).append(turn)
        return conversations

    def _session(self, record: Record) -> tuple[str, str] | None:
        """The user and the session of a message; None if one of them is unknown."""
        user, agent = self._owner(record), self._job.target.agent
        if user is None or agent is None:
            self._job.skip("message", NO_USER if agent else NO_AGENT)
            return None
        name = self._thread_names.get(records.text(record, "thread_uuid") or "") or _thread_name(record)
        return user, f"zep-{name}" if name else "zep"

    def _message(self, record: Record) -> dict[str, Any] | None:
        """A chat message; older records have its role in `role_type`, and a name in `role`."""
        role = records.text(record, "role_type") or records.text(record, "role")
        older_name = records.text(record, "role") if record.get("role_type") else None
        if role not in ("user", "assistant"):
            self._job.skip("message", "its role is neither user nor assistant")
            return None
        if record.get("metadata"):
            self._job.skip("metadata object", "messages of a conversation have none in Alcove")
        return {
            "role": role,
            "content": records.required_text(record, "content"),
            "name": speaker_name(records.text(record, "name") or older_name),
            "at": records.time(record, "reference_time") or records.time(record, "created_at"),
        }

    def _episode(self, record: Record, has_messages: bool) -> dict[str, Any] | None:
        if record.get("source") != "message" or has_messages:
            is_raw = record.get("source") != "message"
            self._job.skip("episode", _RAW_TEXT if is_raw else "the same as the messages")
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
        return self._message(message)
