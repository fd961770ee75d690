"""What the service takes and gives: operations on memories, and memories, versions, events, receipts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from alcove.core.namespace import Namespace
from alcove.core.principal import JSON

EventKind = Literal["add", "update", "delete", "expired"]
SearchMode = Literal["hybrid", "semantic", "keyword"]
SharedHandling = Literal["keep", "anonymise", "remove"]
NamespaceLike = Sequence[str] | str
"""A namespace as a caller may give it: its segments, or their spelling."""
TimeLike = datetime | str
"""A time as a caller may give it: an aware datetime, or RFC 3339 text."""
IndexSpec = Mapping[str, str] | Sequence[str] | bool
"""By what a memory is to be found: texts by field, true for every text of its value, or paths to some."""
MAX_KEY_BYTES = 1024
Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)]
MAX_TTL_SECONDS = 100 * 366 * 86_400
Seconds = Annotated[
    int, Meta(ge=0, le=MAX_TTL_SECONDS, description="How long it lives, in seconds; for ever without or at 0")
]
Revision = Annotated[int, Meta(ge=0, description="The revision that must be there; 0 is nothing.")]
Query = Annotated[str, Meta(min_length=1, description="What to look for, in words.")]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Offset = Annotated[int, Meta(ge=0, description="How many of the first to leave out.")]
AfterCursor = Annotated[str, Meta(description="Where an earlier answer to the same request ended.")]
KINDS: tuple[EventKind, ...] = ("add", "update", "delete", "expired")


class Author(Struct, frozen=True, gc=False):
    """Who wrote a version: the user, the client they came through, the agent that acted for them."""

    user: str | None = None
    client: str | None = None
    agent: str | None = None


class Caller(Struct, frozen=True, kw_only=True):
    """Who a call is taken to come from."""

    user: str
    client: str | None
    roles: list[str]


class Entry(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A memory without its value: what a write answers and what a list shows."""

    id: str
    namespace: Namespace
    key: str
    attributes: dict[str, JSON]
    revision: int
    created_at: datetime
    """When this version was written."""
    added_at: datetime
    """When the key was written first, since it last held nothing."""
    expires_at: datetime | None
    ttl_seconds: int | None = None
    """How long it was to live when it was written or last touched; None for ever."""
    indexed: bool | None = None
    """Whether it can be found by meaning, of a write that waited for that; None for all others."""


class RankingSignal(Struct, frozen=True, gc=False, omit_defaults=True):
    """What one mechanism of ranking made of an item: its place by that alone, and what it added.

    `rules` has the numbers that its weight follows from, which are the same for all that a search finds.
    """

    rank: int
    score: float
    rules: dict[str, float] = {}


class Memory(Entry, frozen=True, kw_only=True, gc=False):
    """A memory as it is read: opened, with its index text and who wrote it."""

    value: dict[str, JSON]
    index: dict[str, str]
    written_by: Author
    score: float | None
    """How near it is to the query: max(0, cosine); None without a query or while it is not embedded."""
    relevance: float | None = None
    """How likely it is to answer the query, from 0 to 1; None without a query."""
    explain: dict[str, RankingSignal] | None = None
    similarity: float | None = None
    """The cosine itself, which may be negative; None where that was not asked for, or as `score` is."""


class SearchResults(list[Memory]):
    """What a search found, best first; `degraded` says why it is less than it could be, if it is.

    `unindexed` is how many memories no query finds, because they have no index text: told where a query found
    fewer than its limit, up to a thousand. `next_offset` is where to go on, if it ended before its limit for
    being too large. Without a query, `after_cursor` is there as long as there is more. `namespace_prefix` is
    where the search looked, if the policy does not let the caller look where they asked to.
    """

    degraded: str | None = None
    unindexed: int | None = None
    next_offset: int | None = None
    after_cursor: str | None = None
    namespace_prefix: Namespace | None = None


class Deletion(Struct, frozen=True, kw_only=True):
    """What a delete did; `revision` is the tombstone's, None where nothing was there."""

    namespace: Namespace
    key: str
    deleted: bool
    revision: int | None


class Version(Struct, frozen=True, kw_only=True):
    """One entry of a memory's history; value, attributes and index are None for delete and expired."""

    id: str
    namespace: Namespace
    key: str
    kind: EventKind
    revision: int
    created_at: datetime
    expires_at: datetime | None
    value: dict[str, JSON] | None
    attributes: dict[str, JSON] | None
    index: dict[str, str] | None
    written_by: Author


class Event(Struct, frozen=True, kw_only=True):
    """One entry of the timeline; value and attributes are None for delete and expired."""

    id: str
    namespace: Namespace
    key: str
    kind: EventKind
    revision: int
    occurred_at: datetime
    expires_at: datetime | None
    value: dict[str, JSON] | None
    attributes: dict[str, JSON] | None
    written_by: Author
    cursor: str


class EventPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of the timeline and the position after it.

    `truncated_before` is set when the caller's cursor is older than the retained history: events
    before that moment may be missing from this page. `more` says that others have happened since.
    """

    events: list[Event]
    after_cursor: str
    truncated_before: datetime | None = None
    more: bool = False


class ExportedVersion(Version, frozen=True, kw_only=True):
    """A version as a person's export has it."""

    current: bool
    """Whether it is what its key holds now; otherwise it is history."""


class NamespaceSize(Struct, frozen=True, kw_only=True):
    """How much of somebody a namespace holds."""

    namespace: Namespace
    memories: int
    versions: int
    bytes: int


class Residue(Struct, frozen=True):
    """A place outside of the store's tables where bytes of what was erased stay for a while."""

    where: str
    until: str
    """What ends it by itself."""
    command: str
    """The SQL that a superuser runs in the store's database to end it now."""
    in_data_files: bool = False
    """Whether these are files of the database itself; then the receipt does not say `scrubbed`."""


class Receipt(Struct, frozen=True, kw_only=True):
    """What a wipe removed, counted where, and what it left."""

    user: str
    removed: dict[str, int]
    key_destroyed: bool
    shared: dict[str, int]
    """How many versions in rooms of others, by what became of them."""
    shared_left: list[NamespaceSize] = []
    """The rooms of others in which something stays, with or without its author's name."""
    wiped_at: datetime | None = None
    """None where nothing was erased, because it was a dry run."""
    scrubbed: bool
    """Whether no byte of what was removed is left in the file and its log; in PostgreSQL, in data files."""
    remains: list[Residue] = []
    """Where bytes of it stay all the same, until when, and what ends that; empty for a store in a file."""


class SweepResult(Struct, frozen=True, kw_only=True):
    """What a sweep did: expiries recorded, memories past their maximum age, old versions removed."""

    expired: int
    aged: int
    purged: int


class BatchOperation(Struct, frozen=True, tag_field="op"):
    """One operation of a batch."""

    namespace: NamespaceLike
    key: Key


class Put(BatchOperation, frozen=True, tag="put"):
    value: Mapping[str, object]
    index: IndexSpec | None = None
    ttl_seconds: Seconds | None = None
    expected_revision: Revision | None = None
    create_only: bool = False


class ImportedPut(Put, frozen=True, kw_only=True, tag="import"):
    """A put of what was exported: it keeps when it was written, its expiry and, for an admin, its author."""

    created_at: datetime | None = None
    added_at: datetime | None = None
    expires_at: datetime | None = None
    written_by: Author | None = None


KeyBinding = tuple[int | None, int]
"""The id of a user's data key; None if they have none, and how many wipes there were of anybody counts."""


class DeferredPut(Put, frozen=True, kw_only=True, tag="deferred"):
    """A put of what was gathered for the owner of its room; KeyDestroyed if they were wiped since."""

    bound: KeyBinding | None
    """What `Memories.key_binding` gave then; None for what did not wait."""


class Get(BatchOperation, frozen=True, tag="get"):
    pass


class EvictOldest(Get, frozen=True, kw_only=True, tag="evict"):
    """Deletes the oldest memory of a namespace that holds `most` when its key is new, and answers it."""

    most: int


class Delete(BatchOperation, frozen=True, tag="delete"):
    expected_revision: Revision | None = None


class Touch(BatchOperation, frozen=True, tag="touch"):
    """Changes when a memory expires, without a version or an event."""

    ttl_seconds: Seconds | None = None
    refresh: bool = False
    """Whether it is to live from now on for as long as it was when it was written; nothing there is fine."""


OperationResult = Entry | Memory | Deletion | None
"""What an operation answers: put and touch an Entry, get a Memory or None, delete a Deletion.

A touch that refreshes answers None where nothing is there."""
