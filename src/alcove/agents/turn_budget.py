"""What one turn may cost: the tokens of each request are counted before it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import structs

from alcove.agents.conversations import size
from alcove.agents.messages import Message
from alcove.core.settings import LLMSettings

MIN_ANSWER_TOKENS = 64
"""An answer that has room for less is not asked for."""
SHORT_ANSWER_TOKENS = 4096
"""The longest answer that every model can be asked for; a larger limit may be more than a model takes."""
LEFT_OUT = "error: the result is left out: this turn may take no more tokens"
ANSWER_LIMITS = ("max_tokens", "max_completion_tokens")


@dataclass
class TurnBudget:
    """Tokens of the requests of one turn, and how many are left for the answers."""

    settings: LLMSettings
    messages: int
    """Tokens of the next request without its tools."""
    tools: int
    """Tokens of the tools that go with it, unless the model has to answer."""
    used: int = 0
    """Tokens that earlier requests of this turn took, in and out."""

    def answer_room(self, *, tools: bool) -> int:
        """Returns how many tokens the next answer may have.

        Calls of tools are sent again, with their results, in a request that has to fit as well.
        """
        left = self.settings.turn_tokens - self.used - self.messages
        return (left - self.tools - self.messages) // 2 if tools else left

    def answer_limits(self, options: Mapping[str, Any], room: int) -> dict[str, int]:
        """Returns the limit of the next answer by the name that the caller uses for it.

        It is the smallest of the caller's, the operator's and what is left. Where neither names one, a model
        keeps to its own, unless even a short answer might be too long.
        """
        names = [name for name in ANSWER_LIMITS if name in options]
        limits = [options[name] for name in names]
        limits += [self.settings.answer_tokens] if self.settings.answer_tokens else []
        if not limits and room >= SHORT_ANSWER_TOKENS:
            return {}
        return dict.fromkeys(names or ANSWER_LIMITS[1:], min([*limits, room]))

    def add_results(
        self, call: Message, results: Sequence[Message], count: Callable[[str], int]
    ) -> list[Message]:
        """Counts a call of tools and its results for the next request, and returns them as they are sent.

        A result for which the turn has no tokens left is replaced by a note that says so.
        """
        self.messages += size(call, count)
        sent = [call]
        for result in results:
            room = self.answer_room(tools=False) - MIN_ANSWER_TOKENS
            tokens = size(result, count)
            if tokens > room:
                result = structs.replace(result, content=LEFT_OUT)  # noqa: PLW2901
                tokens = size(result, count)
            self.messages += tokens
            sent.append(result)
        return sent


def json_tokens(part: object, count: Callable[[str], int]) -> int:
    """Returns the tokens of a schema, or of a list of tools, as JSON; none where there is nothing."""
    return count(msgspec.json.encode(part).decode()) if part else 0
