"""Sessions with agents, for every edge: keeping what is said, ending and deleting it; the next context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, structs

from alcove.agents.context import DEFAULT_BUDGET, Assembly, Context, Piece, as_data, conversation_pieces
from alcove.agents.conversations import Log, Said, checked, keeper, size, turns_room, units, windowed
from alcove.agents.messages import Message
from alcove.agents.specs import AgentMemory
from alcove.agents.summaries import Rolling, Summaries
from alcove.agents.summariser import Point
from alcove.agents.tokens import TokenCounter
from alcove.agents.tools.base import Turn, line, name, quoted
from alcove.agents.tools.private_pool_team import left_behind
from alcove.core.cursor import portion
from alcove.core.errors import InvalidRequest, NotFound
from alcove.core.principal import Principal
from alcove.core.records import Memory
from alcove.store import validation

if TYPE_CHECKING:
    from alcove.agents.knowledge import Knowledge
    from alcove.agents.service import Agents
    from alcove.search.terms import Question

MOST_SESSIONS = 1000
"""Sessions, or messages of one, in one answer."""
MOST_NOTES = 50
"""Notes that a preamble offers, the newest ones."""
MOST_STANDING = 1000
"""Standing instructions that are looked at, of each room."""
RECALLED = frozenset(("standing", "facts", "long_term"))
"""The tiers that draw on the recall budget."""
Text = Annotated[str, Meta(min_length=1)]
Limit = Annotated[int, Meta(ge=1, le=MOST_SESSIONS)]


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


class Added(Struct, frozen=True, kw_only=True):
    """How many messages were kept, and how many there are now."""

    added: int
    messages: int


class Removed(Struct, frozen=True, kw_only=True):
    """How many sessions were taken away, and how many messages with them."""

    sessions: int
    messages: int


class SummaryOfUser(Rolling, frozen=True, kw_only=True):
    """What is kept of a user's conversations; `pending` are sessions with something that is not in it yet."""

    pending: list[str]


class Sessions:
    """Conversations of agents, for whoever may use them."""

    def __init__(self, agents: Agents, knowledge: Knowledge, counter: Callable[[], TokenCounter]) -> None:
        """`counter`: what counts tokens; it is loaded when it is first asked for."""
        self._agents, self._memories, self._knowledge, self._counter = (
            agents,
            agents.memories,
            knowledge,
            counter,
        )
        self._summaries = Summaries(agents.memories, self._count)

    def _count(self, text: str) -> int:
        return self._counter()(text)

    # What was said

    def add_turns(
        self,
        principal: Principal,
        agent: str,
        session: str,
        messages: Sequence[Message | Mapping[str, Any]],
    ) -> Added:
        """Keeps messages after those that the session has, in one transaction.

        `messages`: of user, assistant and tool, with `tool_calls` and `tool_call_id` as chat APIs have them.
        """
        turn, given = self._turn(principal, agent, session), checked(messages)
        log = self._log(turn)
        log.add(given, lambda: self._summaries.mark(turn.rooms, ended=False))
        self._summaries.expect(turn.rooms, ended=False)
        return Added(added=len(given), messages=log.count())

    def sessions(
        self, principal: Principal, agent: str, limit: Limit = 100, offset: int = 0
    ) -> list[Session]:
        """The caller's sessions with an agent, the last active first: `limit` of them, after `offset`."""
        validation.whole(limit, "limit", 1, MOST_SESSIONS)
        start = validation.whole(offset, "offset", 0, 2**31)
        return self._all(principal, agent)[start : start + limit]

    def session(
        self, principal: Principal, agent: str, session: str, limit: Limit = 100, before: int | None = None
    ) -> SessionLog:
        """A session with its last messages, at most `limit`; `before`: only those before this number."""
        log = self._log(self._turn(principal, agent, session))
        validation.whole(limit, "limit", 1, MOST_SESSIONS)
        if before is not None:
            validation.whole(before, "before", 1, 2**31)
        said, more = portion(
            log.newest_first(before), limit, lambda said: len(said.message.content or "") + 500
        )
        shown = said[::-1]
        return SessionLog(
            **structs.asdict(self._described(log)),
            said=[each.message for each in shown],
            running_summary=log.state()[0].running,
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

    def delete_session(self, principal: Principal, agent: str, session: str) -> Removed:
        """Takes a session away, without a trace; what the summary of conversations has of it stays there."""
        log = self._log(self._turn(principal, agent, session))
        self._described(log)
        return Removed(sessions=1, messages=self._removed(log))

    def keep_sessions(self, principal: Principal, agent: str, *, keep: Annotated[int, Meta(ge=0)]) -> Removed:
        """Takes all but the last active sessions away; `keep` says how many stay."""
        validation.whole(keep, "keep", 0, 2**31)
        old = [
            self._log(self._turn(principal, agent, each.id)) for each in self._all(principal, agent)[keep:]
        ]
        return Removed(sessions=len(old), messages=sum(map(self._removed, old)))

    def _removed(self, log: Log) -> int:
        self._memories.delete(log.who, turns_room(log.agent.name, log.who.user_id), log.session)
        return log.clear()

    def _all(self, principal: Principal, agent: str) -> list[Session]:
        """Every session, the last active first; a namespace that holds no message is none."""
        spec, found = self._agents.agent(principal, agent), list[Session]()
        who, room = keeper(principal, spec.name), turns_room(spec.name, principal.user_id)
        for each in self._memories.namespaces(who, room):
            with suppress(NotFound, InvalidRequest):
                if len(each) == 5:
                    found.append(self._described(self._log(self._turn(principal, agent, each[4]))))
        return sorted(found, key=lambda session: session.last_at, reverse=True)

    def _described(self, log: Log) -> Session:
        newest = next(log.newest_first(), None)
        if newest is None:
            raise NotFound("there is no such session")
        assert newest.message.at is not None
        count, ended = log.count(), log.state()[0].ended == newest.number
        return Session(
            id=log.session, actor=log.actor, messages=count, last_at=newest.message.at, ended=ended
        )

    def _turn(self, principal: Principal, agent: str, session: str) -> Turn:
        return self._agents.turn(principal, self._agents.agent(principal, agent), session)

    def _log(self, turn: Turn) -> Log:
        return Log(self._memories, turn.rooms, keeper(turn.caller, turn.rooms.agent.name), self._count)

    # Across conversations

    def summary(self, principal: Principal, agent: str) -> SummaryOfUser:
        """What is kept of the caller's conversations with an agent that have ended."""
        name = self._agents.agent(principal, agent).name
        pending = [session for session, _ in self._summaries.pending(principal, name)]
        return SummaryOfUser(**structs.asdict(self._summaries.of(principal, name)), pending=pending)

    def forget_summary(self, principal: Principal, agent: str) -> None:
        """Takes that summary away, with every version it had; what is not in it yet will be merged anew."""
        if not self._summaries.forget(principal, self._agents.agent(principal, agent).name):
            raise NotFound("there is no summary")

    def close(self) -> None:
        """Waits for what is under way beside the calls."""
        self._summaries.close()

    # What reaches the prompt

    def context(
        self,
        principal: Principal,
        agent: str,
        session_id: str,
        message: Text,
        *,
        budget_tokens: Annotated[int, Meta(ge=1, le=10_000_000)] = DEFAULT_BUDGET,
    ) -> Context:
        """What a model is to be sent for a message: all enabled tiers within one budget, and the receipt.

        `session_id`: the conversation. `message`: what the user says now. `budget_tokens`: for all of it.
        """
        validation.whole(budget_tokens, "budget_tokens", 1, 10_000_000)
        if not validation.text(message, "message").strip():
            raise InvalidRequest("message", "something that was said")
        turn = self._turn(principal, agent, session_id)
        spec = turn.rooms.agent
        recalls = spec.memory != AgentMemory()
        assembly = Assembly(spec.instructions, message, budget_tokens, self._counter(), recalls=recalls)
        log = self._log(turn)
        with assembly.stage("conversation"):
            begun = self._conversation(log, assembly)
        with assembly.stage("summary"):
            if spec.memory.session_memory.enabled:
                if not begun:
                    self._summaries.catch_up(spec, principal.user_id)
                points = self._summaries.of(principal, spec.name).points
                assembly.offer("summary", _point_pieces(points))
        with assembly.stage("preamble"):
            if spec.memory.private.enabled and not begun:
                self._preamble(turn, assembly)
        if spec.memory.facts.enabled or spec.memory.long_term.enabled or spec.memory.knowledge.enabled:
            with assembly.stage("embedding"):
                asked = message.encode()[: validation.MAX_QUERY_BYTES].decode(errors="ignore")
                question = self._memories.question(asked)
                assembly.degraded = question.degraded
            with assembly.stage("recall"):
                self._recall(turn, question, assembly)
            with assembly.stage("knowledge"):
                self._knowledge.offer(turn, question, assembly)
        context = assembly.done()
        recalled = sum(
            len(context.receipt.tiers[tier].items) for tier in RECALLED & context.receipt.tiers.keys()
        )
        turn.recalls.begin(turn.rooms, spec.memory.long_term.recall_budget - recalled)
        return context

    def _conversation(self, log: Log, assembly: Assembly) -> bool:
        """Offers the window, and the summary of what fell out of it; whether anything was said before."""
        spec, said, tokens = log.agent.memory.conversation, list[Said](), 0
        for each in log.newest_first():
            said.append(each)
            tokens += size(each.message, self._count)
            outside = len(said) > spec.window_size or (spec.max_tokens and tokens > spec.max_tokens)
            if outside or not spec.enabled:
                break
        if said and spec.enabled:
            while outside and said[-1].message.role == "tool":
                said.pop()  # its call is older than the window
            kept, _ = windowed(units(said[::-1]), spec, self._count)
            shown = sum(map(len, kept))
            assembly.offer("conversation", conversation_pieces(kept, assembly))
            assembly.leave_out("conversation", "outside the window", count=log.count() - shown)
            if spec.summarize:
                assembly.offer("running", _point_pieces(log.state()[0].running))
        return bool(said)

    def _preamble(self, turn: Turn, assembly: Assembly) -> None:
        """Offers the private notes, or older ones where there are none, the newest first."""
        room = turn.room(turn.rooms.private)
        entries = sorted(room.entries(), key=lambda entry: entry.created_at, reverse=True)
        notes: list[Memory] = [*filter(None, (room.get(entry.key) for entry in entries[:MOST_NOTES]))]
        if not entries:
            older = {
                memory.key: memory for memory in sorted(left_behind(turn), key=lambda each: each.created_at)
            }
            entries = sorted(older.values(), key=lambda memory: memory.created_at, reverse=True)
            notes = [*older.values()][::-1][:MOST_NOTES]
        assembly.offer("preamble", [_memory_piece(memory, "private memory") for memory in notes])
        assembly.leave_out("preamble", f"older than the newest {MOST_NOTES}", count=len(entries) - len(notes))

    def _recall(self, turn: Turn, question: Question, assembly: Assembly) -> None:
        """Offers standing instructions, and what of facts and long-term memory fits the message best.

        All of it, with what tools recall in this turn, is at most the recall budget.
        """
        memory, budget = turn.rooms.agent.memory, turn.rooms.agent.memory.long_term.recall_budget
        rooms = [("long_term", turn.room(at)) for at in turn.rooms.long_term.values()]
        standing: dict[str, Memory] = {}
        for _, room in rooms:
            found = room.answers(question, filter={"type": "instruction"}, limit=MOST_STANDING)
            standing |= {each.id: each for each in found}
        newest = sorted(standing.values(), key=lambda each: each.created_at, reverse=True)
        assembly.offer("standing", [_standing_piece(each) for each in newest[:budget]][::-1])
        assembly.leave_out("standing", "recall budget", count=len(newest[budget:]))
        rooms += [("facts", turn.room(turn.rooms.facts))] if memory.facts.enabled else []
        related = [
            (tier, each)
            for tier, room in rooms
            for each in room.answers(question, limit=budget)
            if each.id not in standing
        ]
        related.sort(key=lambda pair: (-(pair[1].score or 0.0), pair[1].id))
        chosen = related[: max(0, budget - len(newest))]
        for tier in ("facts", "long_term"):
            source = f"{tier.replace('_', '-')} memory"
            pieces = [_memory_piece(each, source) for of, each in chosen if of == tier]
            there = sum(room.size() for of, room in rooms if of == tier)
            assembly.offer(tier, pieces)
            known = len(pieces) + (len(standing) if tier == "long_term" else 0)
            assembly.leave_out(tier, "recall budget", count=max(0, there - known))


def _point_pieces(points: Sequence[Point]) -> Iterator[Piece]:
    for place, point in enumerate(points):
        when = f", {point.at.date()}" if point.at else ""
        text = f"{quoted(point.text)} ({name(point.speaker)}{when})"
        yield Piece(f"point {place + 1}", as_data(text), "summary", point.at, wanted=point.weight)


def _memory_piece(memory: Memory, source: str) -> Piece:
    text = f"{line(memory)[:-1]}, {source})"
    return Piece(
        memory.id, as_data(text), source, memory.created_at, memory.score, wanted=memory.score or 0.0
    )


def _standing_piece(memory: Memory) -> Piece:
    text = f"{quoted(memory.value.get('content'))} (since {memory.created_at.date()})"
    moment = memory.created_at.timestamp()
    return Piece(memory.id, as_data(text), "standing instruction", memory.created_at, wanted=moment)
