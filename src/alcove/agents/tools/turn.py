"""What a tool works with in one turn: the agent's rooms, each with a grant for that room alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from alcove.agents.rooms import Rooms
from alcove.agents.runs import Runs
from alcove.core.cache import Cache
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.records import Entry, Memory, SearchResults
from alcove.store.memories import Memories

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

    def all_memories(self) -> Iterator[Memory]:
        """All memories of this room."""
        return self.memories.reader.scan(self.principal, self.namespace, exact=self._has_owner)

    def entries(self) -> Iterator[Entry]:
        """All entries of this room, without the values."""
        for offset in count(0, _PAGE):
            page = self.memories.searcher.list(
                self.principal, self.namespace, limit=_PAGE, offset=offset, exact=self._has_owner
            )
            yield from page
            if len(page) < _PAGE:
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

    def spend(self, rooms: Rooms, limit: int, search: Callable[[int], SearchResults]) -> SearchResults:
        """Calls `search` with the number of memories it may find: `limit`, or less if less is left."""
        budget = [rooms.agent.memory.long_term.recall_budget]
        turn = self._turns.get((rooms.agent.name, rooms.user, rooms.session_id), budget)
        with self._mutex:
            max_hits = min(limit, turn[0])
            turn[0] -= max_hits
        hits = SearchResults()
        hits.degraded = BUDGET_SPENT
        try:
            hits = search(max_hits) if max_hits else hits
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
    tools: Mapping[str, Tool] = field(default_factory=dict)
    recalls: RecallBudget = field(default_factory=RecallBudget)
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

    def room(self, room: Namespace | Grant | None) -> Room:
        """One of this turn's rooms; an agent without the room has no tool that works in it."""
        assert room is not None
        namespace = room.namespace if isinstance(room, Grant) else room
        return Room(self.memories, self.principal_for(room), namespace)
