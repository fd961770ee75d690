"""Sessions with agents, for every edge: keeping what is said, ending and deleting it; the next context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from alcove.agents.conversations import (
    StoredMessage,
    Transcript,
    conversation_principal,
    parse_message,
    parse_messages,
    turns_room,
)
from alcove.agents.prompts import Prompts
from alcove.agents.summariser import Point
from alcove.agents.summary_writer import RollingSummary, SummaryTask
from alcove.agents.tools.base import Turn
from alcove.core import validation
from alcove.core.cursor import take_page
from alcove.core.errors import InvalidRequest, NotFound
from alcove.core.messages import Message
from alcove.core.principal import Principal
from alcove.core.records import KeyBinding

MAX_SESSIONS = 1000
"""Sessions, or messages of one, in one answer."""
MAX_NUMBER = 10**12
"""Messages that were brought from elsewhere are numbered by the second in which they were said."""
Limit = Annotated[int, Meta(ge=1, le=MAX_SESSIONS)]


class Session(Struct, frozen=True, kw_only=True):
    """A conversation with an agent; its actor is the agent, and the user where it is known who that is."""

    id: str
    actor: str
    messages: int
    last_at: datetime
    ended: bool


class SessionLog(Session, frozen=True, kw_only=True):
    """The same with what was said, in order; `before` is where to go on backwards, if there is more."""

    said: list[Message]
    running_summary: list[Point]
    before: int | None


class AddedMessages(Struct, frozen=True, kw_only=True):
    """How many messages were kept, and how many there are now."""

    added: int
    messages: int


class RemovedSessions(Struct, frozen=True, kw_only=True):
    """How many sessions were taken away, and how many messages with them."""

    sessions: int
    messages: int


class UserSummary(RollingSummary, frozen=True, kw_only=True):
    """What is kept of a user's conversations; `pending` are sessions with something that is not in it yet."""

    pending: list[str]


def _shown_bytes(said: StoredMessage) -> int:
    """About how many bytes a message takes in an answer."""
    original = len(msgspec.json.encode(said.message.original)) if said.message.original else 0
    return len(said.message.content or "") + original + 500


class Sessions(Prompts):
    """Conversations of agents, for whoever may use them."""

    # What was said

    def add_turns(
        self,
        principal: Principal,
        agent: str,
        session: str,
        messages: Sequence[Message | Mapping[str, Any]],
    ) -> AddedMessages:
        """Keeps messages after those that the session has, in one transaction.

        `messages`: of user, assistant and tool, with `tool_calls` and `tool_call_id` as chat APIs have them.
        """
        turn, given = self._turn(principal, agent, session), parse_messages(messages)
        self.keep(turn, given)
        return AddedMessages(added=len(given), messages=self._log(turn).count())

    def replace_last(
        self,
        principal: Principal,
        agent: str,
        session: str,
        *,
        last: Message | Mapping[str, Any],
        message: Message | Mapping[str, Any] | None = None,
    ) -> AddedMessages:
        """Puts another message in the place of the last one, or takes that away where there is none.

        `last`: the last message as it was read; a Conflict if it is another one by now.
        `message`: what stands there then. Summaries keep what they have of the last one.
        """
        log = self._log(self._turn(principal, agent, session))
        other = None if message is None else parse_message(message, "message")
        log.replace_last(parse_message(last, "last"), other)
        return AddedMessages(added=0 if message is None else 1, messages=log.count())

    def keep(self, turn: Turn, messages: Sequence[Message], since: KeyBinding | None = None) -> None:
        """Keeps what was said in a turn; `since`: what `Memories.key_binding` gave when that began."""
        self._log(turn).add(messages, lambda: self._summaries.mark(turn.rooms, ended=False), since)
        self._summaries.expect(turn.rooms, ended=False)
        spec = turn.rooms.agent
        if spec.memory.conversation.enabled and spec.memory.conversation.summarize:
            wanted = SummaryTask(spec, turn.rooms.user, turn.rooms.session(), rolling=False)
            self._summaries.writer.want(wanted)

    def last(self, turn: Turn) -> Message | None:
        """The last message that is kept of a turn's session."""
        newest = next(self._log(turn).newest_first(), None)
        return newest and newest.message

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
        log = self._log(self._turn(principal, agent, session))
        validation.check_integer(limit, "limit", 1, MAX_SESSIONS)
        if before is not None:
            validation.check_integer(before, "before", 1, MAX_NUMBER)
        said, more = take_page(log.newest_first(before, originals=True), limit, _shown_bytes)
        shown = said[::-1]
        return SessionLog(
            **structs.asdict(self._described(log)),
            said=[each.message for each in shown],
            running_summary=log.state()[0].points,
            before=shown[0].number if more else None,
        )

    def end_session(self, principal: Principal, agent: str, session: str) -> Session:
        """Says that a conversation is over, so that it goes into the summary of the user's conversations."""
        turn = self._turn(principal, agent, session)
        log = self._log(turn)
        described = self._described(log)
        log.end(lambda: self._summaries.mark(turn.rooms, ended=True))
        self._summaries.expect(turn.rooms, ended=True)
        return structs.replace(described, ended=True)

    def delete_session(self, principal: Principal, agent: str, session: str) -> RemovedSessions:
        """Takes a session away, without a trace; what the summary of conversations has of it stays there."""
        log = self._log(self._turn(principal, agent, session))
        self._described(log)
        return RemovedSessions(sessions=1, messages=self._removed(log))

    def keep_sessions(
        self, principal: Principal, agent: str, *, keep: Annotated[int, Meta(ge=0)]
    ) -> RemovedSessions:
        """Takes all but the last active sessions away; `keep` says how many stay."""
        validation.check_integer(keep, "keep", 0, 2**31)
        old = [
            self._log(self._turn(principal, agent, each.id)) for each in self._all(principal, agent)[keep:]
        ]
        return RemovedSessions(sessions=len(old), messages=sum(map(self._removed, old)))

    def _removed(self, log: Transcript) -> int:
        self._memories.delete(log.who, turns_room(log.agent.name, log.who.user_id), log.session)
        return log.clear()

    def _all(self, principal: Principal, agent: str) -> list[Session]:
        """Every session, the last active first; a namespace that holds no message is none."""
        spec, found = self._agents.agent(principal, agent), list[Session]()
        who, room = conversation_principal(principal, spec.name), turns_room(spec.name, principal.user_id)
        for each in self._memories.namespaces(who, room):
            with suppress(NotFound, InvalidRequest):
                if len(each) == 5:
                    found.append(self._described(self._log(self._turn(principal, agent, each[4]))))
        return sorted(found, key=lambda session: session.last_at, reverse=True)

    def _described(self, log: Transcript) -> Session:
        newest = next(log.newest_first(), None)
        if newest is None:
            raise NotFound("there is no such session")
        assert newest.message.at is not None
        count, ended = log.count(), log.state()[0].ended == newest.number
        return Session(
            id=log.session, actor=log.actor, messages=count, last_at=newest.message.at, ended=ended
        )

    # Across conversations

    def summary(self, principal: Principal, agent: str) -> UserSummary:
        """What is kept of the caller's conversations with an agent that have ended."""
        name = self._agents.agent(principal, agent).name
        pending = [mark.key for mark in self._summaries.pending(principal, name)]
        return UserSummary(**structs.asdict(self._summaries.of(principal, name)), pending=pending)

    def forget_summary(self, principal: Principal, agent: str) -> None:
        """Takes that summary away, with every version it had; what is not in it yet will be merged anew."""
        if not self._summaries.forget(principal, self._agents.agent(principal, agent).name):
            raise NotFound("there is no summary")

    def keep_up(self) -> None:
        """Has conversations summarised that went on at other nodes; for who takes no calls."""
        self._summaries.keep_up(self._agents.catalogue.find)

    def close(self) -> None:
        """Waits for what is under way beside the calls."""
        self._summaries.close()
