"""Counting tokens: by a family's own vocabulary, or estimated so that it is hardly ever too few."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alcove.agents import tokens
from alcove.agents.tokens import FAMILIES, PIECE, TokenCounter, token_counter
from alcove.core.errors import InvalidRequest

SENTENCE = "The machine is descaled every three months, with citric acid. "
HOSTILE = [
    "a",
    " ",
    "\n",
    "\0",
    "\x01",
    "1",
    "!",
    "漢",
    "😀",
    "\u0301",
    "aA",
    "'s",
    "\n ",
    "\t\n \r",
    "<|endoftext|>",
]

EXACT = token_counter("o200k")


@pytest.fixture
def without_vocabularies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "splintr", None)
    monkeypatch.setattr(tokens, "token_counter", token_counter.__wrapped__)


def estimate() -> TokenCounter:
    return tokens.token_counter()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_counts_and_says_with_what(family: str) -> None:
    counter = token_counter(family)
    assert counter("") == 0
    assert 12 <= counter(SENTENCE) <= 24
    vocabulary, margin = FAMILIES[family]
    assert counter.name == (vocabulary if margin == 1 else f"{vocabulary} × {margin} (estimate)")


def test_the_counts_are_those_of_the_models() -> None:
    assert token_counter("o200k")("Hello, world!") == 4
    assert token_counter("cl100k")("tiktoken is great!") == 6


def test_a_family_without_a_public_tokenizer_is_counted_with_a_margin() -> None:
    text = SENTENCE * 10
    assert token_counter("claude")(text) >= 1.6 * token_counter("o200k")(text)


def test_an_unknown_family_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match="tokenizer: expected one of o200k, cl100k"):
        token_counter("gpt-12")


def test_a_special_token_that_a_text_spells_out_counts_as_its_text() -> None:
    assert token_counter()("<|endoftext|>" * 10) >= 50


@pytest.mark.parametrize("family", ["o200k", "mistral", "gemma"])
def test_a_long_text_has_about_as_many_tokens_as_its_parts(family: str) -> None:
    counter = token_counter(family)
    part = SENTENCE * (PIECE // len(SENTENCE) // 2)
    assert counter(part * 20) == pytest.approx(20 * counter(part), rel=0.01)


@given(st.text(max_size=3 * PIECE))
def test_a_text_is_counted_in_pieces_that_are_the_text(text: str) -> None:
    pieces: list[str] = []
    counter = TokenCounter()

    def count(piece: str) -> int:
        pieces.append(piece)
        return 1

    counter.__dict__["_method"] = "pieces", 1.0, count
    assert counter(text) == len(pieces)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= PIECE


@pytest.mark.parametrize("unit", HOSTILE)
def test_no_text_is_too_strange_to_be_counted(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    assert token_counter()(text) > 0


def test_a_lone_surrogate_is_counted_as_a_character() -> None:
    assert token_counter()("a \ud800 b") >= 3


def test_threads_share_a_counter() -> None:
    with ThreadPoolExecutor(8) as pool:
        counts = [*pool.map(lambda _: token_counter("llama3")(SENTENCE * 50), range(32))]
    assert len(set(counts)) == 1


@pytest.mark.usefixtures("without_vocabularies")
def test_without_the_extra_the_count_is_an_estimate_and_says_so() -> None:
    assert estimate().name == "kinds of characters × 1.35 (estimate)"
    assert estimate()("") == 0


GERMAN = "Die Kaffeemaschine muss alle drei Monate mit Zitronensäure entkalkt werden, sagt das Handbuch."
CHINESE = "咖啡机每三个月需要除垢一次。请使用柠檬酸，并按照说明书操作，不要使用醋。"
TEXTS = {
    "prose": SENTENCE * 5,
    "code": Path(tokens.__file__).read_text(encoding="utf-8"),
    "json": json.dumps([{"id": n, "name": f"user-{n}", "scores": [n / 7, None, True]} for n in range(50)]),
    "german": GERMAN,
    "chinese": CHINESE,
    "russian": "Кофемашину необходимо очищать от накипи каждые три месяца лимонной кислотой.",
    "hexadecimal": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" * 5,
    "numbers": " ".join(str(n * 7919 % 100_003 / 8) for n in range(200)),
    **{f"{unit!r} again and again": unit * (3_000 // len(unit)) for unit in HOSTILE},
}


@pytest.mark.usefixtures("without_vocabularies")
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_estimate_is_not_below_what_the_usual_family_counts(text: str) -> None:
    assert EXACT(text) <= estimate()(text)


@pytest.mark.usefixtures("without_vocabularies")
@pytest.mark.parametrize("kind", ["prose", "code", "json", "german", "chinese"])
def test_the_estimate_is_not_absurdly_high(kind: str) -> None:
    assert estimate()(TEXTS[kind]) <= 2.6 * EXACT(TEXTS[kind])
