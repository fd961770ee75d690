"""What agents did: each tool call by agent, user, tool, session and outcome, never its content; tokens too.

Calls are memories of their user (`calls:<agent>:u:<user>`), so that a wipe takes them away, and so are counts
of tokens (`usage:<agent>:u:<user>`, the day as the key); what all users took of an agent in a day is one
memory of nobody's (`usage:<agent>`). They are gathered and written about once a second, many calls in one
memory: a read that waited for a write of its own would be slow. What was gathered before a wipe is not
written after it, in whichever process: it is bound to the data key that its user had when it began, and a
wipe destroys that.
"""

from __future__ import annotations

import heapq
import logging
import secrets
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

import msgspec
from msgspec import Struct, structs

from alcove.agents.runs import ALCOVE, OVERSEER, acting_for
from alcove.agents.stored_records import decode_value, retry_conflicts
from alcove.core.decoding import convert
from alcove.core.errors import AlcoveError, KeyDestroyed
from alcove.core.namespace import Namespace
from alcove.core.records import AgentUse, DeferredPut, KeyBinding, Memory
from alcove.llm.records import TokenUse
from alcove.store.memories import Memories

log = logging.getLogger("alcove")

KEPT_SECONDS, USE_KEPT_SECONDS = 30 * 86_400, 90 * 86_400
USAGE = "usage"
FLUSH_SECONDS = 1.0
MOST_GATHERED = 10_000
_AT_ONCE = 500


class ToolCall(Struct, frozen=True, kw_only=True):
    """One call of a tool."""

    at: datetime
    agent: str
    user: str
    tool: str
    session: str | None
    room: str | None
    """The scratch room as text, for the tools that have one."""
    outcome: str
    """`ok`, or the code of the error."""
    ms: float


class Calls:
    """The record of tool calls."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories
        self.usage = Usage(memories)
        self._gathered: list[tuple[KeyBinding, ToolCall]] = []
        self._used: dict[tuple[KeyBinding, str, str], Count] = defaultdict(Count)
        self._mutex = threading.Lock()
        self._writing = threading.Lock()
        self._timer: threading.Timer | None = None

    def note(self, call: ToolCall, bound: KeyBinding) -> None:
        """Takes a call down, to be written soon; beyond `MOST_GATHERED` that wait, it is dropped."""
        with self._mutex:
            if len(self._gathered) < MOST_GATHERED:
                self._gathered.append((bound, call))
            self._flush_soon()

    def note_use(self, agent: str, user: str, bound: KeyBinding, use: TokenUse, turns: int = 1) -> None:
        """Counts a turn, or a summary as none, and its tokens, to be written soon."""
        count = Count(turns=turns, prompt_tokens=use.prompt_tokens, completion_tokens=use.completion_tokens)
        with self._mutex:
            if len(self._used) < MOST_GATHERED:
                self._used[bound, agent, user] += count
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._timer is None:
            # No `Worker`: its thread would keep a Rego engine, to be dropped by whoever ends the process.
            self._timer = threading.Timer(FLUSH_SECONDS, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Writes what was taken down."""
        with self._writing:
            with self._mutex:
                gathered, self._gathered, self._timer = self._gathered, [], None
                used, self._used = self._used, defaultdict(Count)
            rooms: dict[tuple[KeyBinding, str, str], list[ToolCall]] = defaultdict(list)
            for bound, call in gathered:
                rooms[bound, call.agent, call.user].append(call)
            for (bound, agent, user), calls in rooms.items():
                for start in range(0, len(calls), _AT_ONCE):
                    self._write(_room(agent, user), user, bound, calls[start : start + _AT_ONCE])
            for (bound, agent, user), count in used.items():
                try:
                    self.usage.add(agent, user, count, bound)
                except AlcoveError as error:
                    log.warning("the tokens of %d turns were not counted: %s", count.turns, error.message)

    def _write(self, room: Namespace, user: str, bound: KeyBinding, calls: list[ToolCall]) -> None:
        value = {"calls": [msgspec.to_builtins(call) for call in reversed(calls)]}
        # The key sorts the newest first, so that a few of many are found at once.
        key = f"{10**17 - int(calls[-1].at.timestamp() * 1_000_000):017d}-{secrets.token_hex(3)}"
        put = DeferredPut(room, key, value, ttl_seconds=KEPT_SECONDS, bound=bound)
        try:
            self._memories.writer.put_record(acting_for(user, room), put)
        except KeyDestroyed:
            pass  # their user was wiped since
        except AlcoveError as error:
            log.warning("%d tool calls were not recorded: %s", len(calls), error.message)

    def of(self, agent: str, user: str | None) -> Iterator[ToolCall]:
        """The calls of an agent for a user, or for all of them, newest first."""
        self.flush()
        if user is None:
            rooms = self._memories.reader.namespaces(OVERSEER, ("calls", agent))
        else:
            rooms = [Namespace.checked(_room(agent, user), "user_id")]
        return heapq.merge(*map(self._within, rooms), key=lambda call: call.at, reverse=True)

    def _within(self, room: Namespace) -> Iterator[ToolCall]:
        for memory in self._memories.reader.export(OVERSEER, room):
            if memory.written_by.agent == ALCOVE:  # the room is the user's, who may write there, too
                yield from convert(memory.value["calls"], list[ToolCall])

    def close(self) -> None:
        with self._mutex:
            if self._timer:
                self._timer.cancel()
        self.flush()


def _room(agent: str, user: str) -> Namespace:
    return Namespace(("calls", agent, "u", user))


class UserUse(AgentUse, frozen=True, kw_only=True):
    """What an agent took for one user on one day."""

    user: str
    day: str


class Count(Struct, frozen=True, kw_only=True):
    """Turns and their tokens."""

    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Count) -> Count:
        names = self.__struct_fields__
        return Count(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Usage:
    """The counts of tokens."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    def add(self, agent: str, user: str, count: Count, bound: KeyBinding) -> None:
        """Counts turns of a user; nothing is stored if they were wiped since `key_binding`."""
        self._add(ALCOVE, Namespace((USAGE, agent)), count, None)
        self._add(user, Namespace((USAGE, agent, "u", user)), count, bound)

    def _add(self, user: str, room: Namespace, count: Count, bound: KeyBinding | None) -> None:
        who, day = acting_for(user, room), f"{self._memories.now():%Y-%m-%d}"

        def counted() -> None:
            found = self._memories.reader.get(who, room, day)
            value = msgspec.to_builtins((_count(found) or Count()) + count)
            revision = found.revision if found else 0
            put = DeferredPut(
                room, day, value, ttl_seconds=USE_KEPT_SECONDS, expected_revision=revision, bound=bound
            )
            with suppress(KeyDestroyed):
                self._memories.writer.put_record(who, put)

        retry_conflicts(counted)

    def of(self, agent: str, user: str | None) -> Iterator[UserUse]:
        """The counts of an agent by user and day, for one user or for all of them."""
        room = (USAGE, agent) if user is None else (USAGE, agent, "u", user)
        for memory in self._memories.reader.export(OVERSEER, Namespace.checked(room, "agent")):
            count = _count(memory)
            if count and len(memory.namespace) == 4:
                whose, day = memory.namespace[3], memory.key
                yield UserUse(agent=agent, user=whose, day=day, **structs.asdict(count))

    def totals(self) -> list[AgentUse]:
        """What each agent took of all its users, as far as it is kept."""
        found: dict[str, Count] = defaultdict(Count)
        for room in self._memories.reader.namespaces(OVERSEER, (USAGE,), max_depth=2):
            for memory in self._memories.reader.scan(OVERSEER, room, exact=True):
                found[room[1]] += _count(memory) or Count()
        return [AgentUse(agent=agent, **structs.asdict(count)) for agent, count in found.items()]


def _count(memory: Memory | None) -> Count | None:
    """What a memory counts; None of what others wrote there: the room is the user's."""
    ours = memory is not None and memory.written_by.agent == ALCOVE
    return decode_value(memory, Count) if memory and ours else None
