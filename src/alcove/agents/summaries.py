"""One summary a user and agent, of all conversations that have ended: each is merged in the background.

Whoever adds to a session leaves a mark (`turns:<agent>:u:<user>`, the session's id as its key) that says when
and whether it was ended. A merge changes the summary, what is known of the session and the mark in one
transaction, bound to the revisions it has read: so two that end together both count, and a crash loses and
repeats nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import takewhile

import msgspec
from msgspec import Struct, structs

from alcove.agents.conversations import (
    ROLLING,
    Transcript,
    conversation_principal,
    decode_value,
    read_record,
    retry_conflicts,
    summary_room,
    turns_room,
)
from alcove.agents.rooms import Rooms
from alcove.agents.runs import OVERSEER
from alcove.agents.specs.records import Agent
from alcove.agents.summariser import extend_summary
from alcove.agents.summary_writer import ROLLING_TOKENS, RollingSummary, SummaryTask, SummaryWriter
from alcove.core import cancellation
from alcove.core.background import Worker
from alcove.core.principal import Principal
from alcove.core.records import DeferredPut, Delete, KeyBinding, Memory, Put
from alcove.store.memories import Memories
from alcove.store.session_cache import MemoryReader

log = logging.getLogger("alcove")
MOST_EXPECTED = 100_000
MAX_INLINE_MESSAGES = 200
"""Of one conversation that a request merges by itself."""
WAIT_SECONDS = 1.0
"""How long a request waits for a merge that somebody else has begun."""
_POLL_SECONDS, _AGAIN_SECONDS = 0.01, 0.5
_LONGEST_PAUSE = 60.0
MARK_DEPTH = len(("turns", "agent", "u", "user"))


class Mark(Struct, frozen=True):
    """That a session has messages which are not in the summary yet."""

    ended: bool = False


class Summaries:
    """Merges conversations that have ended, or that nobody went on with, and reads what came of it."""

    def __init__(self, memories: Memories, count: Callable[[str], int], writer: SummaryWriter) -> None:
        """`count`: how many tokens a text has. `writer`: has them written in a model's words, too."""
        self._memories, self._count, self.writer = memories, count, writer
        self._due: dict[tuple[str, str], tuple[float, Agent]] = {}
        """When to look at a user's conversations with an agent."""
        self._followed: str | None = None
        """Up to where `keep_up` has looked."""
        self._mutex = threading.Lock()
        self._worker = Worker("summaries", self._merge_due, _LONGEST_PAUSE)

    def of(self, caller: Principal, agent: str, reads: MemoryReader | None = None) -> RollingSummary:
        """The summary as it is, or as `reads` has it; empty where nothing was merged yet."""
        room = summary_room(agent, caller.user_id)
        return read_record(
            reads or self._memories, conversation_principal(caller, agent), room, ROLLING, RollingSummary
        )[0]

    def forget(self, caller: Principal, agent: str) -> bool:
        """Takes the summary away with all it ever said; whether there was one."""
        return self._memories.erase(
            conversation_principal(caller, agent), summary_room(agent, caller.user_id), ROLLING
        )

    def mark(self, rooms: Rooms, *, ended: bool) -> list[Put]:
        """What to write with messages that are added to a session, or at its end, so that it is merged."""
        if not rooms.agent.memory.session_memory.enabled:
            return []
        room = turns_room(rooms.agent.name, rooms.user)
        return [Put(namespace=room, key=rooms.session(), value=msgspec.to_builtins(Mark(ended)))]

    def expect(self, rooms: Rooms, *, ended: bool) -> None:
        """Has a session merged in the background: now if it ended, otherwise once nobody has gone on with it.

        Beyond `MOST_EXPECTED` that wait, it is merged when its user comes back.
        """
        if rooms.agent.memory.session_memory.enabled:
            self._look(
                rooms.agent, rooms.user, 0.0 if ended else rooms.agent.memory.session_memory.idle_seconds
            )
            self._worker.wake()

    def keep_up(self, agent_of: Callable[[str], Agent | None]) -> None:
        """Expects what was added to conversations on any node, since the day before it is first called.

        That is for who takes no calls and merges for all: of a conversation it has the mark to go by.
        """
        page, since = None, None if self._followed else self._memories.now() - timedelta(days=1)
        while page is None or page.more:
            page = self._memories.events(
                OVERSEER, ("turns",), kinds=("add", "update"), after=since,
                after_cursor=self._followed, limit=200,
            )  # fmt: skip
            self._followed = page.after_cursor
            for event in page.events:
                agent = agent_of(event.namespace[1]) if len(event.namespace) == MARK_DEPTH else None
                if agent and (spec := agent.memory.session_memory).enabled:
                    ended = (event.value or {}).get("ended")
                    self._look(agent, event.namespace[3], 0 if ended else spec.idle_seconds)
        self._worker.wake()

    def _look(self, agent: Agent, user: str, after: float) -> None:
        """Has somebody's conversations looked at after some seconds, or sooner if that was to be."""
        at, key = time.monotonic() + after, (agent.name, user)
        with self._mutex:
            if key in self._due or len(self._due) < MOST_EXPECTED:
                self._due[key] = min(at, self._due.get(key, (at, agent))[0]), agent

    def catch_up(self, agent: Agent, user: str) -> None:
        """Merges what is due of a user's conversations, so that a new one starts with it.

        It is the service that merges: a policy sees no claims here. What cannot be merged holds up nothing:
        a large conversation, and what somebody else merges for longer than a moment, is left to the
        background.
        """
        if not self._due_sessions(agent, user):
            return
        merged, end = False, time.monotonic() + WAIT_SECONDS
        try:
            while not (merged := self._merge_alone(agent, user, MAX_INLINE_MESSAGES)):
                if time.monotonic() >= end:
                    break
                cancellation.check()
                time.sleep(_POLL_SECONDS)
        finally:
            if not merged:
                self._look(agent, user, 0.0)
                self._worker.wake()

    def _due_sessions(self, agent: Agent, user: str) -> list[str]:
        """The sessions that are to be merged now; those that may still go on are looked at later."""
        spec, due = agent.memory.session_memory, list[str]()
        for memory in self.pending(Principal(user), agent.name) if spec.enabled else ():
            mark, idle = (
                decode_value(memory, Mark),
                (self._memories.now() - memory.created_at).total_seconds(),
            )
            if mark and (mark.ended or idle >= spec.idle_seconds):
                due.append(memory.key)
            elif mark:
                self._look(agent, user, spec.idle_seconds - idle)
        return due

    def _merge_alone(self, agent: Agent, user: str, max_messages: int | None = None) -> bool:
        """Merges what is due, unless somebody else merges this user's, in whichever process: then False.

        `max_messages`: a session with more that are new is left to the background.
        """
        room = turns_room(agent.name, user)
        if not self._memories.try_lock(room):
            return False
        try:
            for session in self._due_sessions(agent, user):
                try:
                    if max_messages is not None and self._log(agent, user, session).unmerged() > max_messages:
                        self._look(agent, user, 0.0)
                        self._worker.wake()
                        continue
                    after = self.merge(agent, user, session)
                    self.writer.want(SummaryTask(agent, user, session, rolling=True, after=after))
                except cancellation.Cancelled:
                    raise
                except Exception as error:
                    log.warning("a conversation with %s was not merged: %r", agent.name, error)
        finally:
            self._memories.unlock(room)
        return True

    def _log(self, agent: Agent, user: str, session: str) -> Transcript:
        return Transcript(self._memories, Rooms(agent, user, session), Principal(user), self._count)

    def pending(self, caller: Principal, agent: str) -> Iterator[Memory]:
        """The marks of sessions with something that is not in the summary yet, under their ids."""
        room = turns_room(agent, caller.user_id)
        return self._memories.scan(conversation_principal(caller, agent), room, exact=True)

    def merge(self, agent: Agent, user: str, session: str) -> int:
        """Takes what is new in a session into the summary; nothing where somebody else has done so.

        Gives the number of the message after which it was new.
        """
        log = self._log(agent, user, session)
        after = log.state()[0].merged

        def merged() -> None:
            bound = self._memories.key_binding(user)
            mark = self._memories.get(log.who, turns_room(agent.name, user), session)
            if mark is not None:
                done = Delete(namespace=mark.namespace, key=mark.key, expected_revision=mark.revision)
                self._memories.batch_in_session(log.who, [*self._merged(log, bound), done], log.places)

        retry_conflicts(merged)
        return after

    def _merged(self, log: Transcript, bound: KeyBinding) -> Iterator[DeferredPut]:
        """The changes of the summary and of what is known of the session; none where nothing was said."""
        state, revision = log.state()
        new = [*takewhile(lambda said: said.number > state.merged, log.newest_first())][::-1]
        if not any(said.message.content for said in new):
            return
        before, known = read_record(self._memories, log.who, *log.places.rolling, RollingSummary)
        messages = [said.message for said in new]
        rolling = structs.replace(
            before,
            points=extend_summary(before.points, messages, most_tokens=ROLLING_TOKENS, count=self._count),
            conversations=before.conversations + 1,
            updated_at=self._memories.now(),
        )
        value = msgspec.to_builtins(rolling)
        yield DeferredPut(*log.places.rolling, value, expected_revision=known, bound=bound)
        yield log.put_state(structs.replace(state, merged=new[-1].number), revision, bound)

    def _merge_due(self) -> float:
        """Merges what is due, and says how long to pause: until the next may be."""
        now = time.monotonic()
        with self._mutex:
            due = [key for key, (at, _) in self._due.items() if at <= now]
            looked_at = [(self._due.pop(key)[1], key[1]) for key in due]
        for agent, user in looked_at:
            try:
                if self._due_sessions(agent, user) and not self._merge_alone(agent, user):
                    self._look(agent, user, _AGAIN_SECONDS)
            except Exception as error:
                log.warning("conversations with %s were not merged: %r", agent.name, error)
        with self._mutex:
            ahead = min((at for at, _ in self._due.values()), default=now + _LONGEST_PAUSE) - time.monotonic()
        return min(max(ahead, 0.05), _LONGEST_PAUSE)

    def close(self) -> None:
        """Merges what has ended; what may still go on is merged when its user comes back."""
        self._worker.stop()
        self._merge_due()
        self.writer.close()
