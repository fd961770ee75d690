"""The fallback: the child namespaces that an agent reads for a user while their private namespace is empty.

For `agent:x` and alice these are what lies below her private namespace (`agent:x:u:alice:abc123`), her rooms
by session (`agent:x:abc123:u:alice`), and what she wrote in rooms by session that belong to nobody
(`agent:x:abc123`). One grant opens exactly that: see `Rooms.fallback`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from alcove.agents.tools.turn import Room, Turn
from alcove.core.errors import PermissionDenied
from alcove.core.namespace import Namespace
from alcove.core.records import Memory, SearchResults
from alcove.store.searcher import LiveEntry


class ChildRooms(Room):
    """The child namespaces of one agent for one user; all of them are below `namespace`."""

    def entries_by_age(self) -> list[LiveEntry]:
        """All entries that the policy shows, without values, the oldest first."""
        private = Namespace((*self.namespace, "u", self.principal.user_id))
        (grant,) = self.principal.grants
        try:
            entries = self.memories.searcher.list_user_entries(
                self.principal, self.namespace, authors=grant.written_by or (), besides=private
            )
        except PermissionDenied:
            return []
        return sorted(entries, key=_age)

    def newest_entries(self) -> list[LiveEntry]:
        """The newest entry of each key, without values, the newest first."""
        newest = {entry.key: entry for entry in self.entries_by_age()}
        return sorted(newest.values(), key=_age, reverse=True)

    def open(self, entries: Iterable[LiveEntry]) -> Iterator[Memory]:
        """The memories of some entries, in their order."""
        return self.memories.searcher.open_entries(self.principal, self.namespace, entries)

    def get(self, key: str) -> Memory | None:
        """The newest memory under a key, if there is one."""
        return next(self.open(entry for entry in self.newest_entries() if entry.key == key), None)

    def search(self, **arguments: Any) -> SearchResults:
        """Searches the newest memory of each key; takes the arguments of `Memories.search_entries`."""
        return self.memories.searcher.search_entries(
            self.principal, self.namespace, self.newest_entries(), **arguments
        )


def _age(entry: LiveEntry) -> tuple[int, int]:
    return entry.written_at, entry.seq


def child_rooms(turn: Turn) -> ChildRooms | None:
    """The child namespaces of a turn; None where an agent has no fallback."""
    fallback = turn.rooms.fallback
    if fallback is None:
        return None
    return ChildRooms(turn.memories, turn.principal_for(fallback), fallback.namespace)
