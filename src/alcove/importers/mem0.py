"""mem0: the JSON of `Memory.get_all()` or of the platform, and the history database that it writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from alcove.core.errors import InvalidRequest
from alcove.importers import fields, files, lines
from alcove.importers.account import EXPIRED, NO_AGENT, NO_USER, Account, Target, numbered
from alcove.upkeep.transfer import Line

_JSON = 'the JSON of mem0\'s get_all(), {"results": [...]} or a list of memories'
_HISTORY = "the history database of mem0"
_KNOWN = ("user_id", "agent_id", "metadata", "expiration_date", "hash", "score")
"""What has a place in Alcove, and what mem0 computes from a text."""


def read(where: str, target: Target, account: Account) -> Iterator[bytes]:
    """The lines of an export or of a history database."""
    path = Path(where)
    if files.is_sqlite(path):
        return _history(path, target, account)
    found = _distinct(_memories(files.document(path, _JSON), path.name, account))
    return account.each(found, partial(_memory, target=target, account=account))


def _memories(document: Any, name: str, account: Account, inside: str = "") -> Iterator[tuple[str, Any]]:
    """Every memory with its place in the document; several answers of get_all() may stand in one list."""
    if isinstance(document, list):
        for place, each in numbered(inside, document):
            if isinstance(each, dict) and isinstance(each.get("results"), list):
                yield from _memories(each, name, account, place)
            else:
                yield place, each
        return
    found = document.get("results") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise InvalidRequest(name, _JSON)
    relations = document.get("relations")
    if isinstance(relations, list):
        account.leave("graph relation", "Alcove has no graph; the memories are brought", len(relations))
    total = document.get("count")
    if document.get("next") and isinstance(total, int):
        account.leave("memory", "on other pages of the export", total - len(found))
    yield from _memories(found, name, account, f"{inside}.results" if inside else "results")


def _distinct(found: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Each memory once: the answers for a user and for an agent may both have it."""
    seen: dict[str, object] = {}
    for place, memory in found:
        id = str(memory.get("id")) if isinstance(memory, dict) else place
        if id not in seen or seen[id] != memory:
            seen[id] = memory
            yield place, memory


def _memory(given: object, target: Target, account: Account) -> Iterator[Line]:
    record = fields.record(given)
    user = fields.text(record, "user_id") or target.user
    if user is None:
        return account.leave("memory", NO_USER)
    expires_at = _end_of(record)
    if expires_at and expires_at <= target.now:
        return account.leave("memory", EXPIRED)
    yield lines.long_term(
        "mem0",
        record,
        user,
        id="id",
        content="memory",
        known=_KNOWN,
        agent=fields.text(record, "agent_id"),
        expires_at=expires_at,
        tags=fields.listed(record, "categories"),
        metadata=fields.mapping(record, "metadata"),
    )


def _end_of(record: fields.Record) -> datetime | None:
    """When a memory expires: mem0 still shows it on the day that it names."""
    named = fields.text(record, "expiration_date")
    with suppress(ValueError, OverflowError):
        return named and datetime.combine(date.fromisoformat(named) + timedelta(1), time(), UTC)  # type: ignore[return-value]
    return fields.moment(record, "expiration_date")


def _history(path: Path, target: Target, account: Account) -> Iterator[bytes]:
    with files.database(path, _HISTORY) as database:
        if not files.columns(database, "history") >= {"memory_id", "new_memory", "created_at"}:
            raise InvalidRequest(path.name, f"{_HISTORY}, with its table history")
        yield from _last_versions(database, target, account)
        if files.columns(database, "messages"):
            yield from _messages(database, target, account)


def _last_versions(database: files.Source, target: Target, account: Account) -> Iterator[bytes]:
    """What each memory was in the end; the table has no users, so all of them are `--user`'s."""

    def last(row: fields.Record) -> Iterator[Line]:
        account.leave("earlier version", "only what a memory was in the end is brought", row["versions"] - 1)
        if row["is_deleted"] or row["new_memory"] is None:
            return account.leave("memory", "deleted there already")
        if target.user is None:
            return account.leave("memory", NO_USER)
        known = ("is_deleted", "versions", "last")
        yield lines.long_term("mem0", row, target.user, id="memory_id", content="new_memory", known=known)

    # Beside max(), SQLite gives the other columns of the row that has it.
    statement = """SELECT memory_id, new_memory, is_deleted, created_at, updated_at, actor_id, role,
                          count(*) AS versions, max(rowid) AS last FROM history GROUP BY memory_id"""
    found = files.rows(database, statement, account, "history")
    yield from account.each(((f"memory {row['memory_id']}", row) for row in found), last)


def _messages(database: files.Source, target: Target, account: Account) -> Iterator[bytes]:
    """The messages that mem0 keeps beside it, the last ten of each scope, as conversations."""

    def said(rows: list[dict[str, Any]]) -> Iterator[Line]:
        scope = rows[0]["session_scope"] or ""
        named = {
            name: unquote(value) for name, _, value in (part.partition("=") for part in scope.split("&"))
        }
        user, agent = named.get("user_id") or target.user, target.agent or named.get("agent_id")
        if user is None or agent is None:
            return account.leave("message", NO_USER if agent else NO_AGENT, len(rows))
        messages = []
        for row in rows:
            if row["role"] in ("user", "assistant") and row["content"]:
                name, at = lines.speaker(row["name"]), fields.moment(row, "created_at")
                messages.append({"role": row["role"], "content": row["content"], "name": name, "at": at})
            else:
                account.leave("message", "neither of the user nor of the assistant")
        session = "-".join(filter(None, ("mem0", named.get("run_id"))))
        yield from lines.turns(account, f"messages of {scope}", (agent, user, session), messages)

    statement = "SELECT * FROM messages ORDER BY session_scope, created_at, rowid"
    found = groupby(files.rows(database, statement, account, "messages"), lambda row: row["session_scope"])
    yield from account.each(((f"messages of {scope}", [*rows]) for scope, rows in found), said)
