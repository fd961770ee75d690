"""Records that the engine takes and returns: rows, scopes of reads, write operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from alcove.core.cursor import MAX_PAGE_BYTES, take_page
from alcove.core.filters import Filter
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
    """When its key was first written since it was last empty; None if this is the first version."""

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
    return take_page(map(Row._make, rows), limit, max_bytes=max_bytes)


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
    created_at: int
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
    """How many pages have been copied; the last progress has the figures of the copied moment."""

    copied_pages: int
    page_count: int
    figures: StoreFigures | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """A range of namespaces, and conditions on the versions in it; `filter_sql` compiles it."""

    low: bytes
    high: bytes
    policy: Filter = field(default_factory=Filter)
    owner: str | None = None
    """If set, excludes rooms of other users."""
    unowned: bool = False
    """Excludes rooms with an owner."""
    written_by: tuple[str | None, ...] | None = None
    """If set, only what one of these users wrote; None among them stands for no author."""
    unowned_written_by: tuple[str | None, ...] | None = None
    """The same, but only in rooms without an owner."""
    unindexed: bool = False
    """Whether only versions without an index text count."""
    filter: Filter = field(default_factory=Filter)


# Write operations of one transaction, its outcome, and why it may be refused


class PutRow(NamedTuple):
    """Stores a sealed memory; `expected` is a revision, 0 for absent, None for any."""

    id: bytes
    ns: bytes
    key: bytes
    owner: str | None
    writer: Writer
    data_key: int
    sealed: bytes
    attributes: str
    index_text: str | None
    ttl: int | None
    expected: int | None
    until: int | None = None
    """When it expires, for an imported memory with an expiry; `ttl` counts from the write."""
    original_at: int | None = None
    """When it was first written, for an imported memory. Future timestamps are ignored."""
    added_at: int | None = None
    """The same for the first version of its key, if that was not imported."""


class GetRow(NamedTuple):
    """Reads the live version of a key within a transaction."""

    ns: bytes
    key: bytes


class DeleteRow(NamedTuple):
    """Ends the live version of a key; `expected` as in `PutRow`."""

    ns: bytes
    key: bytes
    writer: Writer
    expected: int | None


class TouchRow(NamedTuple):
    """Sets a new expiry, or with `refresh` restarts the time to live that the memory was written with."""

    ns: bytes
    key: bytes
    ttl: int | None
    refresh: bool


class EvictRow(NamedTuple):
    """Ends the oldest memory of a namespace that holds `max_keys` or more, if `key` is a new one."""

    ns: bytes
    key: bytes
    writer: Writer
    max_keys: int


RowOperation = PutRow | GetRow | DeleteRow | TouchRow | EvictRow


class IdempotentRequest(NamedTuple):
    """A request to run once: its answer is sealed inside the transaction and stored for a day."""

    user: str
    token: bytes
    data_key: int
    seal: Callable[[Sequence[Row | None]], bytes]


class StoredAnswer(NamedTuple):
    """The sealed answer to an earlier request with the same token."""

    data_key: int
    sealed: bytes


Outcome = list[Row | None] | StoredAnswer
"""The answer of a transaction: a row for each operation, or the answer to an earlier request."""


class StaleDecision(Exception):
    """The rules that allowed a write have been replaced; decide again and retry."""


class DataKeyGone(Exception):
    """The data key that sealed a write has been destroyed; seal again and retry."""


# The search index: texts that wait for vectors, texts that are searched, and what changed


class TextToIndex(NamedTuple):
    """A version whose text needs vectors, the count of attempts, and where its next piece begins."""

    seq: int
    index_text: str
    tries: int = 0
    field: int = 0
    window: int = 0


class EmbeddedPiece(NamedTuple):
    """The vectors of a text, or of its next piece."""

    text: TextToIndex
    body: bytes
    size: int
    """Bytes of the embedded text."""
    next_place: tuple[int, int] | None
    """The field and window where the next piece begins; None if the text is complete."""


class Text(NamedTuple):
    """A live version's text as it is searched; `vectors` is None while it waits for them."""

    seq: int
    ns: bytes
    created_at: int
    expires_at: int | None
    index_text: str
    vectors: bytes | None


class IndexState(NamedTuple):
    """The state of a store's texts; between two equal states, no result of a search has changed."""

    seq: int
    vectors: int
    touches: int
    erased: int
    serving: str | None


class CorpusTooLarge(Exception):
    """The texts and vectors of a scope need more memory than the caller has."""


class Change(NamedTuple):
    """What happened to a subtree's texts since a state."""

    state: IndexState
    added: list[Text]
    """Texts that were added or got their vectors."""
    superseded: list[int]
    """Versions that ended because newer ones replaced them."""
    live: list[int] | None
    """Every live version, if something was erased (the log does not record that)."""
    expiries: list[tuple[int, int | None]]
    """New expiries, by version."""


class IndexStatus(NamedTuple):
    """How many texts are waiting for vectors, have failed (`parked`), or are indexed."""

    pending: int
    parked: int
    indexed: int
    oldest_at: int | None
    """When the oldest waiting text was written."""


# A person, their data, and what a wipe removed


class Person(NamedTuple):
    """A person, for queries about their data and for erasure."""

    user: str
    """Empty if only the pseudonym is known."""
    subject: str
    """The subject of their data key."""
    pseudonym: str
    older: Sequence[tuple[bytes, bytes]] = ()
    """Ranges of namespaces without an owner in which everything they wrote belongs to them."""
    authorless: bool = False
    """Whether unsigned versions in those ranges belong to them, too."""
    rooms: Sequence[bytes] = ()
    """Namespaces to erase as a whole."""


class PersonalDataRow(NamedTuple):
    """What one namespace holds about a person; `own` is true if it is theirs."""

    own: bool
    ns: bytes
    memories: int
    versions: int
    bytes: int
    first: int
    last: int


class WipeResult(NamedTuple):
    """What a wipe removed from the engine, and what remains."""

    removed: dict[str, int]
    """Counts of memories, versions, vectors, replays (stored answers to idempotent requests), API keys."""
    key_destroyed: bool
    shared: int
    """Count of versions that it changed in rooms of others."""
    generation: int
    """The generation that a scrub must reach to remove the last bytes."""
    is_known: bool
    """Whether there was anything about this person."""
    moment: int
    position: int
    """The last sequence number at the time of the wipe; erased versions have no higher one."""
    rooms: list[bytes]
    """Rooms without an owner from which it removed what the person wrote."""
    remaining: list[PersonalDataRow]
    """What remains in rooms of others."""
