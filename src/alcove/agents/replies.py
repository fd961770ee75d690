"""What is asked of an agent in a turn, and what it replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from alcove.agents.chat_messages import user_message
from alcove.agents.context_tiers import ContextReceipt
from alcove.core import validation
from alcove.core.records import Message
from alcove.llm.records import TokenUse


class ToolUse(Struct, frozen=True, kw_only=True):
    """A tool that was called in a turn, and what its model was told."""

    tool: str
    arguments: dict[str, Any]
    outcome: str
    """`ok`, or the code of the error."""
    text: str


class Reply(Struct, frozen=True, kw_only=True):
    """What came of a turn."""

    agent: str
    session_id: str | None
    text: str
    finish: str
    """Why it ended: stop, length, content_filter, or tool_calls where the caller has to run tools."""
    tools: list[ToolUse]
    tool_calls: list[dict[str, Any]]
    """Calls of the caller's own tools, as OpenAI has them."""
    rounds: int
    """How often the model was asked."""
    usage: TokenUse
    stored: bool
    """Whether it was kept in the session."""
    receipt: ContextReceipt
    timings_ms: dict[str, float]
    sent: list[Message]
    """What the model was sent the last time, for who asked to see it."""


class ChatEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened in a turn: a piece of the answer, a tool that was called, or its end."""

    text: str | None = None
    tool: ToolUse | None = None
    reply: Reply | None = None


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    """What a turn is about, and where it takes place."""

    agent: str
    messages: Sequence[Message]
    """What is said now, or the whole of a conversation that is not stored."""
    session_id: str | None
    """None for a conversation that is not stored."""
    is_resent: bool = False
    """True if `messages` may begin with what the session has already."""
    team: str | None = None
    instances: Mapping[str, str] = field(default_factory=dict)
    instructions: Sequence[str] = ()
    """The caller's own."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The caller's own, which are not run here."""
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: int | None = None
    stream: bool = False
    explain: bool = False

    @classmethod
    def of_message(
        cls,
        agent: str,
        session_id: str,
        message: str,
        instances: Mapping[str, str] | None,
        budget: int | None,
        *,
        stream: bool = False,
        explain: bool = False,
    ) -> TurnRequest:
        """A turn with one message of a user, in a session."""
        if budget is not None:
            validation.check_integer(budget, "budget_tokens", 1, 10_000_000)
        return cls(
            agent=agent,
            messages=[user_message(message)],
            session_id=session_id,
            instances=instances or {},
            budget=budget,
            stream=stream,
            explain=explain,
        )
