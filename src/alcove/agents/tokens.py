"""Counts tokens without asking a service: by the vocabulary of a model's family, or a cautious estimate."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import cache, cached_property

from alcove.core.errors import InvalidRequest

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
"""Characters that are counted at once: it blocks all other threads, and 1 MB may take half a second."""

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
        return math.ceil(margin * sum(count(piece) for piece in _pieces(text)))


token_counter = cache(TokenCounter)


def _estimate(text: str) -> int:
    return len(_ESTIMATED.findall(text.encode()))


def _pieces(text: str) -> Iterator[str]:
    """Splits text into pieces of at most `PIECE` characters, before a space if there is one."""
    text = text.encode(errors="replace").decode()  # a lone surrogate has no tokens
    start = 0
    while len(text) - start > PIECE:
        end = text.rfind(" ", start + PIECE // 2, start + PIECE)
        end = end if end > 0 else start + PIECE
        yield text[start:end]
        start = end
    yield text[start:]
