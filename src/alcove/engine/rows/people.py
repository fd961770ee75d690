"""Rows about a person: who is meant, what the store holds about them, what a wipe removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Person(NamedTuple):
    """Who a query about personal data, or an erasure, is about."""

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
    """What one namespace holds about a person; `own` if it is theirs, not one that they wrote to."""

    own: bool
    ns: bytes
    memories: int
    versions: int
    bytes: int
    first: int
    last: int


class WipeResult(NamedTuple):
    """What a wipe removed from the engine, and what it left."""

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
    """The last sequence number at the time; everything that was erased is at or before it."""
    rooms: list[bytes]
    """Rooms without an owner from which it took what the person wrote."""
    remaining: list[PersonalDataRow]
    """What stays in rooms of others."""
