"""LangGraph: the items of its SqliteStore (a file) and of its PostgresStore (an address, postgresql://…)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

from alcove.core.addresses import is_database
from alcove.core.errors import InvalidRequest, Unavailable, requires_extra
from alcove.core.namespace import TREE, Namespace
from alcove.core.principal import check_user_id
from alcove.core.settings import Settings
from alcove.importers import records, source_files
from alcove.importers.job import EXPIRED, ImportJob, Target
from alcove.importers.memory_lines import truncate_to_index
from alcove.upkeep.transfer import Line

if TYPE_CHECKING:
    import psycopg

_STORE = "a database with the table store of LangGraph"
_COLUMNS = {"prefix", "key", "value", "created_at", "updated_at"}
_EXPIRY_COLUMNS = {"expires_at", "ttl_minutes"}
_BATCH_ROWS = 500
"""Rows that a PostgreSQL server sends at a time."""
_STEP = re.compile(r"\[[^\[\]]*\]|[^.\[\]]+")
_INDEX = re.compile("[0-9]{1,9}")
_MAX_FIELDS, _MAX_VALUE_BYTES = Settings().max_index_fields, Settings().max_value_bytes
_MANY_FIELDS = f"an import takes at most {_MAX_FIELDS} of an item"
_LARGE_VALUE = f"its value is larger than {_MAX_VALUE_BYTES} bytes"
_OTHER_PATH = "imports do not support this kind of path; write the item again to index it"
_NO_OWNER = "in a namespace that no user owns: --root user:NAME:langgraph stores them for NAME"
_THREADS = "an import takes stores only; threads of graphs start again"


def read(source: str, job: ImportJob) -> Iterator[bytes]:
    """The lines of a store's items."""
    rows = _read_server(source, job) if is_database(source) else _read_file(Path(source), job)
    items = ((f"item {row['key']} of {row['prefix']}", row) for row in rows)
    return job.lines(items, partial(_item_lines, job=job))


def _item_lines(row: records.Record, job: ImportJob) -> Iterator[Line]:
    """An item where an `AlcoveStore` reads it: at its namespace, unless the target says otherwise."""
    expires_at = records.time(row, "expires_at")
    if expires_at and expires_at <= job.target.now:
        return job.skip("item", EXPIRED)
    value = records.check_record(_parse_json(row["value"], "value"))
    paths = _parse_json(row["indexed"] or "[]", "indexed")
    if len(row["value"]) > _MAX_VALUE_BYTES:
        job.skip("index field", _LARGE_VALUE, len(paths))
        paths = []
    job.skip("index field", _MANY_FIELDS, len(paths) - _MAX_FIELDS)
    texts = _index_texts(value, paths[:_MAX_FIELDS], job)
    namespace = _namespace(row["prefix"].split("."), job.target)
    if namespace is None:
        return job.skip("item", _NO_OWNER)
    yield Line(
        namespace=namespace,
        key=row["key"],
        value=dict(value),
        index=texts or None,
        created_at=records.time(row, "updated_at"),
        added_at=records.time(row, "created_at"),
        expires_at=expires_at,
        ttl_seconds=None if row["ttl_minutes"] is None else max(1, math.ceil(row["ttl_minutes"] * 60)),
    )


def _namespace(labels: list[str], target: Target) -> list[str] | None:
    """The namespace of an item with these labels; None if nobody could read it there."""
    if target.by_user or target.user is not None:
        user, labels = (labels[0], labels[1:]) if target.by_user else (target.user, labels)
        return ["user", check_user_id(user, "user"), TREE, *labels]
    if target.root is not None:
        return [*target.root, *labels]
    return labels if Namespace(labels).owner is not None else None


def _parse_json(text: str | bytes, field: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise InvalidRequest(field, "JSON") from None


def _index_texts(value: Any, paths: list[Any], job: ImportJob) -> dict[str, str]:
    """The texts that LangGraph indexed, by path; each node becomes text once, however many paths it has."""
    texts, by_node = dict[str, str](), dict[int, str]()
    for path in paths:
        nodes = nodes_at(value, path) if isinstance(path, str) else []
        if not nodes:
            job.skip("index field", _OTHER_PATH)
            continue
        [node] = nodes
        if id(node) not in by_node:
            by_node[id(node)] = truncate_to_index(_to_text(node))
        texts[path] = by_node[id(node)]
    return texts


def nodes_at(value: Any, path: str) -> list[Any]:
    """The one node that LangGraph indexed under a path; empty for a kind of path that is not supported.

    A path is `$` for the whole value, or names and indexes such as `notes.title` or `tags[0]`. If a path
    leads to several texts, such as `tags[*]`, each has a number after it: `tags[*].0`.
    """
    if path == "$":
        return [value]
    steps = _STEP.findall(path)
    index = steps.pop() if "[*]" in steps and _INDEX.fullmatch(steps[-1]) else "0"
    nodes = [value]
    for step in steps:
        nodes = [child for node in nodes for child in _children(node, step.strip("[]"))]
    return nodes[int(index) :][:1]


def _children(node: Any, step: str) -> list[Any]:
    if isinstance(node, dict):
        return [node[step]] if step in node else []
    if isinstance(node, list) and step == "*":
        return node
    if isinstance(node, list) and _INDEX.fullmatch(step.removeprefix("-")):
        return [node[int(step)]] if -len(node) <= int(step) < len(node) else []
    return []


def _to_text(node: Any) -> str:
    is_text = not isinstance(node, dict | list)
    return str(node) if is_text else json.dumps(node, ensure_ascii=False, sort_keys=True)


def _read_file(path: Path, job: ImportJob) -> Iterator[dict[str, Any]]:
    with source_files.open_database(path, _STORE) as database:
        if source_files.columns(database, "checkpoints"):
            threads = database.execute("SELECT count(*) FROM checkpoints").get
            job.skip("checkpoint", _THREADS, threads)
        has_vectors = source_files.columns(database, "store_vectors")
        fields = "json_group_array(field_name)" if has_vectors else None
        statement = _select_items(source_files.columns(database, "store"), path.name, fields)
        yield from source_files.rows(database, statement, job, "store")


def _read_server(address: str, job: ImportJob) -> Iterator[dict[str, Any]]:
    with requires_extra("reading a PostgresStore", extra="postgres"):
        import psycopg  # noqa: PLC0415  only where one is read
        from psycopg.rows import dict_row  # noqa: PLC0415

        from alcove.engine.postgres.connection import set_session  # noqa: PLC0415
    try:
        connection = psycopg.connect(address, row_factory=dict_row, connect_timeout=10, autocommit=True)
    except psycopg.ProgrammingError:  # its message repeats the address, with the password
        raise InvalidRequest("FILE", "an address such as postgresql://host/name") from None
    except psycopg.Error as error:
        raise Unavailable(f"the database cannot be reached: {str(error).splitlines()[0]}") from None
    with connection:
        try:
            set_session(connection)
            connection.autocommit, connection.read_only = False, True
            yield from _select_rows(connection, job)
        except psycopg.Error as error:  # also after the first rows
            job.fail("table store", f"cannot be read any further: {str(error).splitlines()[0]}")


def _select_rows(connection: psycopg.Connection[dict[str, Any]], job: ImportJob) -> Iterator[dict[str, Any]]:
    def fetch(statement: LiteralString) -> list[dict[str, Any]]:
        return connection.execute(statement).fetchall()

    if fetch("SELECT 1 WHERE to_regclass('checkpoints') IS NOT NULL"):
        [threads] = fetch("SELECT count(*) FROM checkpoints")
        job.skip("checkpoint", _THREADS, threads["count"])
    has_vectors = fetch("SELECT 1 WHERE to_regclass('store_vectors') IS NOT NULL")
    fields = "json_agg(field_name)::text" if has_vectors else None
    rows = fetch("SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('store') AND attnum > 0")
    columns = {row["attname"] for row in rows}
    statement = _select_items(columns, "the database", fields, "value::text AS value")
    with connection.cursor(name="alcove_import") as cursor:  # the server keeps the rows that follow
        cursor.itersize = _BATCH_ROWS
        yield from cursor.execute(statement.encode())


def _select_items(columns: set[str], name: str, fields: str | None, value: str = "value") -> str:
    """The statement that reads the items of a store with these columns; the first versions had no expiry.

    `fields` aggregates the names of the indexed fields, if the store is searched by meaning.
    """
    if not columns >= _COLUMNS:
        raise InvalidRequest(name, _STORE)
    expiry = "expires_at, ttl_minutes"
    if not columns >= _EXPIRY_COLUMNS:
        expiry = "NULL AS expires_at, NULL AS ttl_minutes"
    vectors = f"(SELECT {fields} FROM store_vectors v WHERE v.prefix = s.prefix AND v.key = s.key)"  # noqa: S608
    indexed = vectors if fields else "NULL"
    selection = f"prefix, key, {value}, created_at, updated_at, {expiry}, {indexed} AS indexed"
    return f"SELECT {selection} FROM store s ORDER BY prefix, key"  # noqa: S608  no outside text
