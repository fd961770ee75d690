"""The tables of a store, described for copying them from one database into another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Key = tuple[Any, ...]

COPIED_FROM, COPIED_AS = "copied_from", "copied_as"
"""Marks of a copy: which store it was copied from, and its state; 0 while the copy is incomplete."""


class Table(NamedTuple):
    """A table: its columns, and those that order its rows in the same way in every database.

    The key has no text, since databases collate texts differently; a table without another key is small, and
    is copied as a whole.
    """

    name: str
    columns: str
    key: str = ""
    is_numbered: bool = False
    """Whether the database numbers its rows, and uses no number twice."""
    condition: str = "TRUE"
    """The rows to copy."""

    @property
    def fields(self) -> str:
        """The columns, quoted for SQL."""
        return _quoted(self.columns)

    def key_of(self, row: Sequence[Any]) -> Key:
        """Returns the key of a row."""
        places = self.columns.split()
        return tuple(row[places.index(column)] for column in self.key.split())

    def between(self, after: Key | None, last: Key | None) -> tuple[dict[str, str], list[Any]]:
        """Returns the parts and the parameters of a statement about the rows after one key, up to another."""
        condition, params = self.condition, list[Any]()
        for sign, key in ((">", after), ("<=", last)):
            if key is not None:
                condition += f" AND ({_quoted(self.key)}) {sign} ({', '.join('?' * len(key))})"
                params += key
        return {"table": self.name, "condition": condition}, params

    @property
    def order(self) -> str:
        return _quoted(self.key) or "1"


def _quoted(columns: str) -> str:
    return ", ".join(f'"{column}"' for column in columns.split())


TABLES = (
    Table("data_keys", "id subject wrapped wrapped_by", "id", is_numbered=True),
    Table("namespaces", "ns owner", "ns"),
    Table(
        "versions",
        "seq id ns key kind revision created_at ended_at expires_at owner user client agent data_key sealed"
        " attributes index_text original_at formerly ttl added_at",
        "seq",
        is_numbered=True,
    ),
    Table("vectors", "id ns seq embedder body", "id", is_numbered=True),
    Table("to_index", "seq due tries error writer size turn at_field at_window", "seq"),
    Table("pieces", "id seq body", "id", is_numbered=True),
    Table("touches", "id seq", "id", is_numbered=True),
    Table("replays", "user token created_at data_key sealed position", "created_at token"),
    Table("audit", "seq at actor action subject details", "seq", is_numbered=True),
    Table("documents", "version kind at actor body", "version", is_numbered=True),
    Table("api_keys", "id client user roles trusted digest created_at position"),
    Table("private_rooms", "template"),
    Table("serving", "only embedder", "only"),
    Table("marks", "name value", condition=f"name NOT IN ('{COPIED_FROM}', '{COPIED_AS}')"),
)
"""In the order of copying: what triggers write for a version is replaced by the copied rows."""
