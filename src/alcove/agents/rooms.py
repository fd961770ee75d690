"""The rooms of an agent: namespaces for a spec, a user and a session, each with the grant that opens it.

A turn binds the rooms that its tools work in before the model answers, so that no argument can change them.
Records in rooms are decoded leniently, because users may write other values there.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from alcove.agents.specs.records import Agent, Catalogue, ScratchKind, Team, may_use
from alcove.agents.specs.templates import overlap, pools, private_template, team_room
from alcove.core import room_template, validation
from alcove.core.cache import Cache
from alcove.core.cursor import Page, take_page
from alcove.core.decoding import convert
from alcove.core.errors import Conflict, InvalidRequest, KeyDestroyed, NotFound, PermissionDenied
from alcove.core.namespace import KNOWLEDGE_ROOT, Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.records import Entry, Memory, SearchResults
from alcove.store.memories import Memories
from alcove.store.searcher import LiveEntry
from alcove.store.session_cache import MemoryReader

if TYPE_CHECKING:
    from alcove.agents.runs import Runs
    from alcove.agents.tools.tool import Tool
    from alcove.search.query import ParsedQuery

T = TypeVar("T")
_MAX_ATTEMPTS = 100
KNOWLEDGE = Namespace((KNOWLEDGE_ROOT,))
"""The namespaces of documents. They have no owner, but each memory belongs to the user who uploaded it."""
CHILD = "private, older"
"""The kind of room that a child namespace is listed as, which the fallback of a private namespace reads."""
ONE_NAMESPACE = ("private", CHILD, "facts", "long-term")
"""Kinds of room that are one namespace each, without what lies below it."""
RUNS: tuple[ScratchKind, ...] = ("workflow", "swarm", "debate")
"""Kinds of scratch room whose instance is a run, which its owner opens."""
MAX_ID_BYTES = 512
"""Of the id of a session or a run."""
MAX_TURNS = 10_000
BUDGET_SPENT = "you have recalled as much as one turn allows: go on with what you have"


@dataclass(frozen=True)
class Rooms:
    """The rooms of one agent for one user, in one session, team and set of runs.

    Each is computed on first use, so that a call needs only the ids of the rooms it works in.
    """

    agent: Agent
    user: str
    session_id: str | None = None
    team_spec: Team | None = None
    instances: Mapping[str, str] = field(default_factory=dict)
    authentication: bool = True

    def __post_init__(self) -> None:
        for kind in self.instances:
            if kind not in RUNS:
                raise InvalidRequest(f"instances.{kind[:60]}", f"one of {', '.join(RUNS)}")
        ids = {f"instances.{kind}": id for kind, id in self.instances.items()}
        for argument, id in {"session_id": self.session_id, **ids}.items():
            if id is not None and len(validation.encode_text(id, argument)) > MAX_ID_BYTES:
                raise InvalidRequest(argument, f"at most {MAX_ID_BYTES} bytes")

    @functools.cached_property
    def private(self) -> Namespace | None:
        """The agent's notes about this user; None if the spec has no such room."""
        if not self.agent.memory.private.enabled:
            return None
        template, values = private_template(self.agent), {"user_id": self.user}
        if template.needs("session_id"):
            values["session_id"] = self.session()
        return Namespace.checked((*template.checked(values), "u", self.user), "user_id")

    @property
    def fallback(self) -> Grant | None:
        """The grant for the child namespaces that are read while the private namespace is empty.

        It opens the user's own namespaces below the template (`agent:x:u:alice:abc123`,
        `agent:x:abc123:u:alice`), and what the user wrote in those without an owner (`agent:x:abc123`).
        None if there is no private namespace, or one for each session. Memories without an author count only
        with authentication off.
        """
        private = None if self.agent.memory.private.session_isolated else self.private
        if private is None:
            return None
        authors = (self.user,) if self.authentication else (self.user, None)
        return Grant(Namespace(private[:-2]), ("read",), authors)

    @functools.cached_property
    def pools(self) -> Mapping[str, Namespace]:
        """The pools of the spec by the name that tools know them by: the namespace as text."""
        return pools(self.agent)

    @functools.cached_property
    def team(self) -> Namespace | None:
        """The room of the team the agent works in now, if any."""
        return None if self.team_spec is None else team_room(self.team_spec)

    @functools.cached_property
    def facts(self) -> Namespace | None:
        """What the agent keeps about this user; agents that name the same one share it."""
        spec = self.agent.memory.facts
        if not spec.enabled:
            return None
        return Namespace.checked(("facts", spec.namespace or self.agent.name, "u", self.user), "user_id")

    @functools.cached_property
    def long_term(self) -> Mapping[str, Namespace]:
        """By scope: `all` for every agent of this user, `agent` for this one; empty where it is off."""
        if not self.agent.memory.long_term.enabled:
            return {}
        scopes = {"all": ("all",), "agent": ("agent", self.agent.name)}
        root = ("user", self.user, "long-term")
        return {name: Namespace.checked((*root, *scope), "user_id") for name, scope in scopes.items()}

    def scratch(self, kind: str) -> Namespace:
        """The scratch room of this kind, bound to its instance; InvalidRequest if the call names none."""
        kinds = self.agent.memory.scratch
        if kind not in kinds:
            raise InvalidRequest("namespace", f"one of {', '.join(kinds) or 'no scratch rooms'}")
        if kind == "global":
            return Namespace(("global",))
        if kind == "session":
            return Namespace.checked(("session", self.session(), "u", self.user), "session_id")
        name = "workflow" if kind == "agent" else kind
        run, argument = self.instances.get(name), f"instances.{name}"
        if run == "":
            raise InvalidRequest(argument, "a non-empty string")
        if kind == "agent":
            own = ("agent-room", self.agent.name, "u", self.user)
            return Namespace.checked(own if run is None else (*own, run), argument)
        if run is None:
            raise InvalidRequest(argument, f"the id of this {kind}: it has a room of its own")
        return Namespace.checked((kind, run), argument)

    @functools.cached_property
    def knowledge(self) -> Mapping[str, Namespace]:
        """The sources that the agent looks things up in, by name; empty where that is off."""
        spec = self.agent.memory.knowledge
        return {name: Namespace((*KNOWLEDGE, name)) for name in spec.sources} if spec.enabled else {}

    def grant(self, room: Namespace) -> Grant:
        """The grant for one of these rooms; in a shared one, which others write to, nobody deletes."""
        if room in self.knowledge.values():
            return Grant(room, ("read",))
        shared = room == self.team or room in self.pools.values()
        return Grant(room, ("read", "write")) if shared else Grant(room)

    def session(self) -> str:
        """The id of this session; InvalidRequest if the call names none."""
        if not self.session_id:
            raise InvalidRequest("session_id", "the id of this session: this room has one for each")
        if self.session_id == "u":
            raise InvalidRequest("session_id", "another id: 'u' has a meaning in namespaces")
        return self.session_id


def child_rooms_template(agent: Agent) -> str | None:
    """The template of an agent's child namespaces, encoded for the store; None if it has none."""
    spec = agent.memory.private
    if not spec.enabled or spec.session_isolated:
        return None
    return room_template.encode(private_template(agent))


def may_be_private(room: Namespace, agent: Agent) -> bool:
    """Whether a user's room can be one that an agent has for them in a session."""
    pattern = private_template(agent).pattern if agent.memory.private.enabled else ()
    return len(room) == len(pattern) + 2 and overlap(room[:-2], pattern)


def direct_grants(catalogue: Catalogue, principal: Principal) -> tuple[Grant, ...]:
    """The grants of a call without an agent: it reads pools and teams of the agents its caller may use."""
    usable = [agent for agent in catalogue.agents.values() if may_use(agent, principal)]
    names = {agent.name for agent in usable}
    rooms: list[Namespace | None] = [room for agent in usable for room in pools(agent).values()]
    for team in catalogue.teams.values():
        if may_use(team, principal) and not names.isdisjoint(team.workers):
            rooms.append(team_room(team))
    return tuple(Grant(room, ("read",)) for room in dict.fromkeys(rooms) if room)


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
        """Lists the memories of this room by key; `next_offset` is where the next page begins."""
        page = self.search(limit=limit, offset=offset)
        page.next_offset = offset + len(page) if page.after_cursor else None
        return page

    def newest(self, limit: int) -> Page[Memory]:
        """The newest memories of this room, the newest first."""
        return self.memories.overview.newest(
            self.principal, self.namespace, exact=self._has_owner, limit=limit
        )

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

    For `agent:x` and alice these are the namespaces below her private one (`agent:x:u:alice:abc123`), her
    rooms by session (`agent:x:abc123:u:alice`), and her memories in rooms by session without an owner
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


def distinct(memories: Iterable[Memory]) -> list[Memory]:
    """The first memory of each content."""
    first: dict[str, Memory] = {}
    for memory in memories:
        first.setdefault(content_id(memory), memory)
    return [*first.values()]


def content_id(memory: Memory) -> str:
    """The same text for long-term memories of equal content, in any scope.

    Not `_digest`: "likes C" and "likes C++" have the same one, and forgetting deletes all equal memories.
    """
    content = memory.value.get("content")
    return content if isinstance(content, str) else memory.id


# Records in rooms


def decode_value(memory: Memory | None, kind: type[T]) -> T | None:
    """Decodes a memory's value; None if it is something else, as users may write to their rooms."""
    try:
        return None if memory is None else convert(memory.value, kind)
    except (msgspec.ValidationError, OverflowError):
        return None


def read_record(
    reader: MemoryReader, principal: Principal, room: Namespace, key: str, kind: type[T]
) -> tuple[T, int]:
    """Reads a record and its revision; an empty record if there is none, revision 0 if nothing is there."""
    memory = reader.get(principal, room, key)
    return decode_value(memory, kind) or kind(), memory.revision if memory else 0


def retry_conflicts(write: Callable[[], None]) -> None:
    """Calls `write`, which computes its changes from stored data, until no other writer interferes."""
    for attempt in range(_MAX_ATTEMPTS):
        try:
            return write()
        except (Conflict, NotFound, KeyDestroyed):
            time.sleep(random.random() * min(attempt, 10) * 0.002)  # noqa: S311
    raise Conflict("too many writers change this at once: try again later")
