"""A context: the messages that a model is sent for a user's message, and the receipt of what is in them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from alcove.core.messages import Message

DEFAULT_BUDGET = 8000
"""Tokens of a context unless the caller says how many."""
Budget = Annotated[int, Meta(ge=1, le=10_000_000)]


class ContextItem(Struct, frozen=True, kw_only=True):
    """Something that went in."""

    id: str
    source: str
    tokens: int
    at: datetime | None = None
    score: float | None = None
    cosine: float | None = None


class ContextTier(Struct, frozen=True, kw_only=True):
    """What one tier gave; `frame` are the tokens around its items, and `tokens` all of it.

    Its messages are the next `messages` of the context: the receipt has the tiers in their order.
    """

    tokens: int
    frame: int
    messages: int
    items: list[ContextItem]


class LeftOut(Struct, frozen=True, kw_only=True):
    """Something that did not go in, and why; `count` if it is several, `text` how it begins."""

    tier: str
    why: str
    id: str | None = None
    tokens: int | None = None
    count: int = 1
    text: str | None = None


class ContextReceipt(Struct, frozen=True, kw_only=True):
    """What is in a context and what was left out; `tokenizer` says how tokens were counted."""

    tiers: dict[str, ContextTier]
    left_out: list[LeftOut]
    total_tokens: int
    budget_tokens: int
    tokenizer: str
    degraded: str | None
    """Why the context contains less than it could, if it does."""
    timings_ms: dict[str, float]


class Context(Struct, frozen=True, kw_only=True):
    """Messages for a chat API, and the receipt of how they came about."""

    messages: list[Message]
    receipt: ContextReceipt
