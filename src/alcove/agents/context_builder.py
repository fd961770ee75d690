"""Builds the context of a turn: reads what an agent remembers, tier by tier, and offers it to a draft."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from alcove.agents.chat_messages import StoredMessage, group_tool_calls, message_tokens, window_start
from alcove.agents.context_tiers import Context, ContextDraft, Piece, escape_tags
from alcove.agents.knowledge import Knowledge, KnowledgeHit
from alcove.agents.specs.records import AgentMemory
from alcove.agents.summaries import Summaries
from alcove.agents.tokens import TokenCounter
from alcove.agents.tools.answers import MAX_READ_CHARACTERS, format_memory, format_name, format_value
from alcove.agents.tools.long_term import distinct
from alcove.agents.tools.turn import Room, Turn
from alcove.agents.transcripts import (
    RollingSummary,
    SessionState,
    Transcript,
    conversation_principal,
    recalls_turns,
    to_stored_message,
    turns_room,
)
from alcove.core import validation
from alcove.core.records import Memory, Message
from alcove.store.memories import Memories

if TYPE_CHECKING:
    from alcove.search.query import ParsedQuery

MAX_NOTES = 50
"""Private notes that a context offers, the newest ones."""
MAX_STANDING = 1000
"""Standing instructions that are read from each room."""
RECALLED = frozenset(("standing", "facts", "long_term"))
"""The tiers that use up the recall budget."""


class ContextBuilder:
    """Builds contexts from conversations, summaries, notes, long-term memory and knowledge."""

    def __init__(
        self, memories: Memories, knowledge: Knowledge, summaries: Summaries, count: TokenCounter
    ) -> None:
        """`count`: counts the tokens of a text."""
        self._memories, self._knowledge, self._summaries = memories, knowledge, summaries
        self._count = count

    def build(
        self,
        turn: Turn,
        messages: Sequence[Message],
        budget: int,
        *,
        history: Sequence[Message] | None = None,
        instructions: Sequence[str] = (),
    ) -> Context:
        """Builds the context of new messages.

        `history`: the earlier messages if the caller sends them; they replace the stored ones and go in
        whole, on top of the budget. `instructions`: the caller's own, after the agent's.
        """
        spec, memory = turn.rooms.agent, turn.rooms.agent.memory
        budget += sum(message_tokens(each, self._count) for each in history or ())
        has_recalled = memory != AgentMemory()
        draft = ContextDraft(
            [spec.instructions, *instructions], messages, budget, self._count, has_recalled=has_recalled
        )
        stage = draft.stopwatch.stage
        transcript: Transcript | None = None
        has_history = bool(history)
        with stage("conversation"), draft.unless_denied("conversation"):
            if history is None:
                transcript = Transcript(self._memories, turn.rooms, turn.caller, self._count, cached=True)
                has_history = self._offer_conversation(transcript, draft)
            else:
                earlier = [StoredMessage(n, f"message {n}", each) for n, each in enumerate(history, 1)]
                draft.offer_conversation(group_tool_calls(earlier))
        with stage("summary"), draft.unless_denied("summary"):
            if memory.session_memory.enabled and transcript and has_history:
                self._offer_summary("summary", transcript.rolling_summary()[0], draft)
            elif memory.session_memory.enabled:
                if not has_history:
                    self._summaries.catch_up(spec, turn.caller.user_id)
                self._offer_summary("summary", self._summaries.read(turn.caller, spec.name), draft)
        with stage("preamble"), draft.unless_denied("preamble"):
            if memory.private.enabled and not has_history:
                _offer_notes(turn, draft)
        texts = (each.content for each in reversed(messages) if each.role == "user" and each.content)
        query = next(texts, "")
        has_sources = memory.facts.enabled or memory.long_term.enabled or memory.knowledge.enabled
        if query and (has_sources or recalls_turns(memory)):
            self._offer_search_hits(turn, query, draft)
        context = draft.finish()
        tiers = context.receipt.tiers
        recalled = sum(len(tiers[tier].items) for tier in RECALLED & tiers.keys())
        turn.recalls.begin(turn.rooms, memory.long_term.recall_budget - recalled)
        return context

    def _offer_conversation(self, transcript: Transcript, draft: ContextDraft) -> bool:
        """Offers the window and the summary of older messages; returns whether there are any messages."""
        spec = transcript.agent.memory.conversation
        messages, tokens, is_cut = list[StoredMessage](), 0, False
        for each in transcript.newest_first():
            messages.append(each)
            tokens += message_tokens(each.message, self._count)
            is_cut = len(messages) > spec.window_size or bool(spec.max_tokens and tokens > spec.max_tokens)
            if is_cut or not spec.enabled:
                break
        if messages and spec.enabled:
            while is_cut and messages[-1].message.role == "tool":
                messages.pop()  # its call is older than the window
            groups = group_tool_calls(messages[::-1])
            window = groups[window_start(groups, spec, self._count) :]
            draft.offer_conversation(window)
            older = transcript.count() - sum(map(len, window))
            draft.leave_out("conversation", "outside the window", count=older)
            if spec.summarize:
                with draft.unless_denied("running"):
                    self._offer_summary("running", transcript.state()[0], draft)
        return bool(messages)

    def _offer_summary(self, tier: str, summary: RollingSummary | SessionState, draft: ContextDraft) -> None:
        """Offers a model's summary as far as it goes, and the other sentences of the conversation."""
        pieces = list[Piece]()
        if prose := summary.prose:
            lines, source = prose.text.splitlines(), f"summary by {prose.model}"
            pieces += (
                Piece(f"line {n}", escape_tags(text), source, prose.covers_until, priority=len(lines))
                for n, text in enumerate(map(format_value, lines), 1)
            )
        for n, point in enumerate((each for each in summary.points if not each.in_prose), 1):
            text = _quote_speaker(point.text, point.speaker, point.at)
            pieces.append(Piece(f"point {n}", text, "summary", point.at, priority=point.weight))
        draft.offer(tier, pieces)
        if self._summaries.has_model and summary.trouble:
            draft.degrade(f"{tier} has the conversation's own sentences: {summary.trouble}")

    def _offer_search_hits(self, turn: Turn, query: str, draft: ContextDraft) -> None:
        """Offers what fits the user's message of long-term memory, earlier messages and knowledge."""
        stage, memory = draft.stopwatch.stage, turn.rooms.agent.memory
        with stage("embedding"):
            query = query.encode()[: validation.MAX_QUERY_BYTES].decode(errors="ignore")
            parsed_query = self._memories.searcher.parse_query(query)
            draft.degrade(parsed_query.degraded)
        with stage("recall"):
            _offer_long_term(turn, parsed_query, draft)
            if recalls_turns(memory):
                with draft.unless_denied("earlier"):
                    self._offer_earlier_messages(turn, parsed_query, draft)
        with stage("knowledge"):
            if memory.knowledge.enabled:
                self._offer_knowledge(turn, parsed_query, draft)

    def _offer_earlier_messages(self, turn: Turn, query: ParsedQuery, draft: ContextDraft) -> None:
        """Offers messages of any of the user's conversations that fit the message, the oldest first."""
        agent, texts = turn.rooms.agent, draft.conversation_texts()
        limit, principal = agent.memory.conversation.recall, conversation_principal(turn.caller, agent.name)
        room = turns_room(agent.name, turn.rooms.user)
        most = min(100, 2 * limit + len(texts))
        hits = self._memories.searcher.search_parsed(principal, room, query, limit=most)
        ranked: list[StoredMessage] = []
        for each in filter(None, map(to_stored_message, hits)):
            if each.message.content not in texts:
                texts.add(each.message.content)  # a text that was repeated is offered once
                ranked.append(each)
        by_time = sorted(enumerate(ranked[:limit]), key=lambda pair: (pair[1].message.at, pair[1].number))
        pieces = []
        for rank, (_, id, message) in by_time:
            text = _quote_speaker(message.content, message.name or message.role, message.at)
            pieces.append(Piece(id, text, "earlier message", message.at, priority=-rank))
        draft.offer("earlier", pieces)

    def _offer_knowledge(self, turn: Turn, query: ParsedQuery, draft: ContextDraft) -> None:
        """Offers the relevant chunks of the agent's sources."""
        spec, hits = turn.rooms.agent.memory.knowledge, list[KnowledgeHit]()
        for source, room in turn.rooms.knowledge.items():
            with draft.unless_denied("knowledge"):
                hits += self._knowledge.search(turn.principal_for(room), source, query, spec.retrieval_limit)
        hits.sort(key=lambda hit: (-hit.score, hit.id))
        relevant = [hit for hit in hits if hit.score >= spec.similarity_threshold]
        draft.offer("knowledge", map(_knowledge_piece, relevant[: spec.retrieval_limit]))
        for hit in relevant[spec.retrieval_limit :]:
            draft.leave_out("knowledge", "retrieval limit", _knowledge_piece(hit))
        for hit in hits[len(relevant) :]:
            draft.leave_out("knowledge", f"below the threshold ({hit.score:.2f})", _knowledge_piece(hit))


def _offer_notes(turn: Turn, draft: ContextDraft) -> None:
    """Offers the newest private notes, or those of child namespaces if there are none."""
    room = turn.room(turn.rooms.private)
    entries = sorted(room.entries(), key=lambda entry: entry.created_at, reverse=True)
    notes: list[Memory] = [*filter(None, (room.get(entry.key) for entry in entries[:MAX_NOTES]))]
    count = len(entries)
    if not entries and (children := turn.child_rooms):
        child_entries = children.newest_entries()
        notes, count = [*children.open(child_entries[:MAX_NOTES])], len(child_entries)
    draft.offer("preamble", [_memory_piece(memory, "private memory") for memory in notes])
    draft.leave_out("preamble", f"older than the newest {MAX_NOTES}", count=count - len(notes))


def _offer_long_term(turn: Turn, query: ParsedQuery, draft: ContextDraft) -> None:
    """Offers standing instructions, and the facts and long-term memories that fit the message best.

    Together with what tools recall in this turn, they are at most the recall budget. Equal content in both
    scopes of long-term memory is offered once.
    """
    memory, budget = turn.rooms.agent.memory, turn.rooms.agent.memory.long_term.recall_budget
    candidates = [("long_term", turn.room(namespace)) for namespace in turn.rooms.long_term.values()]
    candidates += [("facts", turn.room(turn.rooms.facts))] if memory.facts.enabled else []
    rooms: list[tuple[str, Room, int]] = []
    for tier, room in candidates:
        with draft.unless_denied(tier):
            if size := room.size():  # most rooms are empty
                rooms.append((tier, room, size))
    instructions = [
        each
        for tier, room, _ in rooms
        if tier == "long_term"
        for each in room.search_parsed(query, filter={"type": "instruction"}, limit=MAX_STANDING)
    ]
    standing = distinct(sorted(instructions, key=lambda each: each.created_at, reverse=True))
    draft.offer("standing", [_standing_piece(each) for each in standing[:budget]][::-1])
    draft.leave_out("standing", "recall budget", count=len(standing[budget:]))
    hits = [(tier, each) for tier, room, _ in rooms for each in room.search_parsed(query, limit=budget)]
    hits.sort(key=lambda pair: (-(pair[1].score or 0.0), pair[1].id))
    long_term = [each for tier, each in hits if tier == "long_term"]
    contents = distinct([*standing, *long_term])
    not_standing = {each.id for each in contents[len(standing) :]}
    selected = [(tier, each) for tier, each in hits if tier == "facts" or each.id in not_standing]
    del selected[max(0, budget - len(standing)) :]
    repeated = len({each.id for each in (*instructions, *long_term)}) - len(contents)
    draft.leave_out("long_term", "same content as another", count=repeated)
    for tier in ("facts", "long_term"):
        source = f"{tier.replace('_', '-')} memory"
        pieces = [_memory_piece(each, source) for hit_tier, each in selected if hit_tier == tier]
        draft.offer(tier, pieces)
        total = sum(size for room_tier, _, size in rooms if room_tier == tier)
        offered = len(pieces) + (len(standing) + repeated if tier == "long_term" else 0)
        draft.leave_out(tier, "recall budget", count=max(0, total - offered))


def _quote_speaker(text: str | None, speaker: str, time: datetime | None) -> str:
    """A text as quoted data, with its speaker and date."""
    return escape_tags(f"{format_value(text)} ({format_name(speaker)}{f', {time.date()}' if time else ''})")


def _memory_piece(memory: Memory, source: str) -> Piece:
    text, score = escape_tags(f"{format_memory(memory)[:-1]}, {source})"), memory.score
    return Piece(memory.id, text, source, memory.created_at, score, priority=score or 0.0)


def _standing_piece(memory: Memory) -> Piece:
    text = escape_tags(f"{format_value(memory.value.get('content'))} (since {memory.created_at.date()})")
    priority = memory.created_at.timestamp()
    return Piece(memory.id, text, "standing instruction", memory.created_at, priority=priority)


def _knowledge_piece(hit: KnowledgeHit) -> Piece:
    page = f"page {hit.page}" if hit.page else ""
    place = ", ".join(map(format_value, filter(None, (hit.document, hit.heading, page))))
    text = escape_tags(f"{format_value(hit.text, MAX_READ_CHARACTERS)} ({place}, {hit.at.date()})")
    return Piece(hit.id, text, hit.source, hit.at, hit.score, hit.cosine, priority=hit.score)
