"""The tables of a store as data, for who copies them from one database into another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Key = tuple[Any, ...]

COPIED_FROM, COPIED_AS = "copied_from", "copied_as"
"""Marks of a copy about itself: of which store it is one, and how it was left, 0 while it is not whole."""


class Table(NamedTuple):
    """A table: its columns, and those by which its rows are in one order in every database.

    No text is among the latter, since databases order texts each in their own way; a table that has no other
    key is small, and is copied as a whole.
    """

    name: str
    columns: str
    key: str = ""
    counts: bool = False
    """Whether the database numbers its rows, and gives no number twice."""
    only: str = "TRUE"
    """Which of its rows belong to the store, and not to the copy alone."""

    @property
    def fields(self) -> str:
        """The columns as a statement names them."""
        return _quoted(self.columns)

    def key_of(self, row: Sequence[Any]) -> Key:
        """Where a row stands."""
        places = self.columns.split()
        return tuple(row[places.index(column)] for column in self.key.split())

    def between(self, after: Key | None, upto: Key | None) -> tuple[dict[str, str], list[Any]]:
        """The parts of a statement about the rows behind one place, up to another, and its parameters."""
        where, params = self.only, list[Any]()
        for sign, place in ((">", after), ("<=", upto)):
            if place is not None:
                where += f" AND ({_quoted(self.key)}) {sign} ({', '.join('?' * len(place))})"
                params += place
        return {"table": self.name, "where": where}, params

    @property
    def order(self) -> str:
        """What its rows are ordered by."""
        return _quoted(self.key) or "1"


def _quoted(columns: str) -> str:
    return ", ".join(f'"{column}"' for column in columns.split())


TABLES = (
    Table("data_keys", "id subject wrapped wrapped_by", "id", counts=True),
    Table("namespaces", "ns owner", "ns"),
    Table(
        "versions",
        "seq id ns key kind revision created_at ended_at expires_at owner user client agent data_key sealed"
        " attributes index_text original_at formerly ttl added_at",
        "seq",
        counts=True,
    ),
    Table("vectors", "id ns seq embedder body", "id", counts=True),
    Table("to_index", "seq due tries error writer size turn at_field at_window", "seq"),
    Table("pieces", "id seq body", "id", counts=True),
    Table("touches", "id seq", "id", counts=True),
    Table("replays", "user token created_at data_key sealed position", "created_at token"),
    Table("audit", "seq at actor action subject details", "seq", counts=True),
    Table("documents", "version kind at actor body", "version", counts=True),
    Table("api_keys", "id client user roles trusted digest created_at position"),
    Table("private_rooms", "template"),
    Table("serving", "only embedder", "only"),
    Table("marks", "name value", only=f"name NOT IN ('{COPIED_FROM}', '{COPIED_AS}')"),
)
"""In the order in which they are copied: what a version's trigger writes beside it is copied over it."""
