"""The fallback: the child namespaces that an agent reads for a user while their private namespace is empty.

For `agent:x` and alice these are what lies below her private namespace (`agent:x:u:alice:abc123`), her rooms
by session (`agent:x:abc123:u:alice`), and what she wrote in rooms by session that belong to nobody
(`agent:x:abc123`). One grant opens exactly that: see `Rooms.fallback`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from alcove.agents.tools.base import Room, Turn
from alcove.core.errors import PermissionDenied
from alcove.core.namespace import Namespace
from alcove.core.records import Memory, SearchResults
from alcove.store.finding import LiveEntry


class ChildRooms(Room):
    """The child namespaces of one agent for one user; `at` is the namespace that all of them lie below."""

    def entries_by_age(self) -> list[LiveEntry]:
        """Everything in them, without values, the oldest first; none that the policy does not show."""
        private = Namespace((*self.at, "u", self.who.user_id))
        (grant,) = self.who.grants
        try:
            found = self.memories.list_user_entries(
                self.who, self.at, authors=grant.written_by or (), besides=private
            )
        except PermissionDenied:
            return []
        return sorted(found, key=lambda each: (each.written_at, each.seq))

    def newest_entries(self) -> list[LiveEntry]:
        """The newest entry of each key, without values, the newest first."""
        newest = {each.key: each for each in self.entries_by_age()}
        return sorted(newest.values(), key=lambda each: (each.written_at, each.seq), reverse=True)

    def open(self, entries: Iterable[LiveEntry]) -> Iterator[Memory]:
        """The memories of some entries, in their order."""
        return self.memories.open_entries(self.who, self.at, entries)

    def get(self, key: str) -> Memory | None:
        """The newest memory under a key, if there is one."""
        return next(self.open(each for each in self.newest_entries() if each.key == key), None)

    def search(self, **asked: Any) -> SearchResults:
        """Searches the newest memory of each key; `asked` are arguments of `Memories.search_entries`."""
        return self.memories.search_entries(self.who, self.at, self.newest_entries(), **asked)


def child_rooms(turn: Turn) -> ChildRooms | None:
    """The child namespaces of a turn; None where an agent has no fallback."""
    fallback = turn.rooms.fallback
    if fallback is None:
        return None
    return ChildRooms(turn.memories, turn.within(fallback), fallback.namespace)
