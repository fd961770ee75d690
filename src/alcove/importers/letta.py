"""Letta: agent files (.af), old and new, and a list of passages as its API gives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from alcove.core.errors import InvalidRequest
from alcove.importers import fields, files, letta_messages, lines
from alcove.importers.account import NO_AGENT, NO_USER, Account, Target, numbered
from alcove.upkeep.transfer import Line

_FILE = "an agent file of Letta (.af) with agents and blocks, or a list of passages"
_PASSAGES = ("passages", "archival_memory", "archival_passages")
_KNOWN = ("metadata", "is_deleted", "tags", "embedding", "embedding_config")
"""Of a passage: what has a place in Alcove, and what is computed from its text."""
_NOT_MEMORY = {
    "tools": "code is not memory: give it to the agent anew",
    "mcp_servers": "they are the agent's, not memory",
    "skills": "they are the agent's, not memory",
    "groups": "write a team into the specs",
    "sources": "alcove knowledge reads the documents themselves",
    "files": "alcove knowledge reads the documents themselves",
}


def read(where: str, target: Target, account: Account) -> Iterator[bytes]:
    """The lines of an agent file, or of passages."""
    path = Path(where)
    document = files.document(path, _FILE)
    if isinstance(document, list):
        return _passages({"passages": document}, target, account)
    if not isinstance(document, dict) or not ("core_memory" in document or "agents" in document):
        raise InvalidRequest(path.name, _FILE)
    return _agent_file(_as_new(document), path.name, target, account)


def _as_new(document: dict[str, Any]) -> dict[str, Any]:
    """An agent file of the first kind, which is one agent, as one of today's."""
    if "agents" in document:
        return document
    blocks = document.get("core_memory")
    named = [
        {"id": f"block-{n}", **each} if isinstance(each, dict) else each
        for n, each in enumerate(blocks if isinstance(blocks, list) else [])
    ]
    agent = {**document, "block_ids": [f"block-{n}" for n in range(len(named))]}
    return {**document, "agents": [agent], "blocks": named}


def _agent_file(document: dict[str, Any], name: str, target: Target, account: Account) -> Iterator[bytes]:
    agents = [*_sound(_list(document, "agents", name), account)]
    for kind, reason in _NOT_MEMORY.items():
        account.leave(kind.removesuffix("s").replace("_", " "), reason, len(_list(document, kind, name)))
    account.leave(
        "system prompt", "write it into the spec, as instructions", sum("system" in a for a in agents)
    )
    blocks = numbered("blocks", _list(document, "blocks", name))
    owners = dict[str, str | None]()
    for each in agents:
        for id in each["block_ids"]:
            owners.setdefault(id, each["name"])
    made = partial(
        _block, target=target, account=account, owners=owners, created_at=document.get("created_at")
    )
    yield from account.each(blocks, made)
    for each in (document, *agents):
        yield from _passages(each, target, account)
    said = ((f"agents[{n}].messages", each) for n, each in enumerate(agents))
    yield from account.each(said, partial(_conversation, target=target, account=account))


def _list(document: dict[str, Any], kind: str, name: str) -> list[Any]:
    try:
        return fields.listed(document, kind)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error.field}", error.expected) from None


def _sound(agents: list[Any], account: Account) -> Iterator[dict[str, Any]]:
    for place, each in numbered("agents", agents):
        with account.noting(place):
            agent = fields.record(each)
            yield {
                **agent,
                "name": fields.text(agent, "name"),
                "block_ids": fields.texts(agent, "block_ids"),
            }


def _block(
    given: object,
    target: Target,
    account: Account,
    owners: Mapping[str, str | None],
    created_at: str | None,
) -> Iterator[Line]:
    """A block of core memory; ids count from 0 in every file, so the agent and the label say which it is.

    `owners`: by the id of a block, the name of the first agent that has it.
    """
    block = fields.record(given)
    if not (fields.text(block, "value") or "").strip():
        return account.leave("block", "it is empty")
    if target.user is None:
        return account.leave("block", NO_USER)
    id, label = fields.text(block, "id"), fields.text(block, "label")
    owner = owners.get(id) if id else None
    named = {
        **block,
        "id": "-".join(map(str, (owner or "no-agent", label or id))),
        "created_at": block.get("created_at") or created_at,
    }
    yield lines.long_term(
        "letta",
        named,
        target.user,
        id="id",
        content="value",
        known=("metadata", "metadata_"),
        agent=target.agent,
        tags=[label],
        metadata=fields.mapping(block, "metadata") or fields.mapping(block, "metadata_"),
    )


def _passages(document: dict[str, Any], target: Target, account: Account) -> Iterator[bytes]:
    """What is in archival memory; an agent file has none of it unless somebody added it."""

    def passage(given: object) -> Iterator[Line]:
        record = fields.record(given)
        if target.user is None:
            return account.leave("passage", NO_USER)
        if record.get("is_deleted"):
            return account.leave("passage", "deleted there already")
        yield lines.long_term(
            "letta",
            record,
            target.user,
            id="id",
            content="text",
            known=_KNOWN,
            agent=target.agent,
            tags=fields.listed(record, "tags"),
            metadata=fields.mapping(record, "metadata"),
        )

    for kind in _PASSAGES:
        found = document.get(kind)
        yield from account.each(numbered(kind, found if isinstance(found, list) else ()), passage)


def _conversation(agent: dict[str, Any], target: Target, account: Account) -> Iterator[Line]:
    messages = fields.listed(agent, "messages")
    if target.user is None or target.agent is None:
        return account.leave("message", NO_USER if target.agent else NO_AGENT, len(messages))
    room = target.agent, target.user, f"letta-{fields.text(agent, 'name') or 'agent'}"
    yield from lines.turns(account, "messages", room, letta_messages.said(messages, account))
