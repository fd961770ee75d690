"""Zep and Graphiti: facts, entities and messages, as one JSON document of the records that their APIs give.

They have no export, so a document has what was asked of their API, each kind under its name: `users`,
`threads`, `messages`, `episodes`, `nodes`, `edges`. A list of one kind, or a page of one, is taken as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from alcove.core.errors import InvalidRequest
from alcove.importers import fields, files, lines, zep_messages
from alcove.importers.account import NO_USER, Account, Target, numbered
from alcove.importers.zep_owners import NAMES, Owners, id_of
from alcove.upkeep.transfer import Line

_DOCUMENT = "a JSON document with users, threads, messages, episodes, nodes or edges of Zep or Graphiti"
_SPELLINGS = {
    "entity_edges": "edges", "facts": "edges", "entity_nodes": "nodes", "entities": "nodes",
    "episodic_nodes": "episodes", "sessions": "threads",
}  # fmt: skip
_KINDS = ("users", "threads", "messages", "episodes", "nodes", "edges")
_KNOWN = ("uuid_", "attributes", "fact_embedding", "name_embedding", "score", "relevance", "rating")
"""What has a place in Alcove, and what is computed from the rest, or for one search."""


def read(where: str, target: Target, account: Account) -> Iterator[bytes]:
    """The lines of a document."""
    path = Path(where)
    given = _sorted(files.document(path, _DOCUMENT), path.name, account)
    found = {kind: [*_sound(kind, records, account)] for kind, records in given.items()}
    owners = Owners(found["users"], found["threads"], target)
    names = {id_of(each): each.get("name") for each in found["nodes"]}
    with_all = partial(partial, target=target, account=account, owners=owners)
    yield from account.each(numbered("edges", found["edges"]), with_all(_fact, names=names))
    yield from account.each(numbered("nodes", found["nodes"]), with_all(_entity))
    yield from zep_messages.conversations(found, owners, target, account)


def _sorted(document: Any, name: str, account: Account) -> dict[str, list[Any]]:
    """The records of a document by their kind."""
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        document = document["items"]
    if isinstance(document, list):
        document = _by_look(document, account)
    elif isinstance(document, dict) and "messages" in document and "user_id" in document:
        document = {"threads": [document]}  # one thread, as the API gives it
    if not isinstance(document, dict):
        raise InvalidRequest(name, _DOCUMENT)
    found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    for kind, records in document.items():
        page = records.get("items", records) if isinstance(records, dict) else records
        if (known := _SPELLINGS.get(kind, kind)) in found and isinstance(page, list):
            found[known] += page
        elif known in found:
            raise InvalidRequest(f"{name}: {kind}", "a list")
        elif isinstance(page, list):
            account.leave(kind.removesuffix("s").replace("_", " "), "Alcove has nothing like it", len(page))
    if document and not {_SPELLINGS.get(kind, kind) for kind in document} & {*found}:
        raise InvalidRequest(name, _DOCUMENT)
    return found


def _sound(kind: str, records: list[Any], account: Account) -> Iterator[dict[str, Any]]:
    """The records that are objects, and name others by texts; for the rest they are looked at one by one."""
    for place, each in numbered(kind, records):
        with account.noting(place):
            for name in NAMES:
                fields.text(fields.record(each), name)
            yield each


def _by_look(records: list[Any], account: Account) -> dict[str, list[Any]]:
    """Records of a list by their kinds, which their fields tell."""
    found: dict[str, list[Any]] = {}
    for place, each in numbered("", records):
        has = each.keys() if isinstance(each, dict) else set[str]()
        if "fact" in has or "source_node_uuid" in has:
            found.setdefault("edges", []).append(each)
        elif "content" in has:
            found.setdefault("episodes" if "source" in has else "messages", []).append(each)
        elif "summary" in has or "labels" in has:
            found.setdefault("nodes", []).append(each)
        elif has & {"thread_id", "session_id"}:
            found.setdefault("threads", []).append(each)
        else:
            account.fail(place, f"record: expected one of {', '.join(_KINDS)}")
    return found


def _fact(
    given: object, target: Target, account: Account, owners: Owners, names: dict[str | None, Any]
) -> Iterator[Line]:
    """An edge: a fact, which expires when it stops being true."""
    edge = fields.record(given)
    if fields.text(edge, "fact") is None:
        return account.leave("edge", "it states no fact")
    ends = [moment for name in ("invalid_at", "expired_at") if (moment := fields.moment(edge, name))]
    if ends and min(ends) <= target.now:
        return account.leave("fact", "no longer true")
    if (user := owners.of(edge)) is None:
        return account.leave("fact", NO_USER)
    sides = {f"{side}_node_name": names.get(edge.get(f"{side}_node_uuid")) for side in ("source", "target")}
    known = {name: value for name, value in sides.items() if value}
    times = {name: moment for name in ("valid_at", "invalid_at") if (moment := fields.moment(edge, name))}
    yield lines.long_term(
        "zep",
        {**known, **edge, "uuid": id_of(edge)},
        user,
        id="uuid",
        content="fact",
        known=("expired_at", *times, *_KNOWN),
        expires_at=min(ends, default=None),
        metadata=fields.mapping(edge, "attributes"),
        **{name: moment.isoformat() for name, moment in times.items()},
    )


def _entity(given: object, target: Target, account: Account, owners: Owners) -> Iterator[Line]:
    """A node, by what is summed up of it."""
    node = fields.record(given)
    if (summary := fields.text(node, "summary")) is None:
        return account.leave("node", "it has no summary; the facts name it")
    if (user := owners.of(node)) is None:
        return account.leave("node", NO_USER)
    yield lines.long_term(
        "zep",
        {**node, "uuid": id_of(node), "summary": f"{fields.required(node, 'name')}: {summary}"},
        user,
        id="uuid",
        content="summary",
        known=_KNOWN,
        tags=[label for label in fields.listed(node, "labels") if label not in ("Entity", "Node")],
        metadata=fields.mapping(node, "attributes"),
    )
