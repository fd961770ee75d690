"""The wrapped data keys of a store: what a vault needs of its database or backup file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from alcove.engine.rows.versions import MAX_INT64


class DataKey(NamedTuple):
    """A subject's data key, wrapped by the key-encryption key `wrapped_by`."""

    id: int
    subject: str
    wrapped: bytes
    wrapped_by: str


class DataKeys(ABC):
    """Reads and writes wrapped data keys."""

    _fetch: Callable[..., list[tuple[Any, ...]]]
    """Runs a statement by name and returns its rows."""

    @abstractmethod
    def add_data_key(
        self, subject: str, wrapped: bytes, wrapped_by: str, wipes: int | None = None
    ) -> DataKey | None:
        """Adds a key, or returns the one that was added first.

        With `wipes`, returns None if the store has seen more wipes than that.
        """

    @abstractmethod
    def rewrap(self, keys: Sequence[DataKey]) -> None:
        """Stores keys that another key-encryption key has wrapped."""

    def data_key(self, *, subject: str | None = None, id: int | None = None) -> DataKey | None:
        rows = self._fetch("data_key_of", subject) if id is None else self._fetch("data_key_by_id", id)
        return DataKey._make(rows[0]) if rows else None

    def data_keys(self, *, not_wrapped_by: str | None = None, limit: int = MAX_INT64) -> list[DataKey]:
        return [DataKey._make(row) for row in self._fetch("data_keys", not_wrapped_by, limit)]
