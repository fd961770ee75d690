"""Rows of the log of versions, and what is derived from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from alcove.core.cursor import MAX_PAGE_BYTES, take_page
from alcove.core.records import EventKind

MAX_INT64 = 2**63 - 1
"""Later than every moment, higher than every sequence number."""


class Row(NamedTuple):
    """One version as it is stored. The fields are the columns of `versions`, in their order."""

    seq: int
    id: bytes
    ns: bytes
    key: bytes
    kind: EventKind
    revision: int
    created_at: int
    expires_at: int | None
    user: str | None
    client: str | None
    agent: str | None
    data_key: int | None
    sealed: bytes | None
    attributes: str
    index_text: str | None
    original_at: int | None = None
    """When it was first written, for an imported memory; `created_at` is the log's own time."""
    ttl: int | None = None
    """Time to live when it was written or last touched; None if it does not expire."""
    added_at: int | None = None
    """Since when its key has held something; None if this is the first version."""

    @property
    def size(self) -> int:
        """Bytes of the content."""
        size = len(self.sealed or b"")
        for text in (self.attributes, self.index_text or ""):
            size += len(text) if text.isascii() else len(text.encode())
        return size

    @property
    def index_texts(self) -> dict[str, str]:
        """The index texts by field; empty if it has none."""
        return msgspec.json.decode(self.index_text) if self.index_text else {}

    @property
    def written_at(self) -> int:
        return self.created_at if self.original_at is None else self.original_at


def read_page(
    rows: Iterable[tuple[Any, ...]], limit: int, *, max_bytes: int = MAX_PAGE_BYTES
) -> tuple[list[Row], bool]:
    """Returns the first rows, within both limits, and whether there are more."""
    return take_page(map(Row._make, rows), limit, most=max_bytes)


class Writer(NamedTuple):
    """The author of a version: user, client and agent."""

    user: str | None
    client: str | None
    agent: str | None


class LiveKey(NamedTuple):
    """The live version of a key, without its content."""

    seq: int
    ns: bytes
    key: bytes
    revision: int
    written_at: int


class Fingerprint(NamedTuple):
    """Tells whether a cached copy of a namespace, and of two other keys, is still current.

    Sequence numbers only grow, and none is used twice. So of two sets of live versions with the same count,
    the later one has the greater sum, unless they are equal.
    """

    version: int
    """Of the newest document."""
    position: int
    """Sequence number of the last version."""
    state: bytes | None
    rolling: bytes | None
    """The ids of the live versions of the two other keys."""
    live: int
    total: int
    """Count of the live versions in the namespace, and the sum of their sequence numbers."""
    newest_at: int
    """When the last of them was written: a restored store reuses the numbers that it lost."""


class AuditRow(NamedTuple):
    """One entry of the audit log; `subject` is a pseudonym, `details` JSON without content."""

    seq: int
    at: int
    actor: str | None
    action: str
    subject: str | None
    details: str


class StoreFigures(NamedTuple):
    """A store in numbers."""

    memories: int
    versions: int
    last_seq: int
    wipes: int
    scrubbed: int


class CopyProgress(NamedTuple):
    """How many pages have been copied; the last one carries the figures of the moment that was copied."""

    done: int
    total: int
    figures: StoreFigures | None = None
