"""What every engine does: the interface between the one road and the place where the data lies.

An engine stores rows and knows nothing of policy or of what is inside a sealed value. It assigns
sequence, revision and time inside the transaction, so that all three only ever grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from alcove.core.namespace import Namespace
from alcove.core.records import Kind
from alcove.engine.operating import Administration, Erasure
from alcove.store.api_keys import ApiKey
from alcove.store.filters import Filter
from alcove.store.portions import MOST_BYTES, portion

FOR_EVER = 2**63 - 1
"""Later than every moment."""


class Row(NamedTuple):
    """One version as it is stored."""

    seq: int
    id: bytes
    ns: bytes
    key: bytes
    kind: Kind
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

    @property
    def size(self) -> int:
        """The bytes of what it holds."""
        texts = (self.index_text or "", self.attributes)
        plain = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
        return len(self.sealed or b"") + plain

    @property
    def written_at(self) -> int:
        return self.created_at if self.original_at is None else self.original_at


def some_rows(
    found: Iterable[tuple[Any, ...]], limit: int, *, most: int = MOST_BYTES
) -> tuple[list[Row], bool]:
    """The first rows, as many as one answer may have; whether there are more."""
    return portion(map(Row._make, found), limit, most=most)


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


class GetRow(NamedTuple):
    ns: bytes
    key: bytes


class DeleteRow(NamedTuple):
    ns: bytes
    key: bytes
    writer: Writer
    expected: int | None


class TouchRow(NamedTuple):
    ns: bytes
    key: bytes
    ttl: int | None


class EvictRow(NamedTuple):
    """Ends the oldest memory of a namespace that has no room for a new key: it holds `most` or more."""

    ns: bytes
    key: bytes
    writer: Writer
    most: int


RowOperation = PutRow | GetRow | DeleteRow | TouchRow | EvictRow


class Replay(NamedTuple):
    """A request to be done once: its answer is sealed inside the transaction and kept for a day."""

    user: str
    token: bytes
    data_key: int
    seal: Callable[[Sequence[Row | None]], bytes]


class Replayed(NamedTuple):
    """The sealed answer that an earlier request with the same token got."""

    data_key: int
    sealed: bytes


class DataKey(NamedTuple):
    """A subject's data key, wrapped by the key-encryption key `wrapped_by`."""

    id: int
    subject: str
    wrapped: bytes
    wrapped_by: str


@dataclass(frozen=True, slots=True)
class Scope:
    """Which rows a read may touch: a subtree, narrowed by the policy and by the caller's filter."""

    low: bytes
    high: bytes
    policy: Filter = field(default_factory=Filter)
    owner: str | None = None
    """When set, rooms that belong to anybody else are left out."""
    common: bool = False
    """When set, rooms that belong to anybody at all are left out."""
    written_by: tuple[str | None, ...] | None = None
    """When set, only what one of these wrote; None among them is nobody."""
    unowned: bool = False
    """Whether rooms that belong to anybody are left out."""
    filter: Filter = field(default_factory=Filter)


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


class DataKeyGone(Exception):
    """A write was sealed with a data key that has been destroyed since; seal again and retry."""


class Waited(Protocol):
    """Something that waits for the disk: a thread blocks for it, an event loop has a thread do so."""

    def wait(self) -> None:
        """Blocks until it is done or refused."""
        ...

    def attend(self, signal: Callable[[], None]) -> None:
        """For who must not block: `signal` is called whenever `settle` is worth a call."""
        ...

    @property
    def done(self) -> bool:
        """Whether it is done or refused."""
        ...

    def settle(self) -> bool:
        """Does what waits, unless somebody else does; whether this one is done or refused."""
        ...


class Pending(Waited, Protocol):
    """A submitted transaction."""

    def result(self) -> list[Row | None] | Replayed:
        """Waits for the commit: a row an operation, or the answer an earlier request got."""
        ...


class TextToIndex(NamedTuple):
    """A version whose `index` text wants vectors, how often that was tried, and from where on."""

    seq: int
    ns: bytes
    index_text: str
    tries: int
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


class Parked(NamedTuple):
    """A text that could not be indexed again and again."""

    seq: int
    ns: bytes
    key: bytes
    tries: int
    error: str | None


class Index(Protocol):
    """What indexing and searching ask of an engine; each method is told of beside its implementation."""

    def claim(self, *, now: int, until: int, limit: int, size: int) -> list[TextToIndex]: ...
    def next_due(self) -> int | None: ...
    def pieces(self, seq: int) -> list[bytes]: ...
    def store(self, embedder: str, pieces: Sequence[Embedded]) -> bool: ...
    def keep(self, embedder: str, bodies: Sequence[tuple[int, bytes]]) -> None: ...
    def postpone(self, seqs: Sequence[int], due: int | None, error: str, *, counted: bool = True) -> None: ...
    def retry(self) -> int: ...
    def waits(self, seq: int) -> tuple[bool, str | None]: ...
    def status(self, embedder: str) -> IndexStatus: ...
    def parked(self) -> list[Parked]: ...
    def serving(self, first: str | None = None) -> str | None: ...
    def unembedded(self, embedder: str, *, after: int, limit: int) -> list[TextToIndex]: ...
    def switch(self, embedder: str, parked: Mapping[int, str]) -> bool: ...
    def some_vectors(self, embedder: str) -> bytes | None: ...
    def drop(self, embedder: str) -> None: ...
    def check(self) -> Iterator[tuple[str, int, list[str]]]: ...
    def state(self) -> IndexState: ...
    def owned(self, scope: Scope) -> list[Namespace]: ...
    def texts(self, scope: Scope, embedder: str, most: int) -> tuple[IndexState, list[Text]]: ...
    def changes(self, scope: Scope, embedder: str, since: IndexState) -> Change: ...
    def fitting(self, scope: Scope, after: int) -> list[int]: ...
    def found(
        self, scope: Scope, seqs: Sequence[int], *, now: int, at: int | None = None
    ) -> Iterator[Row]: ...


class Engine(Protocol):
    """A durable, ordered store of versions. Safe to use from many threads."""

    admin: Administration
    index: Index
    erasure: Erasure

    # Writing: every submit is one all-or-nothing transaction, and many share one commit.
    def submit(
        self, operations: Sequence[RowOperation], replay: Replay | None = None, *, user: str | None = None
    ) -> Pending:
        """The user's submissions are committed in order, and those of several users in turn."""
        ...

    # Reading. `at` is a moment: what was current then. None reads what is current at `now`.
    def get(self, ns: bytes, key: bytes, *, now: int, at: int | None = None) -> Row | None: ...
    def scan(self, scope: Scope, *, now: int, at: int | None = None) -> Iterator[Row]: ...
    def scan_page(
        self, scope: Scope, *, after: tuple[bytes, bytes] | None, now: int, limit: int
    ) -> list[Row]: ...
    def history(self, ns: bytes, key: bytes, *, below: int = FOR_EVER) -> Iterator[Row]:
        """The versions of a key below a revision, newest first."""
        ...

    def namespaces(self, scope: Scope, *, now: int, owner: str | None = None) -> Iterator[bytes]:
        """In order; with an owner, only theirs, and at the cost of those."""
        ...

    def events(
        self,
        scope: Scope,
        *,
        position: int,
        kinds: Sequence[Kind],
        after: int | None,
        before: int | None,
        limit: int,
        most_bytes: int,
    ) -> tuple[list[Row], bool]:
        """Some events, and whether there are more."""
        ...

    def count(self, scope: Scope, *, now: int) -> int: ...
    def last_seq(self) -> int: ...
    def horizon(self) -> tuple[int, int]:
        """The earliest moment and the highest removed sequence that retention has left behind."""
        ...

    # Living and dying. Each call does at most `limit` rows in a transaction of its own.
    def expire(self, *, now: int, limit: int) -> int: ...
    def expire_older(self, low: bytes, high: bytes, *, than: int, limit: int) -> int: ...
    def purge(self, *, before: int, limit: int) -> int: ...
    def purge_replays(self, *, before: int) -> int: ...
    def scrub(self, generation: int | None = None) -> bool: ...
    def scrubbed(self) -> int:
        """The last wipe whose bytes are gone from the file."""
        ...

    # Data keys.
    def data_key(self, *, subject: str | None = None, id: int | None = None) -> DataKey | None: ...
    def data_keys(self, *, not_wrapped_by: str | None = None, limit: int = -1) -> list[DataKey]: ...
    def add_data_key(
        self, subject: str, wrapped: bytes, wrapped_by: str, wipes: int | None = None
    ) -> DataKey | None:
        """Adds a key; with `wipes`, only if there have been no more of them."""
        ...

    def rewrap(self, keys: Sequence[DataKey]) -> None: ...

    # API keys.
    def add_api_key(self, key: ApiKey) -> None: ...
    def api_key(self, id: str) -> ApiKey | None: ...
    def api_keys(self) -> list[ApiKey]: ...
    def remove_api_key(self, id: str) -> bool: ...

    # Inspection.
    def copy(self, to: Path) -> Iterator[Copied]:
        """Writes one moment of the store into a file, while others go on writing to the store."""
        ...

    def every_version(self) -> Iterator[Row]: ...
    def versions(self, seqs: Sequence[int]) -> list[Row]:
        """Those of some versions that are still there, in the order of the log."""
        ...

    def check(self) -> Iterator[tuple[str, int, list[str]]]:
        """Each structural check: what it compares, how many it compared, and what it found wrong."""
        ...

    def notices(self) -> Iterator[tuple[str, int, list[str]]]:
        """The same for what is odd without being wrong."""
        ...

    def close(self) -> None: ...
