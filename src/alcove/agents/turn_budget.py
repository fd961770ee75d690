"""What one turn may cost: the tokens of each request are counted before it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import structs

from alcove.agents.chat_messages import message_tokens
from alcove.core.records import Message
from alcove.core.settings import LLMSettings
from alcove.llm.records import ANSWER_LIMITS, BYTES_PER_TOKEN, AnswerMeter

MIN_ANSWER_TOKENS = 64
"""An answer that has room for less is not asked for."""
LEFT_OUT = "error: the result is left out: this turn may take no more tokens"
LIMIT_SLACK = 2
"""How many times as long as it was asked for an answer may be by our estimate, which is rough."""


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

        It is the smallest of the caller's, the operator's and what is left. Where neither names one, the
        default counts: a model is never left to choose.
        """
        names = [name for name in ANSWER_LIMITS if name in options]
        limits = [options[name] for name in names]
        if self.settings.answer_tokens or not limits:
            limits.append(self.settings.max_answer_tokens)
        return dict.fromkeys(names or ANSWER_LIMITS[1:], min([*limits, room]))

    def limit(self, options: dict[str, Any], meter: AnswerMeter, *, tools: bool = False) -> int:
        """Limits the next answer, by what is asked for and by when it is cut off; returns what room it has.

        It is 0 where it has too little to be asked for.
        """
        room = self.answer_room(tools=tools)
        if room < MIN_ANSWER_TOKENS:
            return 0
        limits = self.answer_limits(options, room)
        options |= limits
        meter.max_bytes = BYTES_PER_TOKEN * min(room, LIMIT_SLACK * min(limits.values()))
        return room

    def add_results(
        self, call: Message, results: Sequence[Message], count: Callable[[str], int]
    ) -> list[Message]:
        """Counts a call of tools and its results for the next request, and returns them as they are sent.

        A result for which the turn has no tokens left is replaced by a note that says so.
        """
        self.messages += message_tokens(call, count)
        sent = [call]
        for result in results:
            room = self.answer_room(tools=False) - MIN_ANSWER_TOKENS
            tokens = message_tokens(result, count)
            if tokens > room:
                result = structs.replace(result, content=LEFT_OUT)  # noqa: PLW2901
                tokens = message_tokens(result, count)
            self.messages += tokens
            sent.append(result)
        return sent


def json_tokens(part: object, count: Callable[[str], int]) -> int:
    """Returns the tokens of a schema, or of a list of tools, as JSON; none where there is nothing."""
    return count(msgspec.json.encode(part).decode()) if part else 0
