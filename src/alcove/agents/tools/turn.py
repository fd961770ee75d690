"""What a tool works with in one turn: the agent's rooms, each with a grant for that room alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from alcove.agents.rooms import Rooms
from alcove.agents.runs import Runs
from alcove.core.cache import Cache
from alcove.core.cursor import take_page
from alcove.core.errors import PermissionDenied
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.records import Entry, Memory, SearchResults
from alcove.store.memories import Memories
from alcove.store.searcher import LiveEntry

if TYPE_CHECKING:
    from alcove.agents.tools.tool import Tool
    from alcove.search.query import ParsedQuery

MAX_TURNS = 10_000
_PAGE = 1000
BUDGET_SPENT = "you have recalled as much as one turn allows: go on with what you have"


class Room(NamedTuple):
    """A namespace that a tool works in, and the agent as a principal with a grant for it alone."""

    memories: Memories
    principal: Principal
    namespace: Namespace

    def get(self, key: str) -> Memory | None:
        """The memory under a key, if there is one."""
        return self.memories.reader.get(self.principal, self.namespace, key)

    def put(self, key: str, value: dict[str, Any], index: dict[str, str]) -> Entry:
        """Stores a value under a key; searches find it by the texts of `index`."""
        return self.memories.writer.put(self.principal, self.namespace, key, value, index=index)

    def delete(self, key: str) -> bool:
        """Deletes a key; False if there was nothing to delete."""
        return self.memories.writer.delete(self.principal, self.namespace, key).deleted

    def search(self, **arguments: Any) -> SearchResults:
        """Searches this room; takes the arguments of `Memories.search`."""
        return self.memories.searcher.search(
            self.principal, self.namespace, **arguments, exact=self._has_owner
        )

    def page(self, limit: int, offset: int) -> SearchResults:
        """Lists the newest memories of this room; `next_offset` is where the next page begins."""
        page = self.search(limit=limit, offset=offset)
        page.next_offset = offset + len(page) if page.after_cursor else None
        return page

    def all_memories(self) -> Iterator[Memory]:
        """All memories of this room."""
        return self.memories.reader.scan(self.principal, self.namespace, exact=self._has_owner)

    def entries(self, *, page_size: int = _PAGE, **arguments: Any) -> Iterator[Entry]:
        """All entries of this room, without the values; takes the arguments of `Searcher.list`."""
        arguments |= {"limit": page_size, "exact": self._has_owner}
        for offset in count(0, page_size):
            page = self.memories.searcher.list(self.principal, self.namespace, offset=offset, **arguments)
            yield from page
            if len(page) < page_size:
                return

    def size(self) -> int:
        """The number of memories in this room."""
        return self.memories.reader.count(self.principal, self.namespace, exact=self._has_owner)

    def search_parsed(self, query: ParsedQuery, **arguments: Any) -> SearchResults:
        """Searches this room for a parsed query; takes the arguments of `Memories.search_parsed`."""
        return self.memories.searcher.search_parsed(
            self.principal, self.namespace, query, **arguments, exact=self._has_owner
        )

    @property
    def _has_owner(self) -> bool:
        """Whether this is a user's room: nothing below such a namespace is part of it."""
        return self.namespace.owner is not None


class ChildRooms(Room):
    """The child namespaces that are read for a user while their private namespace is empty.

    For `agent:x` and alice these are what lies below her private namespace (`agent:x:u:alice:abc123`), her
    rooms by session (`agent:x:abc123:u:alice`), and what she wrote in rooms by session that belong to nobody
    (`agent:x:abc123`). All are below `namespace`, and one grant opens exactly those: see `Rooms.fallback`.
    """

    def entries_by_age(self) -> list[LiveEntry]:
        """All entries that the policy shows, without values, the oldest first."""
        private = Namespace((*self.namespace, "u", self.principal.user_id))
        (grant,) = self.principal.grants
        try:
            entries = self.memories.searcher.list_user_entries(
                self.principal, self.namespace, authors=grant.written_by or (), except_room=private
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
        return next(self.open(entry for entry in self.newest_entries() if entry.key == key), None)

    def search(self, **arguments: Any) -> SearchResults:
        """Searches the newest memory of each key; takes the arguments of `Memories.search_entries`."""
        return self.memories.searcher.search_entries(
            self.principal, self.namespace, self.newest_entries(), **arguments
        )

    def page(self, limit: int, offset: int) -> SearchResults:
        entries = self.newest_entries()[offset : offset + limit + 1]
        memories, has_more = take_answer(self.open(entries), limit)
        page = SearchResults(memories)
        page.next_offset = offset + len(page) if has_more else None
        return page


def _age(entry: LiveEntry) -> tuple[int, int]:
    return entry.written_at, entry.seq


def take_answer(memories: Iterable[Memory], limit: int) -> tuple[list[Memory], bool]:
    """The first memories, up to `limit` and the size of one answer, and whether there are more."""
    return take_page(memories, limit, lambda memory: len(msgspec.json.encode(memory.value)))


class RecallBudget:
    """How many memories each session may still recall in its turn; a context begins a new turn.

    Only numbers are kept, for the last `MAX_TURNS` sessions of this process.
    """

    def __init__(self) -> None:
        self._turns: Cache[tuple[str, str, str | None], list[int]] = Cache(max_entries=MAX_TURNS)
        """The number left in each turn, in a list: a search gives back to the turn it took from."""
        self._mutex = threading.Lock()

    def begin(self, rooms: Rooms, limit: int) -> None:
        """Begins a turn that may recall `limit` memories."""
        self._turns.put((rooms.agent.name, rooms.user, rooms.session_id), [limit])

    def spend(self, rooms: Rooms, limit: int, search: Callable[..., SearchResults]) -> SearchResults:
        """Calls `search` with the `limit` on memories it may find, or with less if less is left."""
        budget = [rooms.agent.memory.long_term.recall_budget]
        turn = self._turns.get((rooms.agent.name, rooms.user, rooms.session_id), budget)
        with self._mutex:
            max_hits = min(limit, turn[0])
            turn[0] -= max_hits
        hits = SearchResults()
        hits.degraded = BUDGET_SPENT
        try:
            hits = search(limit=max_hits) if max_hits else hits
        finally:
            with self._mutex:
                turn[0] += max_hits - len(hits)
        return hits


@dataclass(frozen=True)
class Turn:
    """Everything a tool works with, bound before the model answers, so that no argument can change it."""

    memories: Memories
    runs: Runs
    rooms: Rooms
    caller: Principal
    """The user for whom the agent acts."""
    tools: Mapping[str, Tool]
    recalls: RecallBudget
    _principals: dict[Namespace | Grant, Principal] = field(default_factory=dict)

    def principal_for(self, room: Namespace | Grant) -> Principal:
        """The agent acting for the user, with a grant for one room of this turn and for nothing else."""
        if room not in self._principals:
            grant = room if isinstance(room, Grant) else self.rooms.grant(room)
            self._principals[room] = self.principal_with(grant)
        return self._principals[room]

    def principal_with(self, *grants: Grant) -> Principal:
        """The agent acting for the user, with these grants and nothing else."""
        caller, agent = self.caller, self.rooms.agent.name
        return Principal(caller.user_id, caller.client_id, caller.claims, agent, grants)

    def room(self, room: Namespace | None) -> Room:
        """One of this turn's rooms; an agent without the room has no tool that works in it."""
        assert room is not None
        return Room(self.memories, self.principal_for(room), room)

    @property
    def child_rooms(self) -> ChildRooms | None:
        """The child namespaces that the agent falls back to; None if it has no fallback."""
        fallback = self.rooms.fallback
        if fallback is None:
            return None
        return ChildRooms(self.memories, self.principal_for(fallback), fallback.namespace)
