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
from alcove.importers import fields, files, lines
from alcove.importers.account import EXPIRED, Account, Target
from alcove.upkeep.transfer import Line

if TYPE_CHECKING:
    import psycopg

_STORE = "a database with the table store of LangGraph"
_COLUMNS = {"prefix", "key", "value", "created_at", "updated_at"}
_EXPIRY = {"expires_at", "ttl_minutes"}
_AT_ONCE = 500
"""Rows that a PostgreSQL server sends at a time."""
_STEP = re.compile(r"\[[^\[\]]*\]|[^.\[\]]+")
_PLACE = re.compile("[0-9]{1,9}")
_MAX_FIELDS, _MAX_VALUE_BYTES = Settings().max_index_fields, Settings().max_value_bytes
_MANY_FIELDS = f"an import brings at most {_MAX_FIELDS} of an item"
_LARGE_VALUE = f"its value is larger than {_MAX_VALUE_BYTES} bytes"
_OTHER_PATH = "a path that is not followed here; put its item again to find it so"
_NO_OWNER = "in a namespace that no user owns: --root user:NAME:langgraph puts all below one of NAME"
_THREADS = "only stores are brought; a graph's threads begin anew"


def read(where: str, target: Target, account: Account) -> Iterator[bytes]:
    """The lines of a store's items."""
    rows = _of_server(where, account) if is_database(where) else _of_file(Path(where), account)
    named = ((f"item {row['key']} of {row['prefix']}", row) for row in rows)
    return account.each(named, partial(_item, target=target, account=account))


def _item(row: fields.Record, target: Target, account: Account) -> Iterator[Line]:
    """An item where an `AlcoveStore` reads it, which is at its namespace unless the target says otherwise."""
    expires_at = fields.moment(row, "expires_at")
    if expires_at and expires_at <= target.now:
        return account.leave("item", EXPIRED)
    value = fields.record(_json(row["value"], "value"))
    paths = _json(row["indexed"] or "[]", "indexed")
    if len(row["value"]) > _MAX_VALUE_BYTES:
        account.leave("index field", _LARGE_VALUE, len(paths))
        paths = []
    account.leave("index field", _MANY_FIELDS, len(paths) - _MAX_FIELDS)
    texts = _texts(value, paths[:_MAX_FIELDS], account)
    namespace = _namespace(row["prefix"].split("."), target)
    if namespace is None:
        return account.leave("item", _NO_OWNER)
    yield Line(
        namespace=namespace,
        key=row["key"],
        value=dict(value),
        index=texts or None,
        created_at=fields.moment(row, "updated_at"),
        added_at=fields.moment(row, "created_at"),
        expires_at=expires_at,
        ttl_seconds=None if row["ttl_minutes"] is None else max(1, math.ceil(row["ttl_minutes"] * 60)),
    )


def _namespace(labels: list[str], target: Target) -> list[str] | None:
    """Where an item with these labels goes; None if nobody could read it there."""
    if target.by_user or target.user is not None:
        user, labels = (labels[0], labels[1:]) if target.by_user else (target.user, labels)
        return ["user", check_user_id(user, "user"), TREE, *labels]
    if target.root is not None:
        return [*target.root, *labels]
    return labels if Namespace(labels).owner is not None else None


def _json(text: str | bytes, field: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise InvalidRequest(field, "JSON") from None


def _texts(value: Any, paths: list[Any], account: Account) -> dict[str, str]:
    """The texts that LangGraph indexed, by path; each node is spelled once, whatever paths lead to it."""
    texts, by_node = dict[str, str](), dict[int, str]()
    for path in paths:
        found = nodes_at(value, path) if isinstance(path, str) else []
        if not found:
            account.leave("index field", _OTHER_PATH)
            continue
        [node] = found
        if id(node) not in by_node:
            by_node[id(node)] = lines.cut(_spelled(node))
        texts[path] = by_node[id(node)]
    return texts


def nodes_at(value: Any, path: str) -> list[Any]:
    """The one node that LangGraph indexed under a path; none for a path of a kind that is not followed here.

    A path is `$` for all of a value, or names and places such as `notes.title` or `tags[0]`. Of one that
    leads to several texts, such as `tags[*]`, each has a number after it: `tags[*].0`.
    """
    if path == "$":
        return [value]
    steps = _STEP.findall(path)
    place = steps.pop() if "[*]" in steps and _PLACE.fullmatch(steps[-1]) else "0"
    found = [value]
    for step in steps:
        found = [each for node in found for each in _below(node, step.strip("[]"))]
    return found[int(place) :][:1]


def _below(node: Any, step: str) -> list[Any]:
    if isinstance(node, dict):
        return [node[step]] if step in node else []
    if isinstance(node, list) and step == "*":
        return node
    if isinstance(node, list) and _PLACE.fullmatch(step.removeprefix("-")):
        return [node[int(step)]] if -len(node) <= int(step) < len(node) else []
    return []


def _spelled(found: Any) -> str:
    return (
        str(found)
        if not isinstance(found, dict | list)
        else json.dumps(found, ensure_ascii=False, sort_keys=True)
    )


def _of_file(path: Path, account: Account) -> Iterator[dict[str, Any]]:
    with files.database(path, _STORE) as database:
        if files.columns(database, "checkpoints"):
            threads = database.execute("SELECT count(*) FROM checkpoints").get
            account.leave("checkpoint", _THREADS, threads)
        vectors = "json_group_array(field_name)" if files.columns(database, "store_vectors") else None
        statement = _statement(files.columns(database, "store"), path.name, vectors)
        yield from files.rows(database, statement, account, "store")


def _of_server(address: str, account: Account) -> Iterator[dict[str, Any]]:
    with requires_extra("reading a PostgresStore", extra="postgres"):
        import psycopg  # noqa: PLC0415  only where one is read
        from psycopg.rows import dict_row  # noqa: PLC0415

        from alcove.engine.postgres.connection import set_session  # noqa: PLC0415
    try:
        connection = psycopg.connect(address, row_factory=dict_row, connect_timeout=10, autocommit=True)
    except psycopg.ProgrammingError:  # whose words repeat the address, and a password that is in it
        raise InvalidRequest("FILE", "an address such as postgresql://host/name") from None
    except psycopg.Error as error:
        raise Unavailable(f"the database cannot be reached: {str(error).splitlines()[0]}") from None
    with connection:
        try:
            set_session(connection)
            connection.autocommit, connection.read_only = False, True
            yield from _rows_of(connection, account)
        except psycopg.Error as error:  # of a table that is not to be read, or half-way
            account.fail("table store", f"cannot be read any further: {str(error).splitlines()[0]}")


def _rows_of(connection: psycopg.Connection[dict[str, Any]], account: Account) -> Iterator[dict[str, Any]]:
    def asked(statement: LiteralString) -> list[dict[str, Any]]:
        return connection.execute(statement).fetchall()

    if asked("SELECT 1 WHERE to_regclass('checkpoints') IS NOT NULL"):
        [threads] = asked("SELECT count(*) FROM checkpoints")
        account.leave("checkpoint", _THREADS, threads["count"])
    has_vectors = asked("SELECT 1 WHERE to_regclass('store_vectors') IS NOT NULL")
    vectors = "json_agg(field_name)::text" if has_vectors else None
    named = asked("SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('store') AND attnum > 0")
    columns = {row["attname"] for row in named}
    statement = _statement(columns, "the database", vectors, "value::text AS value")
    with connection.cursor(name="alcove_import") as cursor:  # the server keeps the rows that are to come
        cursor.itersize = _AT_ONCE
        yield from cursor.execute(statement.encode())


def _statement(columns: set[str], name: str, vectors: str | None, value: str = "value") -> str:
    """What reads the items of a store that has these columns; the first ones had no expiry.

    `vectors` gives the names of the fields by which an item is found, where the store is searched by meaning.
    """
    if not columns >= _COLUMNS:
        raise InvalidRequest(name, _STORE)
    until = "expires_at, ttl_minutes" if columns >= _EXPIRY else "NULL AS expires_at, NULL AS ttl_minutes"
    fields = f"(SELECT {vectors} FROM store_vectors v WHERE v.prefix = s.prefix AND v.key = s.key)"  # noqa: S608
    wanted = (
        f"prefix, key, {value}, created_at, updated_at, {until}, {fields if vectors else 'NULL'} AS indexed"
    )
    return f"SELECT {wanted} FROM store s ORDER BY prefix, key"  # noqa: S608  of our own words
