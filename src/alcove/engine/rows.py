"""What goes into an engine and comes out of it: versions, operations on them, scopes, figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from alcove.core.cursor import MAX_PAGE_BYTES, take_page
from alcove.core.filters import Filter, Params
from alcove.core.records import EventKind

FOR_EVER = 2**63 - 1
"""Later than every moment."""


Spelled = Callable[[Filter, Params], str]
"""A predicate on `versions v` for a filter, whose parameters it adds."""


class Row(NamedTuple):
    """One version as it is stored."""

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
    """When it was written first, for what was brought from elsewhere; `created_at` is the log's own time."""
    ttl: int | None = None
    """How long it was to live when it was written or last touched; None for ever."""
    added_at: int | None = None
    """Since when its key has held something; None where this is the first."""

    @property
    def size(self) -> int:
        """The bytes of what it holds."""
        size = len(self.sealed or b"")
        for text in (self.attributes, self.index_text or ""):
            size += len(text) if text.isascii() else len(text.encode())
        return size

    @property
    def written_at(self) -> int:
        return self.created_at if self.original_at is None else self.original_at


def some_rows(
    found: Iterable[tuple[Any, ...]], limit: int, *, most: int = MAX_PAGE_BYTES
) -> tuple[list[Row], bool]:
    """The first rows, as many as one answer may have; whether there are more."""
    return take_page(map(Row._make, found), limit, most=most)


class Writer(NamedTuple):
    """Who a version is written by."""

    user: str | None
    client: str | None
    agent: str | None


class PutRow(NamedTuple):
    """A sealed memory to store; `expected` is a revision, 0 for absent, None for any."""

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
    """When it expires, for what is brought with its expiry; `ttl` counts from the write."""
    original_at: int | None = None
    """When it was written first, for what is brought with that; a time to come is not believed."""
    added_at: int | None = None
    """The same of the first version of its key, if that is not there."""


class GetRow(NamedTuple):
    ns: bytes
    key: bytes


class DeleteRow(NamedTuple):
    ns: bytes
    key: bytes
    writer: Writer
    expected: int | None


class TouchRow(NamedTuple):
    """A new expiry, or once more the time to live that the memory was written with."""

    ns: bytes
    key: bytes
    ttl: int | None
    refresh: bool


class EvictRow(NamedTuple):
    """Ends the oldest memory of a namespace that has no room for a new key: it holds `most` or more."""

    ns: bytes
    key: bytes
    writer: Writer
    most: int


RowOperation = PutRow | GetRow | DeleteRow | TouchRow | EvictRow


class IdempotentRequest(NamedTuple):
    """A request to be done once: its answer is sealed inside the transaction and kept for a day."""

    user: str
    token: bytes
    data_key: int
    seal: Callable[[Sequence[Row | None]], bytes]


class KeptAnswer(NamedTuple):
    """The sealed answer that an earlier request with the same token got."""

    data_key: int
    sealed: bytes


Outcome = list[Row | None] | KeptAnswer
"""What a transaction answers: a row an operation, or what an earlier request got."""


class DataKey(NamedTuple):
    """A subject's data key, wrapped by the key-encryption key `wrapped_by`."""

    id: int
    subject: str
    wrapped: bytes
    wrapped_by: str


class LiveKey(NamedTuple):
    """What a key holds now, without its content."""

    seq: int
    ns: bytes
    key: bytes
    revision: int
    written_at: int


class Fingerprint(NamedTuple):
    """What only the same live rows have: of one namespace, and of two keys elsewhere.

    Versions are numbered as they come, and none comes back. So of two sets of live ones that are as many, the
    later one has the greater sum, unless they are the same.
    """

    version: int
    """Of the newest document."""
    position: int
    """Of the last version there is."""
    state: bytes | None
    rolling: bytes | None
    """The ids of what is live at the two keys."""
    live: int
    total: int
    """How many are live in the namespace, and the sum of their numbers."""
    newest_at: int
    """When the last of them was written: a restored store numbers again what it lost."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which rows a read may touch: a subtree, narrowed by the policy and by the caller's filter."""

    low: bytes
    high: bytes
    policy: Filter = field(default_factory=Filter)
    owner: str | None = None
    """When set, rooms that belong to anybody else are left out."""
    unowned: bool = False
    """Whether rooms that belong to anybody at all are left out."""
    written_by: tuple[str | None, ...] | None = None
    """When set, only what one of these wrote; None among them stands for what has no author."""
    unowned_written_by: tuple[str | None, ...] | None = None
    """The same for rooms that belong to nobody; what somebody owns is not judged by it."""
    unindexed: bool = False
    """Whether only what has no index text is meant."""
    filter: Filter = field(default_factory=Filter)

    def sql(self, params: Params, policy: Spelled = Filter.policy_sql, asked: Spelled = Filter.sql) -> str:
        """What of the subtree may be seen, and was asked for, as a predicate on `versions v`.

        `policy` and `asked` spell the conditions of either as the database is asked them.
        """
        parts = [policy(self.policy, params)]
        if self.unowned:
            parts.append("v.owner IS NULL")
        if self.owner is not None:
            parts.append("(v.owner IS NULL OR v.owner = ?)")
            params.append(self.owner)
        if self.written_by is not None:
            parts.append(f"({_authors(self.written_by, params)})")
        if self.unowned_written_by is not None:
            parts.append(f"(v.owner IS NOT NULL OR {_authors(self.unowned_written_by, params)})")
        if self.unindexed:
            parts.append("v.index_text IS NULL")
        parts.append(asked(self.filter, params))
        return " AND ".join(parts)


def _authors(users: tuple[str | None, ...], params: Params) -> str:
    """That one of these users wrote a version, as a predicate on `versions v`."""
    # NULL as well, which equals nothing here: PostgreSQL refuses an empty list.
    names = [*filter(None, users), None]
    params.extend(names)
    return f"v.user IN ({', '.join('?' * len(names))}){' OR v.user IS NULL' * (None in users)}"


class Summary(NamedTuple):
    """A store in figures."""

    memories: int
    versions: int
    last_seq: int
    wipes: int
    scrubbed: int


class Copied(NamedTuple):
    """How far a copy is, in pages; the last one has the figures of the moment that was copied."""

    done: int
    total: int
    summary: Summary | None = None


class DecidedByOlder(Exception):
    """A write was decided by rules that others have replaced since; decide again and retry."""


class DataKeyGone(Exception):
    """A write was sealed with a data key that has been destroyed since; seal again and retry."""


class TextToIndex(NamedTuple):
    """A version whose `index` text wants vectors, how often that was tried, and from where on."""

    seq: int
    index_text: str
    tries: int = 0
    field: int = 0
    window: int = 0


class Embedded(NamedTuple):
    """Vectors of a text, or of the next piece of it: its bytes, and the field and window after it, if any."""

    text: TextToIndex
    body: bytes
    size: int
    rest: tuple[int, int] | None


class Text(NamedTuple):
    """A live version's text as it is searched; `vectors` is None while it waits for them."""

    seq: int
    ns: bytes
    created_at: int
    expires_at: int | None
    index_text: str
    vectors: bytes | None


class IndexState(NamedTuple):
    """How far a store has come; two equal states mean that nothing a search can see has changed."""

    seq: int
    vectors: int
    touches: int
    erased: int
    serving: str | None


class SubtreeTooLarge(Exception):
    """The texts and vectors of a subtree are more than the caller can hold."""


class Change(NamedTuple):
    """What happened to a subtree's texts since a state."""

    state: IndexState
    came: list[Text]
    """Those that came or got their vectors."""
    superseded: list[int]
    """Versions that are live no longer, because others took over."""
    live: list[int] | None
    """Every version that is live, where something was erased, of which the log says nothing."""
    expiries: list[tuple[int, int | None]]
    """When the versions expire whose expiry was changed."""


class IndexStatus(NamedTuple):
    waiting: int
    parked: int
    indexed: int
    oldest: int | None
    """When the text was written that has waited longest."""


class Person(NamedTuple):
    """Whom a question or an erasure is about."""

    user: str
    """Empty for somebody of whom only the pseudonym is known."""
    subject: str
    """Of their data key."""
    pseudonym: str
    older: Sequence[tuple[bytes, bytes]] = ()
    """Ranges of namespaces: what they wrote there into rooms without an owner is theirs."""
    authorless: bool = False
    """Whether what nobody signed in those rooms is theirs, too."""
    rooms: Sequence[bytes] = ()
    """Namespaces that go with them as a whole."""


class HeldRow(NamedTuple):
    """What one namespace holds of a person; it is their `own`, or one of others that they wrote to."""

    own: bool
    ns: bytes
    memories: int
    versions: int
    bytes: int
    first: int
    last: int


class Wiped(NamedTuple):
    """What a wipe removed from the engine, and what it left."""

    removed: dict[str, int]
    """How many memories, versions, vectors, replays (answers kept for repeated requests) and API keys."""
    key_destroyed: bool
    shared: int
    """How many versions in rooms of others it changed."""
    generation: int
    """Which its scrub must reach."""
    known: bool
    """Whether there was anything of this person."""
    moment: int
    position: int
    """How far the log was; nothing that was erased is later."""
    rooms: list[bytes]
    """Rooms without an owner out of which it took what the person wrote."""
    left: list[HeldRow]
    """What stays in rooms of others."""


class AuditRow(NamedTuple):
    """One entry of the audit log; `subject` is a pseudonym, `details` JSON without content."""

    seq: int
    at: int
    actor: str | None
    action: str
    subject: str | None
    details: str
