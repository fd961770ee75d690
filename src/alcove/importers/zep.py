"""Zep and Graphiti: facts, entities and messages, as one JSON document of the records of their APIs.

They have no export, so the document has the answers of their API, each kind under its name: `users`,
`threads`, `messages`, `episodes`, `nodes`, `edges`. A list of one kind, or a page of one, is accepted, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from alcove.core.errors import InvalidRequest
from alcove.importers import records, source_files, zep_messages
from alcove.importers.job import NO_USER, ImportJob, enumerate_records
from alcove.importers.memory_lines import long_term_line
from alcove.importers.zep_owners import ID_FIELDS, Owners, id_of
from alcove.upkeep.transfer import Line

_DOCUMENT = "a JSON document with users, threads, messages, episodes, nodes or edges of Zep or Graphiti"
_ALIASES = {
    "entity_edges": "edges", "facts": "edges", "entity_nodes": "nodes", "entities": "nodes",
    "episodic_nodes": "episodes", "sessions": "threads",
}  # fmt: skip
_KINDS = ("users", "threads", "messages", "episodes", "nodes", "edges")
_MAPPED = ("uuid_", "attributes", "fact_embedding", "name_embedding", "score", "relevance", "rating")
"""Fields that have a place in Alcove, or that are computed from the others or for one search."""


def read(source: str, job: ImportJob) -> Iterator[bytes]:
    """The lines of a document."""
    path = Path(source)
    by_kind = _by_kind(source_files.read_json(path, _DOCUMENT), path.name, job)
    document = {kind: [*job.valid(kind, values, _check_ids)] for kind, values in by_kind.items()}
    owners = Owners(document["users"], document["threads"], job.target)
    names = {id_of(node): node.get("name") for node in document["nodes"]}
    edges, nodes = (enumerate_records(kind, document[kind]) for kind in ("edges", "nodes"))
    yield from job.lines(edges, partial(_fact_lines, job=job, owners=owners, names=names))
    yield from job.lines(nodes, partial(_entity_lines, job=job, owners=owners))
    yield from zep_messages.read_conversations(document, owners, job)


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
            job.skip(key.removesuffix("s").replace("_", " "), "Alcove has nothing like it", len(page))
    if document and not {_ALIASES.get(key, key) for key in document} & {*by_kind}:
        raise InvalidRequest(name, _DOCUMENT)
    return by_kind


def _check_ids(value: object) -> Any:
    """A record with valid ids; its other fields are checked where they are used."""
    for name in ID_FIELDS:
        records.text(records.check_record(value), name)
    return value


def _guess_kinds(values: list[Any], job: ImportJob) -> dict[str, list[Any]]:
    """The records of a list by the kinds that their fields suggest."""
    by_kind: dict[str, list[Any]] = {}
    for place, value in enumerate_records("", values):
        fields = value.keys() if isinstance(value, dict) else set[str]()
        if "fact" in fields or "source_node_uuid" in fields:
            by_kind.setdefault("edges", []).append(value)
        elif "content" in fields:
            by_kind.setdefault("episodes" if "source" in fields else "messages", []).append(value)
        elif "summary" in fields or "labels" in fields:
            by_kind.setdefault("nodes", []).append(value)
        elif fields & {"thread_id", "session_id"}:
            by_kind.setdefault("threads", []).append(value)
        else:
            job.fail(place, f"record: expected one of {', '.join(_KINDS)}")
    return by_kind


def _fact_lines(
    value: object, job: ImportJob, owners: Owners, names: dict[str | None, Any]
) -> Iterator[Line]:
    """An edge: a fact, which expires when it stops being true."""
    edge = records.check_record(value)
    if records.text(edge, "fact") is None:
        return job.skip("edge", "it states no fact")
    ends = [time for name in ("invalid_at", "expired_at") if (time := records.time(edge, name))]
    if ends and min(ends) <= job.target.now:
        return job.skip("fact", "no longer true")
    if (user := owners.of(edge)) is None:
        return job.skip("fact", NO_USER)
    sides = {f"{side}_node_name": names.get(edge.get(f"{side}_node_uuid")) for side in ("source", "target")}
    times = {name: records.time(edge, name) for name in ("valid_at", "invalid_at")}
    validity = {name: time.isoformat() for name, time in times.items() if time}
    yield long_term_line(
        "zep",
        {**{name: side for name, side in sides.items() if side}, **edge, "uuid": id_of(edge)},
        user,
        id="uuid",
        content="fact",
        mapped=("expired_at", *validity, *_MAPPED),
        expires_at=min(ends, default=None),
        metadata=records.mapping(edge, "attributes"),
        **validity,
    )


def _entity_lines(value: object, job: ImportJob, owners: Owners) -> Iterator[Line]:
    """A node, by its summary."""
    node = records.check_record(value)
    if (summary := records.text(node, "summary")) is None:
        return job.skip("node", "it has no summary; the facts name it")
    if (user := owners.of(node)) is None:
        return job.skip("node", NO_USER)
    yield long_term_line(
        "zep",
        {**node, "uuid": id_of(node), "summary": f"{records.required_text(node, 'name')}: {summary}"},
        user,
        id="uuid",
        content="summary",
        mapped=_MAPPED,
        tags=[label for label in records.items(node, "labels") if label not in ("Entity", "Node")],
        metadata=records.mapping(node, "attributes"),
    )
