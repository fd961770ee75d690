"""Counts tokens without asking a service, and limits the tokens of a turn.

Tokens are counted by the vocabulary of a model's family, or estimated cautiously.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import msgspec
from msgspec import structs

from alcove.core.errors import InvalidRequest
from alcove.core.records import Message
from alcove.core.settings import LLMSettings
from alcove.llm.model import ANSWER_LIMITS, BYTES_PER_TOKEN, AnswerMeter, TokenUse

NO_TOKENIZER_MARGIN = 1.6
"""For families without a public tokenizer, on the count of o200k. Claude's documentation says that its newer
models count about 30 % more than the older ones, which are reported to count about 20 % more than o200k."""

ESTIMATE_MARGIN = 1.35
"""For the estimate without `splintr`. Of 6,900 texts (chats, Markdown, code, JSON, German, Chinese, seven
more languages, emoji, hexadecimal, numbers; most of 40 to 1,500 characters), at least 99.4 % have no more
tokens than that in any family with a vocabulary; on average, English has half as many, Chinese 0.4 to 0.9."""

FAMILIES = {
    "o200k": ("o200k_base", 1.0),
    "cl100k": ("cl100k_base", 1.0),
    "llama3": ("llama3", 1.0),
    "mistral": ("mistral_v3", 1.0),
    "deepseek": ("deepseek_v3", 1.0),
    "gemma": ("gemma3", 1.0),
    "gemini": ("gemma3", 1.0),  # Google's own counter of Gemini's tokens takes Gemma's vocabulary
    "qwen": ("qwen3", 1.0),
    "glm": ("glm4", 1.0),
    "kimi": ("kimi_k2", 1.0),
    "phi": ("phi4", 1.0),
    "claude": ("o200k_base", NO_TOKENIZER_MARGIN),
    "other": ("o200k_base", NO_TOKENIZER_MARGIN),
}
"""The vocabulary of each family, and the factor for its count."""

PIECE = 8192
"""Characters that are counted at once, up to a space if there is one: it blocks all other threads."""

MESSAGE_TOKENS = 4
"""About what a chat API adds to each message."""
MIN_ANSWER_TOKENS = 64
"""An answer that has room for less is not asked for."""
LEFT_OUT = "error: the result is left out: this turn may take no more tokens"
LIMIT_SLACK = 2
"""How many times its limit an answer may have by our estimate, which is rough."""
_ESTIMATED = re.compile(
    rb"[A-Z]{1,2}(?![a-z])|[A-Za-z][a-z]{0,4}|[0-9]"  # words in fives, capitals in pairs, each digit
    rb"|[\xc2-\xef][\x80-\xbf]{1,2}"  # a character of another script
    rb"|[\xf0-\xf4]|[\x80-\xbf]{1,2}"  # three for one beyond the basic plane: most emoji
    rb"| (?=[0-9])| {2,16}|\n{1,4}|[^ ]"  # the space between two words is free
)


class TokenCounter:
    """Counts the tokens of a text as a family of models does; threads may share it.

    The first count loads the family's vocabulary, if the extra `tokens` is installed. Without it, the count
    is an estimate from the kinds of characters. Special tokens in a text (`<|endoftext|>`) count as text.
    """

    def __init__(self, family: str = "o200k") -> None:
        if family not in FAMILIES:
            raise InvalidRequest("tokenizer", f"one of {', '.join(FAMILIES)}")
        self._family = family

    @cached_property
    def _method(self) -> tuple[str, float, Callable[[str], int]]:
        """The name of the vocabulary or the estimate, its margin, and the function that counts."""
        vocabulary, margin = FAMILIES[self._family]
        try:
            from splintr import Tokenizer  # noqa: PLC0415 - an extra, and 38 MB
        except ModuleNotFoundError:
            return f"kinds of characters × {ESTIMATE_MARGIN} (estimate)", ESTIMATE_MARGIN, _estimate
        encode = Tokenizer.from_pretrained(vocabulary).encode_ordinary
        name = vocabulary if margin == 1 else f"{vocabulary} × {margin} (estimate)"
        return name, margin, lambda text: len(encode(text))

    @property
    def name(self) -> str:
        """How tokens are counted, for receipts."""
        return self._method[0]

    def __call__(self, text: str) -> int:
        _, margin, count = self._method
        text = text.encode(errors="replace").decode()  # a lone surrogate has no tokens
        start = tokens = 0
        while len(text) - start > PIECE:
            end = text.rfind(" ", start + PIECE // 2, start + PIECE)
            end = end if end > 0 else start + PIECE
            tokens += count(text[start:end])
            start = end
        return math.ceil(margin * (tokens + count(text[start:])))


token_counter = cache(TokenCounter)


def _estimate(text: str) -> int:
    return len(_ESTIMATED.findall(text.encode()))


@dataclass
class TurnBudget:
    """Tokens of one turn's requests, counted before they are sent, and how many are left for answers."""

    settings: LLMSettings
    messages: int
    """Tokens of the next request without its tools."""
    tools: int
    """Tokens of the tools that go with it, unless the model has to answer."""
    use: TokenUse = TokenUse()  # noqa: RUF009  frozen
    """Tokens of the turn's earlier requests."""

    def answer_room(self, *, tools: bool) -> int:
        """Returns how many tokens the next answer may have.

        Calls of tools are sent again, with their results, in a request that has to fit as well.
        """
        room = self.settings.turn_tokens - self.use.total_tokens - self.messages
        return (room - self.tools - self.messages) // 2 if tools else room

    def limit(self, options: dict[str, Any], meter: AnswerMeter, *, tools: bool = False) -> int:
        """Sets the limit of the next answer in `options`, and where it is cut off; returns its tokens.

        The limit is the smallest of the caller's, the operator's and the tokens that are left. If neither
        sets one, the default applies: the model never chooses. Returns 0 if too few tokens are left.
        """
        room = self.answer_room(tools=tools)
        if room < MIN_ANSWER_TOKENS:
            return 0
        names = [name for name in ANSWER_LIMITS if name in options]
        limits = [options[name] for name in names]
        if self.settings.answer_tokens or not limits:
            limits.append(self.settings.max_answer_tokens)
        limit = min([*limits, room])
        options |= dict.fromkeys(names or ANSWER_LIMITS[1:], limit)
        meter.max_bytes = BYTES_PER_TOKEN * min(room, LIMIT_SLACK * limit)
        return room

    def add_results(
        self, call: Message, results: Sequence[Message], count: Callable[[str], int]
    ) -> list[Message]:
        """Counts a call of tools and its results for the next request, and returns its messages.

        A result for which the turn has no tokens left is replaced by a note that says so.
        """
        self.messages += message_tokens(call, count)
        messages = [call]
        for result in results:
            room = self.answer_room(tools=False) - MIN_ANSWER_TOKENS
            tokens = message_tokens(result, count)
            if tokens > room:
                result = structs.replace(result, content=LEFT_OUT)  # noqa: PLW2901
                tokens = message_tokens(result, count)
            self.messages += tokens
            messages.append(result)
        return messages


def message_tokens(message: Message, count: Callable[[str], int]) -> int:
    """The tokens of a message; `count` counts those of a text."""
    calls = msgspec.json.encode(message.tool_calls).decode() if message.tool_calls else None
    texts = filter(None, (message.content, calls, message.name, message.tool_call_id))
    return MESSAGE_TOKENS + sum(map(count, texts))


def json_tokens(part: object, count: Callable[[str], int]) -> int:
    """The tokens of an option, or of a list of tools, as JSON; 0 if there is none."""
    return count(msgspec.json.encode(part).decode()) if part else 0
