"""The rolling summary of a user's ended conversations with an agent, merged in the background.

Whoever adds to a session writes a mark (`turns:<agent>:u:<user>`, the session's id as its key) that says when
that was, and whether the session ended. A merge changes the summary, the session's state and the mark in one
transaction, bound to the revisions that it read: two merges at once both count, and a crash neither loses nor
repeats anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import takewhile

import msgspec
from msgspec import Struct, structs

from alcove.agents.rooms import Rooms
from alcove.agents.runs import OVERSEER
from alcove.agents.specs.records import Agent
from alcove.agents.stored_records import decode_value, read_record, retry_conflicts
from alcove.agents.summariser import extend_summary
from alcove.agents.summary_writer import ROLLING_TOKENS, SummaryTask, SummaryWriter
from alcove.agents.transcripts import (
    ROLLING,
    RollingSummary,
    Transcript,
    conversation_principal,
    summary_room,
    turns_room,
)
from alcove.core import cancellation
from alcove.core.background import Schedule
from alcove.core.principal import Principal
from alcove.core.records import DeferredPut, Delete, KeyBinding, Memory, Put
from alcove.store.memories import Memories

log = logging.getLogger("alcove")
MAX_SCHEDULED = 100_000
MAX_INLINE_MESSAGES = 200
"""The longest conversation that a request merges itself."""
WAIT_SECONDS = 1.0
"""How long a request waits for a merge by another thread or process."""
_POLL_SECONDS, _RETRY_SECONDS = 0.01, 0.5
MARK_DEPTH = len(("turns", "agent", "u", "user"))


class Mark(Struct, frozen=True):
    """Says that a session has messages that are not in the summary yet."""

    ended: bool = False


class Summaries:
    """Merges conversations that ended or went idle, and reads the summaries."""

    def __init__(self, memories: Memories, count: Callable[[str], int], writer: SummaryWriter) -> None:
        """`count`: counts the tokens of a text. `writer`: has a model write summaries in its words."""
        self._memories, self._count, self._writer = memories, count, writer
        self._schedule = Schedule[tuple[str, str], Agent](
            "summaries", self._merge_all, max_entries=MAX_SCHEDULED
        )
        """When to check the conversations of a user with an agent."""
        self._cursor: str | None = None
        """How far `schedule_changed` has read the log."""
        self.has_model = writer.has_model

    def read(self, caller: Principal, agent: str) -> RollingSummary:
        """The rolling summary; empty if nothing was merged yet."""
        principal, room = conversation_principal(caller, agent), summary_room(agent, caller.user_id)
        return read_record(self._memories.reader, principal, room, ROLLING, RollingSummary)[0]

    def forget(self, caller: Principal, agent: str) -> bool:
        """Erases the summary with all its versions; returns whether there was one."""
        principal, room = conversation_principal(caller, agent), summary_room(agent, caller.user_id)
        return self._memories.eraser.erase(principal, room, ROLLING)

    def pending(self, caller: Principal, agent: str) -> Iterator[Memory]:
        """The marks of sessions with messages that are not in the summary yet, by session id."""
        room = turns_room(agent, caller.user_id)
        return self._memories.reader.scan(conversation_principal(caller, agent), room, exact=True)

    def pending_mark(self, rooms: Rooms, *, ended: bool) -> list[Put]:
        """The operation that marks a session, to be written together with its new messages or its end."""
        if not rooms.agent.memory.session_memory.enabled:
            return []
        room = turns_room(rooms.agent.name, rooms.user)
        return [Put(namespace=room, key=rooms.session(), value=msgspec.to_builtins(Mark(ended)))]

    def schedule(self, rooms: Rooms, *, ended: bool) -> None:
        """Schedules the rolling summary for when a session ended or is idle, and the running one for now.

        Beyond `MAX_SCHEDULED`, the rolling summary is merged when the user comes back.
        """
        agent, spec = rooms.agent, rooms.agent.memory
        if spec.session_memory.enabled:
            self._check_after(agent, rooms.user, 0.0 if ended else spec.session_memory.idle_seconds)
        if not ended and spec.conversation.enabled and spec.conversation.summarize:
            self._writer.schedule(SummaryTask(agent, rooms.user, rooms.session(), is_rolling=False))

    def schedule_changed(self, agent_of: Callable[[str], Agent | None]) -> None:
        """Schedules conversations that changed on any node, at the first call since the day before.

        For a worker that serves no calls and merges for all nodes.
        """
        page, since = None, None if self._cursor else self._memories.now() - timedelta(days=1)
        while page is None or page.more:
            page = self._memories.timeline.events(
                OVERSEER, ("turns",), kinds=("add", "update"), after=since,
                after_cursor=self._cursor, limit=200,
            )  # fmt: skip
            self._cursor = page.after_cursor
            for event in page.events:
                agent = agent_of(event.namespace[1]) if len(event.namespace) == MARK_DEPTH else None
                if agent and (spec := agent.memory.session_memory).enabled:
                    ended = (event.value or {}).get("ended")
                    self._check_after(agent, event.namespace[3], 0 if ended else spec.idle_seconds)

    def _check_after(self, agent: Agent, user: str, seconds: float) -> None:
        """Has a user's conversations checked in some seconds, or earlier if that is scheduled already."""
        self._schedule.put((agent.name, user), agent, seconds)

    def catch_up(self, agent: Agent, user: str) -> None:
        """Merges the ended conversations of a user, so that a new one starts with them.

        The service merges, not the caller: a policy sees no claims here. The background takes over what would
        hold up the request: a long conversation, or a merge that is already going on elsewhere.
        """
        if not self._due_sessions(agent, user):
            return
        is_merged, end = False, time.monotonic() + WAIT_SECONDS
        try:
            while not (is_merged := self._merge_exclusively(agent, user, MAX_INLINE_MESSAGES)):
                if time.monotonic() >= end:
                    break
                cancellation.check()
                time.sleep(_POLL_SECONDS)
        finally:
            if not is_merged:
                self._check_after(agent, user, 0.0)

    def _due_sessions(self, agent: Agent, user: str) -> list[str]:
        """The sessions to merge now; those that may still continue are checked later."""
        spec, due = agent.memory.session_memory, list[str]()
        for memory in self.pending(Principal(user), agent.name) if spec.enabled else ():
            mark = decode_value(memory, Mark)
            idle = (self._memories.now() - memory.created_at).total_seconds()
            if mark and (mark.ended or idle >= spec.idle_seconds):
                due.append(memory.key)
            elif mark:
                self._check_after(agent, user, spec.idle_seconds - idle)
        return due

    def _merge_exclusively(self, agent: Agent, user: str, max_messages: int | None = None) -> bool:
        """Merges a user's due sessions; returns False if another thread or process is merging them.

        `max_messages`: leaves a session with more new messages to the background.
        """
        room = turns_room(agent.name, user)
        if not self._memories.try_lock(room):
            return False
        try:
            for session in self._due_sessions(agent, user):
                try:
                    transcript = self._transcript(agent, user, session)
                    unmerged = transcript.last_number() - transcript.state()[0].merged
                    if max_messages is not None and unmerged > max_messages:
                        self._check_after(agent, user, 0.0)
                        continue
                    after = self.merge(agent, user, session)
                    self._writer.schedule(SummaryTask(agent, user, session, is_rolling=True, after=after))
                except cancellation.Cancelled:
                    raise
                except Exception as error:
                    log.warning("a conversation with %s was not merged: %r", agent.name, error)
        finally:
            self._memories.unlock(room)
        return True

    def _transcript(self, agent: Agent, user: str, session: str) -> Transcript:
        return Transcript(self._memories, Rooms(agent, user, session), Principal(user), self._count)

    def merge(self, agent: Agent, user: str, session: str) -> int:
        """Merges a session's new messages into the summary, unless another process has done so.

        Returns the number of the last message that was merged before.
        """
        transcript = self._transcript(agent, user, session)
        after = transcript.state()[0].merged

        def write() -> None:
            bound = self._memories.writer.key_binding(user)
            mark = self._memories.reader.get(transcript.principal, turns_room(agent.name, user), session)
            if mark is not None:
                delete = Delete(namespace=mark.namespace, key=mark.key, expected_revision=mark.revision)
                operations = [*self._merge_operations(transcript, bound), delete]
                self._memories.writer.batch_in_session(transcript.principal, operations, transcript.location)

        retry_conflicts(write)
        return after

    def _merge_operations(self, transcript: Transcript, bound: KeyBinding) -> Iterator[DeferredPut]:
        """Changes the summary and the session's state; nothing if no new message has any text."""
        state, revision = transcript.state()
        new = [*takewhile(lambda each: each.number > state.merged, transcript.newest_first())][::-1]
        messages = [each.message for each in new]
        if not any(message.content for message in messages):
            return
        before, summary_revision = transcript.rolling_summary()
        summary = structs.replace(
            before,
            points=extend_summary(before.points, messages, most_tokens=ROLLING_TOKENS, count=self._count),
            conversations=before.conversations + 1,
            updated_at=self._memories.now(),
        )
        yield transcript.put_operation(summary, summary_revision, bound)
        yield transcript.put_operation(structs.replace(state, merged=new[-1].number), revision, bound)

    def _merge_all(self, due: Sequence[tuple[tuple[str, str], Agent]]) -> None:
        """Merges the due sessions of each user."""
        for (_, user), agent in due:
            try:
                if self._due_sessions(agent, user) and not self._merge_exclusively(agent, user):
                    self._check_after(agent, user, _RETRY_SECONDS)
            except Exception as error:
                log.warning("conversations with %s were not merged: %r", agent.name, error)

    def close(self) -> None:
        """Merges what has ended; conversations that may continue are merged when their user comes back."""
        self._schedule.stop()
        self._schedule.run_due()
        self._writer.close()
