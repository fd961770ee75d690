"""The rows that a read may touch: a subtree, narrowed by the policy and by the caller's filter."""

from __future__ import annotations

from dataclasses import dataclass, field

from alcove.core.filters import Filter


@dataclass(frozen=True, slots=True)
class Scope:
    """A range of namespaces, and conditions on the versions in it; `filter_sql` compiles it."""

    low: bytes
    high: bytes
    policy: Filter = field(default_factory=Filter)
    owner: str | None = None
    """If set, rooms that belong to anybody else are left out."""
    unowned: bool = False
    """Whether rooms that belong to anybody are left out."""
    written_by: tuple[str | None, ...] | None = None
    """If set, only what one of these users wrote; None among them stands for no author."""
    unowned_written_by: tuple[str | None, ...] | None = None
    """The same, but only for rooms that belong to nobody."""
    unindexed: bool = False
    """Whether only versions without an index text count."""
    filter: Filter = field(default_factory=Filter)
