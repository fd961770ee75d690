"""What every engine does: the interface between the one road and the place where the data lies.

An engine stores rows and knows nothing of policy or of what is inside a sealed value. It assigns
sequence, revision and time inside the transaction, so that all three only ever grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from alcove.core.namespace import Namespace
from alcove.core.records import Kind
from alcove.engine import rows
from alcove.engine.rows import FOR_EVER, DataKey, Row, Scope
from alcove.store.admin_records import ApiKey, ParkedItem, Root

Findings = Iterator[tuple[str, int, list[str]]]
"""Checks: what each compares, how many it compared, and what it found."""

Between = tuple[int | None, int | None]
"""After the first moment and before the second; None is no bound."""


class Observer(Protocol):
    """Told what an engine does, often with a lock in hand: it must be quick and never raise."""

    def submitted(self) -> None:
        """A write waits for a commit from now on; calls of this and of `settled` never overlap."""

    def settled(self, writes: int, *, committed: bool) -> None:
        """One commit has ended for this many writes, on the disk or with an error for all of them."""

    def expired(self, memories: int, *, which: str) -> None:
        """A sweep has recorded the end of this many memories: `due` by their own time, or `aged`."""


class Unobserved:
    """Nobody counts."""

    def submitted(self) -> None: ...
    def settled(self, writes: int, *, committed: bool) -> None: ...
    def expired(self, memories: int, *, which: str) -> None: ...


class Pending(Protocol):
    """A submitted transaction: a thread blocks until it is on the disk, an event loop has a thread do so."""

    def wait(self) -> None:
        """Blocks until it is done or refused."""

    def attend(self, signal: Callable[[], None]) -> None:
        """For who must not block: `signal` is called when it is done, and when `settle` can bring it on."""

    @property
    def done(self) -> bool:
        """Whether it is done or refused."""

    def settle(self) -> bool:
        """Does what waits, unless somebody else does; whether this one is done or refused."""

    def result(self) -> rows.Outcome:
        """Waits for the commit: a row an operation, or the answer an earlier request got."""


class DataKeys(Protocol):
    """Wrapped data keys, as a vault keeps them."""

    def data_key(self, *, subject: str | None = None, id: int | None = None) -> DataKey | None: ...
    def data_keys(self, *, not_wrapped_by: str | None = None, limit: int = -1) -> list[DataKey]: ...
    def add_data_key(
        self, subject: str, wrapped: bytes, wrapped_by: str, wipes: int | None = None
    ) -> DataKey | None:
        """Adds a key, or returns the one that was added first; with `wipes`, only if there were no more."""

    def rewrap(self, keys: Sequence[DataKey]) -> None: ...


class SearchIndex(Protocol):
    """What indexing and searching ask of an engine; each method is told of beside its implementation."""

    def claim(self, *, now: int, until: int, limit: int, size: int) -> list[rows.TextToIndex]: ...
    def next_due(self) -> int | None: ...
    def pieces(self, seq: int) -> list[bytes]: ...
    def store(self, embedder: str, pieces: Sequence[rows.Embedded]) -> bool: ...
    def keep(self, embedder: str, bodies: Sequence[tuple[int, bytes]]) -> None: ...
    def postpone(self, seqs: Sequence[int], due: int | None, error: str, *, counted: bool = True) -> None: ...
    def retry(self) -> int: ...
    def waits(self, seq: int) -> tuple[bool, str | None]: ...
    def status(self, embedder: str) -> rows.IndexStatus: ...
    def parked(self) -> list[ParkedItem]: ...
    def serving(self, first: str | None = None) -> str | None: ...
    def unembedded(self, embedder: str, *, after: int, limit: int) -> list[rows.TextToIndex]: ...
    def switch(self, embedder: str, parked: Mapping[int, str]) -> bool: ...
    def some_vectors(self, embedder: str) -> bytes | None: ...
    def drop(self, embedder: str) -> None: ...
    def check(self) -> Findings: ...
    def state(self) -> rows.IndexState: ...
    def owned(self, scope: Scope) -> list[Namespace]: ...
    def texts(self, scope: Scope, embedder: str, most: int) -> tuple[rows.IndexState, list[rows.Text]]: ...
    def changes(self, scope: Scope, embedder: str, since: rows.IndexState) -> rows.Change: ...
    def fitting(self, scope: Scope, after: int) -> list[int]: ...
    def found(
        self, scope: Scope, seqs: Sequence[int], *, now: int, at: int | None = None
    ) -> Iterator[Row]: ...


class Administration(Protocol):
    """What operating a store asks of an engine."""

    def add_audit(self, entries: Sequence[rows.AuditRow]) -> None: ...
    def audit(
        self, *, before: int, action: str | None, actor: str | None, subject: str | None, limit: int
    ) -> list[rows.AuditRow]: ...
    def purge_audit(self, *, before: int) -> int: ...

    def version(self) -> int:
        """The version of the newest document; asked before every decision, so it must be quick."""

    def document(self, kind: str) -> tuple[int, str] | None:
        """The version and the JSON of what was put last."""

    def add_document(self, kind: str, actor: str, body: str) -> int: ...

    def held(self, person: rows.Person) -> list[rows.HeldRow]:
        """What there is of a person, room by room."""

    def of_person(
        self, person: rows.Person, *, live: bool, after: int = 0, id: bytes | None = None
    ) -> list[tuple[int, bool]]:
        """The versions of a person, in the order of the log, and whether each is what its key holds now."""

    def private_rooms(self) -> list[str]:
        """Templates of private rooms, in the words of who added them."""

    def add_private_rooms(self, templates: Sequence[str]) -> None: ...
    def stats(self) -> list[Root]: ...
    def keys_by_wrapper(self) -> list[tuple[str, int]]: ...

    def add_api_key(self, key: ApiKey, digest: bytes) -> None: ...
    def api_key(self, id: str) -> tuple[ApiKey, bytes] | None: ...
    def api_keys(self) -> list[ApiKey]: ...
    def remove_api_key(self, id: str) -> bool: ...


class Erasure(Protocol):
    """What must be gone; `until` a position, so that a restored backup keeps what came after a wipe."""

    def wipe(
        self, person: rows.Person, *, shared: str, note: Callable[[rows.Wiped], None] | None, until: int = ...
    ) -> rows.Wiped:
        """Erases a person. `note` is called before anything can last, unless nothing was known of them; if it
        raises, nothing is erased. Without it nothing is, either: the answer says what would be.
        """

    def clean(
        self, ns: bytes, key: bytes, *, until: int, attributes: str, note: Callable[[int], None]
    ) -> int:
        """Takes away what a key held, live or not; how many versions that were. Tombstones stay, with these
        attributes; `note` is told the moment before anything can last, if there is anything to take away.
        """

    def clear(self, ns: bytes) -> int:
        """Takes everything out of one namespace without a trace: revisions start again at 1."""

    def scrub(self, generation: int | None = None) -> bool:
        """Makes sure that no byte is left of what was erased until a wipe, or until now."""

    def scrubbed(self) -> int:
        """The last wipe whose bytes are gone from the file."""

    def wipes(self) -> int:
        """How often something was erased."""

    def users(self) -> Iterator[str]:
        """Everybody of whom there is anything."""

    def pseudonyms(self) -> list[str]:
        """Those under which something stays that a wipe left without its author."""

    def common_rooms(self) -> list[bytes]:
        """Every namespace without an owner."""

    def position(self, moment: int) -> int:
        """How far the log was at a moment."""

    def skip(self, beyond: int, numbers: int) -> None:
        """Leaves sequence numbers out, which a lost future of this store may have used."""


class Engine(DataKeys, Protocol):
    """A durable, ordered store of versions. Safe to use from many threads."""

    admin: Administration
    index: SearchIndex
    erasure: Erasure

    # Writing: every submit is one all-or-nothing transaction, and many share one commit.
    def submit(
        self, operations: Sequence[rows.RowOperation], once: rows.IdempotentRequest | None, user: str | None
    ) -> Pending:
        """The user's submissions are committed in order, and those of several users in turn."""

    # Reading. `at` is a moment: what was current then. None reads what is current at `now`.
    def get(self, ns: bytes, key: bytes, *, now: int, at: int | None = None) -> Row | None: ...
    def read(self, ns: bytes, key: bytes, *, now: int) -> tuple[int, Row | None]:
        """The version of the newest document, and what is at a key."""

    def scan(self, scope: Scope, *, now: int, at: int | None = None) -> Iterator[Row]: ...
    def scan_page(
        self, scope: Scope, *, after: tuple[bytes, bytes] | None, now: int, limit: int
    ) -> list[Row]: ...
    def history(self, ns: bytes, key: bytes, *, below: int = FOR_EVER) -> Iterator[Row]:
        """The versions of a key below a revision, newest first."""

    def namespaces(self, scope: Scope, *, now: int, owner: str | None = None) -> Iterator[bytes]:
        """In order; with an owner, only theirs, and at the cost of those."""

    def events(
        self, scope: Scope, *, position: int, kinds: Sequence[Kind], between: Between, limit: int, most: int
    ) -> tuple[list[Row], bool]:
        """Some events after a position and inside a time, and whether there are more."""

    def count(self, scope: Scope, *, now: int) -> int: ...
    def last_seq(self) -> int: ...
    def horizon(self) -> tuple[int, int]:
        """The earliest moment and the highest removed sequence that retention has left behind."""

    # Living and dying. Each call does at most `limit` rows in a transaction of its own.
    def expire(self, *, now: int, limit: int) -> int: ...
    def expire_older(self, low: bytes, high: bytes, *, than: int, limit: int) -> int: ...
    def purge(self, *, before: int, limit: int) -> int: ...
    def purge_kept_answers(self, *, before: int) -> int: ...

    # Inspection.
    def copy(self, to: Path) -> Iterator[rows.Copied]:
        """Writes one moment of the store into a file, while others go on writing to the store."""

    def every_version(self) -> Iterator[Row]: ...
    def versions(self, seqs: Sequence[int]) -> list[Row]:
        """Those of some versions that are still there, in the order of the log."""

    def check(self) -> Findings:
        """Each structural check."""

    def notices(self) -> Findings:
        """The same for what is odd without being wrong."""

    def close(self) -> None: ...
