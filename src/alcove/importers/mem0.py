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
from alcove.importers import records, source_files
from alcove.importers.job import EXPIRED, NO_AGENT, NO_USER, ImportJob, enumerate_records
from alcove.importers.memory_lines import long_term_line, speaker_name, turn_lines
from alcove.upkeep.transfer import Line

_JSON = 'the JSON of mem0\'s get_all(), {"results": [...]} or a list of memories'
_HISTORY = "the history database of mem0"
_MAPPED = ("user_id", "agent_id", "metadata", "expiration_date", "hash", "score")
"""Fields that have a place in Alcove, or that mem0 computes from a text."""
# With max(), SQLite returns the other columns of the row that has the maximum.
_LAST_VERSIONS = """SELECT memory_id, new_memory, is_deleted, created_at, updated_at, actor_id, role,
                           count(*) AS versions, max(rowid) AS last FROM history GROUP BY memory_id"""
_MESSAGES = "SELECT * FROM messages ORDER BY session_scope, created_at, rowid"


def read(source: str, job: ImportJob) -> Iterator[bytes]:
    """The lines of an export or of a history database."""
    path = Path(source)
    if source_files.is_sqlite(path):
        return _read_history(path, job)
    memories = _memories(source_files.read_json(path, _JSON), path.name, job)
    return job.lines(_distinct(memories), partial(_memory_lines, job=job))


def _memories(document: Any, name: str, job: ImportJob, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every memory with its place in the document, which may be a list of several answers of get_all()."""
    if isinstance(document, list):
        for place, item in enumerate_records(prefix, document):
            if isinstance(item, dict) and isinstance(item.get("results"), list):
                yield from _memories(item, name, job, place)
            else:
                yield place, item
        return
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list):
        raise InvalidRequest(name, _JSON)
    relations = document.get("relations")
    if isinstance(relations, list):
        job.skip("graph relation", "Alcove has no graph; the memories are imported", len(relations))
    total = document.get("count")
    if document.get("next") and isinstance(total, int):
        job.skip("memory", "on other pages of the export", total - len(results))
    yield from _memories(results, name, job, f"{prefix}.results" if prefix else "results")


def _distinct(memories: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Each memory once: the answers for a user and for an agent may both have it."""
    by_id: dict[str, object] = {}
    for place, memory in memories:
        id = str(memory.get("id")) if isinstance(memory, dict) else place
        if id not in by_id or by_id[id] != memory:
            by_id[id] = memory
            yield place, memory


def _memory_lines(value: object, job: ImportJob) -> Iterator[Line]:
    record = records.check_record(value)
    user = records.text(record, "user_id") or job.target.user
    if user is None:
        return job.skip("memory", NO_USER)
    expires_at = _expiry(record)
    if expires_at and expires_at <= job.target.now:
        return job.skip("memory", EXPIRED)
    yield long_term_line(
        "mem0",
        record,
        user,
        id="id",
        content="memory",
        mapped=_MAPPED,
        agent=records.text(record, "agent_id"),
        expires_at=expires_at,
        tags=records.items(record, "categories"),
        metadata=records.mapping(record, "metadata"),
    )


def _expiry(record: records.Record) -> datetime | None:
    """The end of the expiration date, on which mem0 still shows a memory, or an exact time."""
    day = records.text(record, "expiration_date")
    with suppress(ValueError, OverflowError):
        return datetime.combine(date.fromisoformat(day) + timedelta(1), time(), UTC) if day else None
    return records.time(record, "expiration_date")


def _read_history(path: Path, job: ImportJob) -> Iterator[bytes]:
    with source_files.open_database(path, _HISTORY) as database:
        if not source_files.columns(database, "history") >= {"memory_id", "new_memory", "created_at"}:
            raise InvalidRequest(path.name, f"{_HISTORY}, with its table history")
        memories = source_files.rows(database, _LAST_VERSIONS, job, "history")
        versions = ((f"memory {row['memory_id']}", row) for row in memories)
        yield from job.lines(versions, partial(_last_version_lines, job=job))
        if source_files.columns(database, "messages"):
            messages = source_files.rows(database, _MESSAGES, job, "messages")
            scopes = groupby(messages, lambda row: row["session_scope"])
            conversations = ((f"messages of {scope}", [*rows]) for scope, rows in scopes)
            yield from job.lines(conversations, partial(_conversation_lines, job=job))


def _last_version_lines(row: records.Record, job: ImportJob) -> Iterator[Line]:
    """The last version of a memory; the table names no users, so all memories are `--user`'s."""
    job.skip("earlier version", "only the last version of a memory is imported", row["versions"] - 1)
    if row["is_deleted"] or row["new_memory"] is None:
        return job.skip("memory", "already deleted there")
    if job.target.user is None:
        return job.skip("memory", NO_USER)
    mapped = ("is_deleted", "versions", "last")
    yield long_term_line("mem0", row, job.target.user, id="memory_id", content="new_memory", mapped=mapped)


def _conversation_lines(rows: list[dict[str, Any]], job: ImportJob) -> Iterator[Line]:
    """The messages of one scope, of which mem0 stores the last ten, as a conversation."""
    scope = rows[0]["session_scope"] or ""
    pairs = (part.partition("=") for part in scope.split("&"))
    ids = {name: unquote(value) for name, _, value in pairs}
    user, agent = ids.get("user_id") or job.target.user, job.target.agent or ids.get("agent_id")
    if user is None or agent is None:
        return job.skip("message", NO_USER if agent else NO_AGENT, len(rows))
    messages = []
    for row in rows:
        if row["role"] in ("user", "assistant") and row["content"]:
            name, sent_at = speaker_name(row["name"]), records.time(row, "created_at")
            messages.append({"role": row["role"], "content": row["content"], "name": name, "at": sent_at})
        else:
            job.skip("message", "its role is neither user nor assistant")
    session = "-".join(filter(None, ("mem0", ids.get("run_id"))))
    yield from turn_lines(job, f"messages of {scope}", (agent, user, session), messages)
