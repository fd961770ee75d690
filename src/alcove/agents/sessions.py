"""Sessions with agents: stores their messages, shows, ends and deletes them, and builds the next context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from alcove.agents.context import DEFAULT_BUDGET, Budget, Context, ContextBuilder
from alcove.agents.rooms import Turn
from alcove.agents.summaries import Summaries, SummaryWriter
from alcove.agents.summariser import Point
from alcove.agents.tokens import TokenCounter
from alcove.agents.transcripts import (
    RollingSummary,
    StoredMessage,
    Text,
    Transcript,
    conversation_principal,
    parse_message,
    parse_messages,
    turns_room,
    user_message,
)
from alcove.core import validation
from alcove.core.cursor import take_page
from alcove.core.errors import InvalidRequest, NotFound
from alcove.core.principal import Principal
from alcove.core.records import KeyBinding, Message
from alcove.llm.model import Model

if TYPE_CHECKING:
    from alcove.agents.knowledge import Knowledge
    from alcove.agents.service import Agents

MAX_SESSIONS = 1000
"""Sessions, or messages of one, in one answer."""
MAX_NUMBER = 10**12
"""Imported messages are numbered by the second of their time."""
_SESSION_DEPTH = len(("turns", "agent", "u", "user", "session"))
Limit = Annotated[int, Meta(ge=1, le=MAX_SESSIONS)]


class Session(Struct, frozen=True, kw_only=True):
    """A conversation with an agent. Its actor is the agent, and the user if authentication is on."""

    id: str
    actor: str
    messages: int
    last_at: datetime
    ended: bool


class SessionLog(Session, frozen=True, kw_only=True):
    """A session with its last messages, in order; `before` gets the page before them, if there is one."""

    said: list[Message]
    running_summary: list[Point]
    before: int | None


class AddedMessages(Struct, frozen=True, kw_only=True):
    """How many messages were stored, and how many the session has now."""

    added: int
    messages: int


class RemovedSessions(Struct, frozen=True, kw_only=True):
    """How many sessions were deleted, and how many messages with them."""

    sessions: int
    messages: int


class UserSummary(RollingSummary, frozen=True, kw_only=True):
    """The summary of a user's conversations; `pending` are sessions with messages that are not in it yet."""

    pending: list[str]


class Sessions:
    """Conversations of users with agents."""

    def __init__(
        self, agents: Agents, knowledge: Knowledge, count: TokenCounter, model: Model | None = None
    ) -> None:
        """`model`: writes summaries, if there is one."""
        self._agents, self._memories, self.count = agents, agents.memories, count
        note_use = partial(agents.calls.note_use, turns=0)
        writer = SummaryWriter(agents.memories, count, model, note_use)
        self._summaries = Summaries(agents.memories, count, writer)
        self.contexts = ContextBuilder(agents.memories, knowledge, self._summaries, count)

    def context(
        self,
        principal: Principal,
        agent: str,
        session_id: str,
        message: Text,
        *,
        budget_tokens: Budget = DEFAULT_BUDGET,
    ) -> Context:
        """The context of a message: the messages for a model, within one budget, and the receipt.

        `session_id`: the conversation. `message`: what the user says now. `budget_tokens`: for all of it.
        """
        validation.check_integer(budget_tokens, "budget_tokens", 1, 10_000_000)
        turn = self._turn(principal, agent, session_id)
        return self.contexts.build(turn, [user_message(message)], budget_tokens)

    # Messages

    def add_turns(
        self,
        principal: Principal,
        agent: str,
        session: str,
        messages: Sequence[Message | Mapping[str, Any]],
    ) -> AddedMessages:
        """Appends messages to a session, in one transaction.

        `messages`: of user, assistant and tool, with `tool_calls` and `tool_call_id` as in chat APIs.
        """
        turn, parsed = self._turn(principal, agent, session), parse_messages(messages)
        self.store(turn, parsed)
        return AddedMessages(added=len(parsed), messages=self._transcript(turn).count())

    def replace_last(
        self,
        principal: Principal,
        agent: str,
        session: str,
        *,
        last: Message | Mapping[str, Any],
        message: Message | Mapping[str, Any] | None = None,
    ) -> AddedMessages:
        """Replaces the last message of a session, or deletes it.

        `last`: the last message as you read it; a Conflict if it has changed since.
        `message`: the new one; without it, the last one is deleted. Summaries keep its sentences.
        """
        transcript = self._session_transcript(principal, agent, session)
        replacement = None if message is None else parse_message(message, "message")
        transcript.replace_last(parse_message(last, "last"), replacement)
        return AddedMessages(added=0 if message is None else 1, messages=transcript.count())

    def store(self, turn: Turn, messages: Sequence[Message], since: KeyBinding | None = None) -> None:
        """Appends the messages of a turn to its session.

        `since`: the user's key when the turn began (`Memories.key_binding`); if the user was wiped since
        then, nothing is stored.
        """
        mark = self._summaries.pending_mark(turn.rooms, ended=False)
        self._transcript(turn).add(messages, mark, since)
        self._summaries.schedule(turn.rooms, ended=False)

    def last_message(self, turn: Turn) -> Message | None:
        """The last stored message of a turn's session."""
        newest = next(self._transcript(turn).newest_first(), None)
        return newest and newest.message

    # Sessions

    def sessions(
        self, principal: Principal, agent: str, limit: Limit = 100, offset: int = 0
    ) -> list[Session]:
        """The caller's sessions with an agent, the last active first: `limit` of them, after `offset`."""
        validation.check_integer(limit, "limit", 1, MAX_SESSIONS)
        start = validation.check_integer(offset, "offset", 0, 2**31)
        return self._all(principal, agent)[start : start + limit]

    def session(
        self, principal: Principal, agent: str, session: str, limit: Limit = 100, before: int | None = None
    ) -> SessionLog:
        """A session with its last messages, at most `limit`; `before`: only those before this number."""
        transcript = self._session_transcript(principal, agent, session)
        validation.check_integer(limit, "limit", 1, MAX_SESSIONS)
        if before is not None:
            validation.check_integer(before, "before", 1, MAX_NUMBER)
        messages = transcript.newest_first(before, originals=True)
        newest, has_more = take_page(messages, limit, _size_bytes)
        page = newest[::-1]
        return SessionLog(
            **structs.asdict(self._describe(transcript)),
            said=[each.message for each in page],
            running_summary=transcript.state()[0].points,
            before=page[0].number if has_more else None,
        )

    def end_session(self, principal: Principal, agent: str, session: str) -> Session:
        """Ends a conversation, so that it is merged into the summary of the user's conversations."""
        turn = self._turn(principal, agent, session)
        transcript = self._transcript(turn)
        described = self._describe(transcript)
        transcript.end(self._summaries.pending_mark(turn.rooms, ended=True))
        self._summaries.schedule(turn.rooms, ended=True)
        return structs.replace(described, ended=True)

    def delete_session(self, principal: Principal, agent: str, session: str) -> RemovedSessions:
        """Erases a session with all versions; the summary of conversations keeps its sentences."""
        transcript = self._session_transcript(principal, agent, session)
        self._describe(transcript)
        return RemovedSessions(sessions=1, messages=self._delete(transcript))

    def prune_sessions(
        self, principal: Principal, agent: str, *, keep: Annotated[int, Meta(ge=0)]
    ) -> RemovedSessions:
        """Deletes all but the last active sessions; `keep` is how many stay."""
        validation.check_integer(keep, "keep", 0, 2**31)
        old = self._all(principal, agent)[keep:]
        messages = sum(self._delete(self._session_transcript(principal, agent, each.id)) for each in old)
        return RemovedSessions(sessions=len(old), messages=messages)

    # Summaries

    def summary(self, principal: Principal, agent: str) -> UserSummary:
        """The summary of the caller's conversations with an agent that have ended."""
        name = self._agents.agent(principal, agent).name
        pending = [mark.key for mark in self._summaries.pending(principal, name)]
        return UserSummary(**structs.asdict(self._summaries.read(principal, name)), pending=pending)

    def forget_summary(self, principal: Principal, agent: str) -> None:
        """Erases the summary of conversations with all its versions; later conversations start a new one."""
        if not self._summaries.forget(principal, self._agents.agent(principal, agent).name):
            raise NotFound("there is no summary")

    def schedule_changed(self) -> None:
        """Has conversations that continued on other nodes summarised, for a worker that serves no calls."""
        self._summaries.schedule_changed(self._agents.catalogue.find)

    def close(self) -> None:
        """Waits for summaries that are being made."""
        self._summaries.close()

    def _turn(self, principal: Principal, agent: str, session: str) -> Turn:
        return self._agents.turn(principal, self._agents.agent(principal, agent), session)

    def _session_transcript(self, principal: Principal, agent: str, session: str) -> Transcript:
        return self._transcript(self._turn(principal, agent, session))

    def _transcript(self, turn: Turn) -> Transcript:
        return Transcript(self._memories, turn.rooms, turn.caller, self.count)

    def _all(self, principal: Principal, agent: str) -> list[Session]:
        """All sessions, the last active first; a namespace without messages is none."""
        name, sessions = self._agents.agent(principal, agent).name, list[Session]()
        room = turns_room(name, principal.user_id)
        for namespace in self._memories.reader.namespaces(conversation_principal(principal, name), room):
            if len(namespace) == _SESSION_DEPTH:
                with suppress(NotFound, InvalidRequest):
                    transcript = self._session_transcript(principal, agent, namespace[-1])
                    sessions.append(self._describe(transcript))
        return sorted(sessions, key=lambda session: session.last_at, reverse=True)

    def _describe(self, transcript: Transcript) -> Session:
        newest = next(transcript.newest_first(), None)
        if newest is None:
            raise NotFound("there is no such session")
        assert newest.message.at is not None
        return Session(
            id=transcript.session,
            actor=transcript.actor,
            messages=transcript.count(),
            last_at=newest.message.at,
            ended=transcript.state()[0].ended == newest.number,
        )

    def _delete(self, transcript: Transcript) -> int:
        """Deletes a session with its mark for the summary; returns how many messages it had."""
        room = turns_room(transcript.agent.name, transcript.principal.user_id)
        self._memories.writer.delete(transcript.principal, room, transcript.session)
        return transcript.clear()


def _size_bytes(stored: StoredMessage) -> int:
    """About how many bytes a message takes in an answer."""
    original = len(msgspec.json.encode(stored.message.original)) if stored.message.original else 0
    return len(stored.message.content or "") + original + 500
