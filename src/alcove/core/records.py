"""Records that calls take and return: memories, their history, operations of a batch, and administration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from alcove.core.namespace import Namespace
from alcove.core.principal import JSON

EventKind = Literal["add", "update", "delete", "expired"]
SearchMode = Literal["hybrid", "semantic", "keyword"]
SharedHandling = Literal["keep", "anonymise", "remove"]
NamespaceLike = Sequence[str] | str
"""A namespace in a call: a sequence of segments, or text such as `user:alice:notes`."""
TimeLike = datetime | str
"""A time in a call: an aware datetime, or RFC 3339 text."""
IndexSpec = Mapping[str, str] | Sequence[str] | bool
"""The index texts of a memory: texts by field, dotted paths into its value, or True for all its texts."""
MAX_KEY_BYTES = 1024
Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)]
MAX_TTL_SECONDS = 100 * 366 * 86_400
Seconds = Annotated[
    int, Meta(ge=0, le=MAX_TTL_SECONDS, description="Seconds until it expires; never, if 0 or left out.")
]
Revision = Annotated[int, Meta(ge=0, description="The revision that must be there; 0 means none.")]
Query = Annotated[str, Meta(min_length=1, description="What to look for, in words.")]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Offset = Annotated[int, Meta(ge=0, description="How many of the first to leave out.")]
AfterCursor = Annotated[str, Meta(description="Where an earlier answer to the same request ended.")]
KINDS: tuple[EventKind, ...] = ("add", "update", "delete", "expired")


# Memories


class Author(Struct, frozen=True, gc=False):
    """Who wrote a version: the user, the client they came through, the agent that acted for them."""

    user: str | None = None
    client: str | None = None
    agent: str | None = None


class Caller(Struct, frozen=True, kw_only=True):
    """The user, client and roles that a call is made with."""

    user: str
    client: str | None
    roles: list[str]


class Entry(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A memory without its value: what a write returns and what a list contains."""

    id: str
    namespace: Namespace
    key: str
    attributes: dict[str, JSON]
    revision: int
    created_at: datetime
    """When this version was written."""
    added_at: datetime
    """When the key was first written, since it was last empty."""
    expires_at: datetime | None
    ttl_seconds: int | None = None
    """Its time to live when it was written or last touched; None if it never expires."""
    indexed: bool | None = None
    """After a write with `wait_for_index`: whether a search by meaning finds it. None otherwise."""


class RankingSignal(Struct, frozen=True, gc=False, omit_defaults=True):
    """One signal of the ranking of a hit: its rank by this signal alone, and what it added to the score.

    `rules` contains the numbers that its weight follows from; they are the same for all hits of a search.
    """

    rank: int
    score: float
    rules: dict[str, float] = {}


class Memory(Entry, frozen=True, kw_only=True, gc=False):
    """A memory with its value, its index texts and its author."""

    value: dict[str, JSON]
    index: dict[str, str]
    written_by: Author
    score: float | None
    """Similarity to the query: max(0, cosine); None without a query, or if it is not embedded yet."""
    relevance: float | None = None
    """How likely it is to answer the query, from 0 to 1; None without a query."""
    explain: dict[str, RankingSignal] | None = None
    similarity: float | None = None
    """The cosine itself, which may be negative; None if it was not requested, or if `score` is None."""


class SearchResults(list[Memory]):
    """The hits of a search, best first.

    `degraded`: why the results are worse than they could be, if they are.
    `unindexed`: how many memories no query can find, because they have no index text; counted up to a
    thousand, if the search found less than its limit.
    `next_offset`: where to continue, if the page was full before the limit.
    `after_cursor`: where to continue a search without a query, if there is more.
    `namespace_prefix`: where the search looked, if the policy narrowed the caller's prefix.
    """

    degraded: str | None = None
    unindexed: int | None = None
    next_offset: int | None = None
    after_cursor: str | None = None
    namespace_prefix: Namespace | None = None


class Deletion(Struct, frozen=True, kw_only=True):
    """The result of a delete; `revision` is the tombstone's, None if nothing was there."""

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

    `truncated_before` is set if the caller's cursor is older than the retained history: events before that
    moment may be missing from this page. `more` says that there are later events.
    """

    events: list[Event]
    after_cursor: str
    truncated_before: datetime | None = None
    more: bool = False


class SweepResult(Struct, frozen=True, kw_only=True):
    """The counts of a sweep: expiries recorded, memories beyond their maximum age, old versions removed."""

    expired: int
    aged: int
    purged: int


# Operations of a batch


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
    """A put of an exported memory: it keeps its times and, for an admin, its author."""

    created_at: datetime | None = None
    added_at: datetime | None = None
    expires_at: datetime | None = None
    written_by: Author | None = None


KeyBinding = tuple[int | None, int]
"""The id of a user's data key; without one, None and how many wipes there have been."""


class DeferredPut(Put, frozen=True, kw_only=True, tag="deferred"):
    """A put of data that was gathered earlier for the room's owner; KeyDestroyed if they were wiped since."""

    bound: KeyBinding | None
    """What `Memories.key_binding` returned when the data was gathered; None if nothing was awaited."""


class Get(BatchOperation, frozen=True, tag="get"):
    pass


class EvictOldest(Get, frozen=True, kw_only=True, tag="evict"):
    """Deletes and returns the oldest memory of a namespace that holds `most`, if its own key is new."""

    most: int


class Delete(BatchOperation, frozen=True, tag="delete"):
    expected_revision: Revision | None = None


class Touch(BatchOperation, frozen=True, tag="touch"):
    """Changes when a memory expires, without a version or an event."""

    ttl_seconds: Seconds | None = None
    refresh: bool = False
    """Whether to start its original time to live anew; a memory that is not there is no error then."""


OperationResult = Entry | Memory | Deletion | None
"""The result of an operation: an Entry of a put or touch, a Memory or None of a get, a Deletion of a delete.

A touch that refreshes returns None if there is no memory."""


# Conversations


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A message of a conversation, as chat APIs have it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    """None only if there are tool calls."""
    tool_calls: list[dict[str, Any]] = []
    """As OpenAI's chat API has them: `{"id", "type": "function", "function": {"name", "arguments"}}`."""
    tool_call_id: str | None = None
    """In a tool's answer: the call that it answers."""
    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None
    """The speaker, if the role alone does not identify them."""
    at: Annotated[datetime, Meta(tz=True)] | None = None
    """When the message was sent."""
    original: list[dict[str, Any]] = []
    """A framework's own form of this message, to return it unchanged; models never get it."""


# A user's data


class NamespaceSize(Struct, frozen=True, kw_only=True):
    """How much of a user's data a namespace holds."""

    namespace: Namespace
    memories: int
    versions: int
    bytes: int


class PersonalData(Struct, frozen=True, kw_only=True):
    """How much a store holds about a user; `shared` counts the versions they wrote into rooms of others.

    Versions that a wipe made anonymous are counted until a wipe removes them.
    """

    user: str
    memories: int
    versions: int
    bytes: int
    shared: int
    api_keys: int
    key: bool
    """Whether there is a data key that decrypts what they own."""
    first_written: datetime | None
    last_written: datetime | None
    namespaces: list[NamespaceSize]
    shared_rooms: list[NamespaceSize]


class ReviewPage(Struct, frozen=True):
    """Memories of a user to review, in the order in which they were written."""

    items: list[Memory]
    after_cursor: str


class ExportedVersion(Version, frozen=True, kw_only=True):
    """A version in the export of a user's data."""

    current: bool
    """Whether it is the current version of its key; otherwise it is history."""


class Residue(Struct, frozen=True):
    """A place outside of the store's tables where bytes of erased data stay for a while."""

    where: str
    until: str
    """What removes it in time."""
    command: str
    """The SQL with which a superuser of the database removes it now."""
    in_data_files: bool = False
    """Whether these are files of the database itself; then the receipt does not say `scrubbed`."""


class Receipt(Struct, frozen=True, kw_only=True):
    """What a wipe removed, with counts, and what it left."""

    user: str
    removed: dict[str, int]
    key_destroyed: bool
    shared: dict[str, int]
    """How many versions in rooms of others were kept, made anonymous or removed."""
    shared_left: list[NamespaceSize] = []
    """The rooms of others in which some of them stay, with or without their author's name."""
    wiped_at: datetime | None = None
    """None for a dry run, which erases nothing."""
    scrubbed: bool
    """Whether no byte of the removed data is left in the file and its log; in PostgreSQL, in data files."""
    remains: list[Residue] = []
    """Where bytes of it stay for now, until when, and how to remove them; empty for a store in a file."""


# Administration


class Policies(Struct, frozen=True):
    """The active policies; `stored` names those that were put and replace the folder's or built-in ones."""

    authz: str
    attributes: str
    filter: str
    version: int
    stored: list[str]


class ParkedItem(Struct, frozen=True):
    """A memory that the indexer has set aside, because embedding its text failed again and again."""

    namespace: Namespace
    key: str
    tries: int
    error: str


class IndexState(Struct, frozen=True, kw_only=True):
    """The state of search by meaning; `serving` is the model whose vectors are searched."""

    embedder: str | None
    serving: str | None
    indexed: int
    waiting: int
    oldest_waiting: datetime | None
    parked: int
    parked_items: list[ParkedItem]


class KeyInUse(Struct, frozen=True):
    """A key-encryption key and how many data keys it wraps."""

    id: str
    active: bool
    data_keys: int


class Keys(Struct, frozen=True):
    """The key-encryption keys, by their ids; never the keys themselves."""

    active: str
    keys: list[KeyInUse]


class RootSize(Struct, frozen=True):
    """How much there is below a root segment."""

    root: str
    memories: int
    versions: int
    bytes: int


class AgentUse(Struct, frozen=True, kw_only=True):
    """How many turns an agent had with an LLM, and the tokens they took."""

    agent: str
    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Stats(Struct, frozen=True):
    """The size of a store, in total and by root segment; bytes are those of encrypted values."""

    memories: int
    versions: int
    bytes: int
    roots: list[RootSize]
    llm: list[AgentUse] = []
    """How agents used an LLM in the last 90 days."""


class ApiKey(Struct, frozen=True):
    """An API key, without the key itself."""

    id: str
    client: str
    user: str | None
    roles: list[str]
    trusted: bool
    created_at: datetime


class AuditEntry(Struct, frozen=True):
    """Who did what; `subject` is a pseudonym of the user it was done to, always the same for one user.

    After a wipe of the `actor`, a pseudonym replaces their name, too.
    """

    at: datetime
    actor: str | None
    action: str
    subject: str | None
    details: dict[str, Any]


class AuditPage(Struct, frozen=True):
    """Audit entries, newest first, and the cursor of the next page; None after the last."""

    entries: list[AuditEntry]
    after_cursor: str | None
