"""The log of tool calls: agent, user, tool, session and outcome of each, never its content; and token counts.

Calls are memories of their user (`calls:<agent>:u:<user>`), so that a wipe takes them away, and so are counts
of tokens (`usage:<agent>:u:<user>`, the day as the key). The tokens of all users of an agent in a day are one
memory without an owner (`usage:<agent>`). Calls are collected and written about once a second, many in one
memory: a read that waited for a write of its own would be slow. A call that was noted before a wipe is not
written after it, in whichever process: it is bound to the data key that its user had then, and a wipe
destroys that key.
"""

from __future__ import annotations

import heapq
import logging
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial

import msgspec
from msgspec import Struct

from alcove.agents.rooms import decode_value, retry_conflicts
from alcove.agents.runs import ALCOVE, OVERSEER, acting_for
from alcove.core.decoding import convert
from alcove.core.errors import AlcoveError, KeyDestroyed
from alcove.core.namespace import Namespace
from alcove.core.records import AgentUse, DeferredPut, KeyBinding, Memory
from alcove.llm.model import TokenUse
from alcove.store.memories import Memories

log = logging.getLogger("alcove")
CALL_SECONDS, USE_SECONDS = 30 * 86_400, 90 * 86_400
"""How long calls and counts of tokens are stored."""
USAGE = "usage"
FLUSH_SECONDS = 1.0
MAX_PENDING = 10_000
_BATCH = 500
Count = Counter[str]
"""Counts of `turns`, `prompt_tokens` and `completion_tokens`."""


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


class UserUse(AgentUse, frozen=True, kw_only=True):
    """The turns and tokens of an agent for one user on one day."""

    user: str
    day: str


class Calls:
    """The log of tool calls."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories
        self.usage = Usage(memories)
        self._calls: list[tuple[KeyBinding, ToolCall]] = []
        self._counts: dict[tuple[KeyBinding, str, str], Count] = defaultdict(Counter)
        self._mutex = threading.Lock()
        self._writing = threading.Lock()
        self._timer: threading.Timer | None = None

    def note(self, call: ToolCall, bound: KeyBinding) -> None:
        """Notes a call, to be written soon; it is dropped if `MAX_PENDING` calls wait already."""
        with self._mutex:
            if len(self._calls) < MAX_PENDING:
                self._calls.append((bound, call))
            self._flush_soon()

    def note_use(self, agent: str, user: str, bound: KeyBinding, use: TokenUse, turns: int = 1) -> None:
        """Counts a turn, or a summary as none, and its tokens, to be written soon."""
        with self._mutex:
            if len(self._counts) < MAX_PENDING:
                self._counts[bound, agent, user].update(
                    turns=turns, prompt_tokens=use.prompt_tokens, completion_tokens=use.completion_tokens
                )
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._timer is None:
            # Not a `Worker`: its thread would keep a Rego engine, which another thread drops at exit.
            self._timer = threading.Timer(FLUSH_SECONDS, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Writes the calls and counts that were noted."""
        with self._writing:
            with self._mutex:
                noted, self._calls, self._timer = self._calls, [], None
                counts, self._counts = self._counts, defaultdict(Counter)
            rooms: dict[tuple[KeyBinding, str, str], list[ToolCall]] = defaultdict(list)
            for bound, call in noted:
                rooms[bound, call.agent, call.user].append(call)
            for (bound, agent, user), calls in rooms.items():
                for start in range(0, len(calls), _BATCH):
                    self._write(_room(agent, user), user, bound, calls[start : start + _BATCH])
            for (bound, agent, user), count in counts.items():
                try:
                    self.usage.add(agent, user, count, bound)
                except AlcoveError as error:
                    log.warning("the tokens of %d turns were not counted: %s", count["turns"], error.message)

    def _write(self, room: Namespace, user: str, bound: KeyBinding, calls: list[ToolCall]) -> None:
        value = {"calls": [msgspec.to_builtins(call) for call in reversed(calls)]}
        # The key sorts the newest first, so that a few of many are found at once.
        key = f"{10**17 - int(calls[-1].at.timestamp() * 1_000_000):017d}-{secrets.token_hex(3)}"
        put = DeferredPut(room, key, value, ttl_seconds=CALL_SECONDS, bound=bound)
        try:
            with suppress(KeyDestroyed):  # their user was wiped since
                self._memories.writer.put_record(acting_for(user, room), put)
        except AlcoveError as error:
            log.warning("%d tool calls were not recorded: %s", len(calls), error.message)

    def of(self, agent: str, user: str | None) -> Iterator[ToolCall]:
        """The calls of an agent for a user, or for all of them, newest first."""
        self.flush()
        if user is None:
            rooms = self._memories.reader.namespaces(OVERSEER, ("calls", agent))
        else:
            rooms = [Namespace.checked(_room(agent, user), "user_id")]
        return heapq.merge(*map(self._read, rooms), key=lambda call: call.at, reverse=True)

    def _read(self, room: Namespace) -> Iterator[ToolCall]:
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


class Usage:
    """The counts of tokens."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    def add(self, agent: str, user: str, count: Count, bound: KeyBinding) -> None:
        """Counts turns of a user; nothing is stored if they were wiped since `key_binding`."""
        rooms = Namespace((USAGE, agent)), Namespace((USAGE, agent, "u", user))
        retry_conflicts(partial(self._add, ALCOVE, rooms[0], count, None))
        retry_conflicts(partial(self._add, user, rooms[1], count, bound))

    def _add(self, user: str, room: Namespace, count: Count, bound: KeyBinding | None) -> None:
        principal, day = acting_for(user, room), f"{self._memories.now():%Y-%m-%d}"
        memory = self._memories.reader.get(principal, room, day)
        total = _count(memory) if memory else Counter()
        total.update(count)
        revision = memory.revision if memory else 0
        put = DeferredPut(
            room, day, {**total}, ttl_seconds=USE_SECONDS, expected_revision=revision, bound=bound
        )
        with suppress(KeyDestroyed):
            self._memories.writer.put_record(principal, put)

    def of(self, agent: str, user: str | None) -> Iterator[UserUse]:
        """The counts of an agent by user and day, for one user or for all of them."""
        room = (USAGE, agent) if user is None else (USAGE, agent, "u", user)
        for memory in self._memories.reader.export(OVERSEER, Namespace.checked(room, "agent")):
            count = _count(memory)
            if count and len(memory.namespace) == 4:
                yield UserUse(agent=agent, user=memory.namespace[3], day=memory.key, **count)

    def totals(self) -> list[AgentUse]:
        """The stored turns and tokens of each agent, for all its users together."""
        totals: dict[str, Count] = defaultdict(Counter)
        for room in self._memories.reader.namespaces(OVERSEER, (USAGE,), max_depth=2):
            for memory in self._memories.reader.scan(OVERSEER, room, exact=True):
                totals[room[1]].update(_count(memory))
        return [AgentUse(agent=agent, **count) for agent, count in totals.items()]


def _count(memory: Memory) -> Count:
    """The counts in a memory; empty if somebody else wrote it: the room is the user's."""
    is_ours = memory.written_by.agent == ALCOVE
    return Counter((decode_value(memory, dict[str, int]) if is_ours else None) or {})
