"""The wrapped data keys of a store or backup file, for a vault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from alcove.engine.database import Connection
from alcove.engine.rows import MAX_INT64


class DataKey(NamedTuple):
    """A subject's data key, wrapped by the key-encryption key `wrapped_by`."""

    id: int
    subject: str
    wrapped: bytes
    wrapped_by: str


class DataKeys:
    """Reads and writes wrapped data keys."""

    def __init__(
        self,
        fetch: Callable[..., list[tuple[Any, ...]]],
        write: Callable[..., AbstractContextManager[Connection]],
    ) -> None:
        """`fetch` and `write`: those of a `Database`."""
        self._fetch = fetch
        self._write = write

    def find(self, *, subject: str | None = None, id: int | None = None) -> DataKey | None:
        rows = self._fetch("data_key_of", subject) if id is None else self._fetch("data_key_by_id", id)
        return DataKey._make(rows[0]) if rows else None

    def find_all(self, *, not_wrapped_by: str | None = None, limit: int = MAX_INT64) -> Sequence[DataKey]:
        return [DataKey._make(row) for row in self._fetch("data_keys", not_wrapped_by, limit)]

    def add(self, subject: str, wrapped: bytes, wrapped_by: str, wipes: int | None = None) -> DataKey | None:
        """Adds a key, or returns the one that was added first.

        With `wipes`, returns None if there were more wipes than that. It does not wait for the disk, because
        the first write that is sealed with the key comes later in the log, and does wait.
        """
        with self._write(durable=False) as db:
            db.run("add_data_key", (subject, wrapped, wrapped_by, wipes))
            row = db.run("data_key_of", (subject,)).fetchone()
            return DataKey._make(row) if row else None

    def rewrap(self, keys: Sequence[DataKey]) -> None:
        """Stores keys that another key-encryption key has wrapped."""
        with self._write() as db:
            db.run_many("rewrap", [(key.wrapped, key.wrapped_by, key.id) for key in keys])
