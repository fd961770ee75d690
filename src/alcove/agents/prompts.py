"""What an agent remembers, tier by tier, as it is offered to the prompt of a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from alcove.agents.context import DEFAULT_BUDGET, Assembly, Context, Piece, conversation_pieces, escape_tags
from alcove.agents.conversations import (
    SessionState,
    StoredMessage,
    Transcript,
    conversation_principal,
    group_tool_calls,
    message_tokens,
    recalls_turns,
    split_window,
    to_stored_message,
    turns_room,
)
from alcove.agents.specs.records import AgentMemory
from alcove.agents.summaries import Summaries
from alcove.agents.summariser import Point, points_without_prose
from alcove.agents.summary_writer import RollingSummary, SummaryWriter
from alcove.agents.tokens import TokenCounter
from alcove.agents.tools.base import Turn, line, name, quoted
from alcove.agents.tools.child_rooms import child_rooms
from alcove.agents.tools.user_memory import distinct
from alcove.core import validation
from alcove.core.errors import InvalidRequest
from alcove.core.messages import Message
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import Memory
from alcove.llm.model import Model
from alcove.store.session_cache import MemoryReader

if TYPE_CHECKING:
    from alcove.agents.knowledge import Knowledge
    from alcove.agents.service import Agents
    from alcove.search.text.terms import ParsedQuery

MOST_NOTES = 50
"""Notes that a preamble offers, the newest ones."""
MOST_STANDING = 1000
"""Standing instructions that are looked at, of each room."""
RECALLED = frozenset(("standing", "facts", "long_term"))
"""The tiers that draw on the recall budget."""
Text = Annotated[str, Meta(min_length=1)]
Budget = Annotated[int, Meta(ge=1, le=10_000_000)]


class Prompts:
    """Makes contexts of what agents remember."""

    def __init__(
        self,
        agents: Agents,
        knowledge: Knowledge,
        counter: Callable[[], TokenCounter],
        model: Model | None = None,
    ) -> None:
        """`counter`: what counts tokens, loaded when first asked for. `model`: writes summaries, too."""
        self._agents, self._memories = agents, agents.memories
        self._knowledge, self._counter = knowledge, counter
        self._writes = model is not None
        writer = SummaryWriter(agents.memories, self.count, model, partial(agents.calls.note_use, turns=0))
        self._summaries = Summaries(agents.memories, self.count, writer)

    def count(self, text: str) -> int:
        """How many tokens a text has."""
        return self._counter()(text)

    def context(
        self,
        principal: Principal,
        agent: str,
        session_id: str,
        message: Text,
        *,
        budget_tokens: Budget = DEFAULT_BUDGET,
    ) -> Context:
        """What a model is to be sent for a message: all enabled tiers within one budget, and the receipt.

        `session_id`: the conversation. `message`: what the user says now. `budget_tokens`: for all of it.
        """
        validation.check_integer(budget_tokens, "budget_tokens", 1, 10_000_000)
        return self.assembled(
            self._turn(principal, agent, session_id), [user_message(message)], budget_tokens
        )

    def assembled(
        self,
        turn: Turn,
        new: Sequence[Message],
        budget: int,
        *,
        before: Sequence[Message] | None = None,
        instructions: Sequence[str] = (),
    ) -> Context:
        """The same in a turn, for one or several messages.

        `before`: what was said before, where that is not what is kept of the session; all of it goes in,
        beside the budget. `instructions`: a caller's own, after those of the agent.
        """
        spec, principal, count = turn.rooms.agent, turn.caller, self._counter()
        recalls = spec.memory != AgentMemory()
        budget += sum(message_tokens(each, count) for each in before or ())
        assembly = Assembly([spec.instructions, *instructions], new, budget, count, recalls=recalls)
        message = next((each.content for each in reversed(new) if each.role == "user" and each.content), "")
        recent: MemoryReader | None = None
        begun = bool(before)
        with assembly.stage("conversation"), assembly.unless_denied("conversation"):
            if before is None:
                log = self._log(turn)
                recent = log.reads = self._memories.cached_reader(log.who, log.places)
                begun = self._conversation(log, assembly)
            else:
                told = [StoredMessage(n, f"message {n}", each) for n, each in enumerate(before, 1)]
                assembly.offer("conversation", conversation_pieces(group_tool_calls(told), assembly))
        with assembly.stage("summary"), assembly.unless_denied("summary"):
            if spec.memory.session_memory.enabled:
                if not begun:
                    self._summaries.catch_up(spec, principal.user_id)
                rolling = self._summaries.of(principal, spec.name, recent if begun else None)
                _offer_summary(assembly, "summary", rolling, trouble=self._writes)
        with assembly.stage("preamble"), assembly.unless_denied("preamble"):
            if spec.memory.private.enabled and not begun:
                self._preamble(turn, assembly)
        memory = spec.memory
        searched = any(tier.enabled for tier in (memory.facts, memory.long_term, memory.knowledge))
        if message and (searched or recalls_turns(memory)):
            with assembly.stage("embedding"):
                asked = message.encode()[: validation.MAX_QUERY_BYTES].decode(errors="ignore")
                question = self._memories.parse_query(asked)
                assembly.degrade(question.degraded)
            with assembly.stage("recall"):
                self._recall(turn, question, assembly)
                if recalls_turns(memory):
                    with assembly.unless_denied("earlier"):
                        self._earlier(turn, question, assembly)
            with assembly.stage("knowledge"):
                self._knowledge.offer(turn, question, assembly)
        context = assembly.done()
        recalled = sum(
            len(context.receipt.tiers[tier].items) for tier in RECALLED & context.receipt.tiers.keys()
        )
        turn.recalls.begin(turn.rooms, spec.memory.long_term.recall_budget - recalled)
        return context

    def _conversation(self, log: Transcript, assembly: Assembly) -> bool:
        """Offers the window, and the summary of what fell out of it; whether anything was said before."""
        spec, said, tokens = log.agent.memory.conversation, list[StoredMessage](), 0
        for each in log.newest_first():
            said.append(each)
            tokens += message_tokens(each.message, self.count)
            outside = len(said) > spec.window_size or (spec.max_tokens and tokens > spec.max_tokens)
            if outside or not spec.enabled:
                break
        if said and spec.enabled:
            while outside and said[-1].message.role == "tool":
                said.pop()  # its call is older than the window
            kept, _ = split_window(group_tool_calls(said[::-1]), spec, self.count)
            shown = sum(map(len, kept))
            assembly.offer("conversation", conversation_pieces(kept, assembly))
            assembly.leave_out("conversation", "outside the window", count=log.count() - shown)
            if spec.summarize:
                with assembly.unless_denied("running"):
                    _offer_summary(assembly, "running", log.state()[0], trouble=self._writes)
        return bool(said)

    def _preamble(self, turn: Turn, assembly: Assembly) -> None:
        """Offers the private notes, or those of child namespaces where there are none, the newest first."""
        room = turn.room(turn.rooms.private)
        entries = sorted(room.entries(), key=lambda entry: entry.created_at, reverse=True)
        notes: list[Memory] = [*filter(None, (room.get(entry.key) for entry in entries[:MOST_NOTES]))]
        children = None if entries else child_rooms(turn)
        older = children.newest_entries() if children else []
        notes += children.open(older[:MOST_NOTES]) if children else ()
        left = len(entries or older) - len(notes)
        assembly.offer("preamble", [_memory_piece(memory, "private memory") for memory in notes])
        assembly.leave_out("preamble", f"older than the newest {MOST_NOTES}", count=left)

    def _recall(self, turn: Turn, question: ParsedQuery, assembly: Assembly) -> None:
        """Offers standing instructions, and what of facts and long-term memory fits the message best.

        All of it, with what tools recall in this turn, is at most the recall budget. Equal content in both
        scopes of long-term memory is offered once.
        """
        memory, budget = turn.rooms.agent.memory, turn.rooms.agent.memory.long_term.recall_budget
        every = [("long_term", turn.room(at)) for at in turn.rooms.long_term.values()]
        every += [("facts", turn.room(turn.rooms.facts))] if memory.facts.enabled else []
        sizes: dict[Namespace, int] = {}
        for tier, room in every:
            with assembly.unless_denied(tier):
                sizes[room.at] = room.size()
        rooms = [(tier, room) for tier, room in every if sizes.get(room.at)]  # many have nothing in them
        rules = [
            each
            for tier, room in rooms
            if tier == "long_term"
            for each in room.answers(question, filter={"type": "instruction"}, limit=MOST_STANDING)
        ]
        newest = distinct(sorted(rules, key=lambda each: each.created_at, reverse=True))
        assembly.offer("standing", [_standing_piece(each) for each in newest[:budget]][::-1])
        assembly.leave_out("standing", "recall budget", count=len(newest[budget:]))
        found = [(tier, each) for tier, room in rooms for each in room.answers(question, limit=budget)]
        found.sort(key=lambda pair: (-(pair[1].score or 0.0), pair[1].id))
        long_term = [each for tier, each in found if tier == "long_term"]
        contents = distinct([*newest, *long_term])
        related = {each.id for each in contents[len(newest) :]}  # which no standing instruction says
        chosen = [(tier, each) for tier, each in found if tier == "facts" or each.id in related]
        del chosen[max(0, budget - len(newest)) :]
        repeated = len({each.id for each in (*rules, *long_term)}) - len(contents)
        assembly.leave_out("long_term", "same content as another", count=repeated)
        for tier in ("facts", "long_term"):
            source = f"{tier.replace('_', '-')} memory"
            pieces = [_memory_piece(each, source) for of, each in chosen if of == tier]
            there = sum(sizes[room.at] for of, room in rooms if of == tier)
            assembly.offer(tier, pieces)
            known = len(pieces) + (len(newest) + repeated if tier == "long_term" else 0)
            assembly.leave_out(tier, "recall budget", count=max(0, there - known))

    def _earlier(self, turn: Turn, question: ParsedQuery, assembly: Assembly) -> None:
        """Offers messages of any of the user's conversations that fit the message, the oldest first."""
        name, user, shown = turn.rooms.agent.name, turn.rooms.user, assembly.said()
        most, who = turn.rooms.agent.memory.conversation.recall, conversation_principal(turn.caller, name)
        found = self._memories.search_parsed(
            who, turns_room(name, user), question, limit=min(100, 2 * most + len(shown))
        )
        fitting: list[StoredMessage] = []
        for each in filter(None, map(to_stored_message, found)):
            if each.message.content not in shown:
                shown.add(each.message.content)  # who says a thing again and again is heard once
                fitting.append(each)
        del fitting[most:]
        ranked = sorted(enumerate(fitting), key=lambda pair: (pair[1].message.at, pair[1].number))
        assembly.offer("earlier", [_said_piece(said, wanted=-place) for place, said in ranked])

    def _turn(self, principal: Principal, agent: str, session: str) -> Turn:
        return self._agents.turn(principal, self._agents.agent(principal, agent), session)

    def _log(self, turn: Turn) -> Transcript:
        return Transcript(self._memories, turn.rooms, turn.caller, self.count)


def _said_piece(said: StoredMessage, *, wanted: float) -> Piece:
    message = said.message
    text = _spoken(message.content, message.name or message.role, message.at)
    return Piece(said.id, text, "earlier message", message.at, wanted=wanted)


def _spoken(text: str | None, speaker: str, at: datetime | None) -> str:
    """What somebody said, as data, with who and when."""
    return escape_tags(f"{quoted(text)} ({name(speaker)}{f', {at.date()}' if at else ''})")


def user_message(message: str, field: str = "message") -> Message:
    """What a user says; an error names the field that it came in."""
    if not validation.encode_text(message, field).strip():
        raise InvalidRequest(field, "something that was said")
    return Message(role="user", content=message)


def _offer_summary(
    assembly: Assembly, tier: str, summary: RollingSummary | SessionState, *, trouble: bool
) -> None:
    """Offers a summary: a model's words as far as they go, and the conversation's sentences beside them.

    `trouble`: whether to tell why a model wrote none.
    """
    prose = summary.prose
    lines = prose.text.splitlines() if prose else []
    written = [
        Piece(
            f"line {n}", escape_tags(quoted(line)), f"summary by {prose.model}", prose.upto, wanted=len(lines)
        )
        for n, line in enumerate(lines, 1)
        if prose
    ]
    assembly.offer(tier, [*written, *_point_pieces(points_without_prose(summary.points))])
    if trouble and summary.trouble:
        assembly.degrade(f"{tier} has the conversation's own sentences: {summary.trouble}")


def _point_pieces(points: Sequence[Point]) -> Iterator[Piece]:
    for place, point in enumerate(points, 1):
        text = _spoken(point.text, point.speaker, point.at)
        yield Piece(f"point {place}", text, "summary", point.at, wanted=point.weight)


def _memory_piece(memory: Memory, source: str) -> Piece:
    text = f"{line(memory)[:-1]}, {source})"
    return Piece(
        memory.id, escape_tags(text), source, memory.created_at, memory.score, wanted=memory.score or 0.0
    )


def _standing_piece(memory: Memory) -> Piece:
    text = f"{quoted(memory.value.get('content'))} (since {memory.created_at.date()})"
    moment = memory.created_at.timestamp()
    return Piece(memory.id, escape_tags(text), "standing instruction", memory.created_at, wanted=moment)
