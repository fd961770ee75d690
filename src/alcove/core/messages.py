"""A message of a conversation, as chat APIs have it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What somebody said, or what a tool answered."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    """None only where there are tool calls."""
    tool_calls: list[dict[str, Any]] = []
    """As OpenAI's chat API has them: `{"id", "type": "function", "function": {"name", "arguments"}}`."""
    tool_call_id: str | None = None
    """Of a tool's answer: the call that it answers."""
    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None
    """Who said it, where the role alone does not tell."""
    at: Annotated[datetime, Meta(tz=True)] | None = None
    """When it was said."""
    original: list[dict[str, Any]] = []
    """What a framework had where this message stands, to get it back as it was; no model is sent it."""
