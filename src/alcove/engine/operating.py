"""What operating a store and erasing from it ask of every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol


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

    memories: int
    versions: int
    vectors: int
    replays: int
    api_keys: int
    keys: int
    shared: int
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


class Document(NamedTuple):
    """Policies or settings as they were put, as JSON."""

    version: int
    at: int
    actor: str | None
    body: str


class RootStats(NamedTuple):
    """What lies under one root segment."""

    ns: bytes
    memories: int
    versions: int
    bytes: int


class Administration(Protocol):
    """What operating asks of an engine."""

    def add_audit(self, entries: Sequence[AuditRow]) -> None: ...
    def audit(
        self, *, before: int, action: str | None, actor: str | None, subject: str | None, limit: int
    ) -> list[AuditRow]: ...
    def purge_audit(self, *, before: int) -> int: ...

    def version(self) -> int:
        """The version of the newest document; asked before every decision, so it must be quick."""
        ...

    def document(self, kind: str) -> Document | None: ...
    def add_document(self, kind: str, actor: str, body: str) -> int: ...

    def held(self, person: Person) -> list[HeldRow]:
        """What there is of a person, room by room."""
        ...

    def of_person(
        self, person: Person, *, live: bool, after: int = 0, id: bytes | None = None
    ) -> list[tuple[int, bool]]:
        """The versions of a person, in the order of the log, and whether each is what its key holds now."""
        ...

    def private_rooms(self) -> list[str]:
        """Templates of private rooms, in the words of who added them."""
        ...

    def add_private_rooms(self, templates: Sequence[str]) -> None: ...
    def stats(self) -> list[RootStats]: ...
    def keys_by_wrapper(self) -> list[tuple[str, int]]: ...


class Erasure(Protocol):
    """What must be gone; `until` a position, so that a restored backup keeps what came after a wipe."""

    def wipe(
        self,
        person: Person,
        *,
        shared: str,
        noted: Callable[[Wiped], None],
        until: int = ...,
        rooms: Sequence[bytes] = (),
        dry_run: bool = False,
    ) -> Wiped:
        """Erases a person, and all that is in these rooms. `noted` is told before anything can last, unless
        nothing was known of them; if it raises, nothing is erased. With `dry_run` nothing is, either.
        """
        ...

    def clean(
        self,
        ns: bytes,
        key: bytes,
        *,
        until: int,
        attributes: str = "{}",
        noted: Callable[[int], None] = lambda moment: None,
    ) -> int:
        """Takes away what a key held, live or not; how many versions that were. Tombstones stay, with these
        attributes; `noted` is told the moment before anything can last, if there is anything to take away.
        """
        ...

    def clear(self, ns: bytes) -> int:
        """Takes everything out of one namespace without a trace: revisions start again at 1."""
        ...

    def users(self) -> Iterator[str]:
        """Everybody of whom there is anything."""
        ...

    def pseudonyms(self) -> list[str]:
        """Those under which something stays that a wipe left without its author."""
        ...

    def common_rooms(self) -> list[bytes]:
        """Every namespace without an owner."""
        ...

    def position(self, moment: int) -> int:
        """How far the log was at a moment."""
        ...

    def wipes(self) -> int:
        """How often something was erased."""
        ...

    def skip(self, beyond: int, numbers: int) -> None:
        """Leaves sequence numbers out, which a lost future of this store may have used."""
        ...
