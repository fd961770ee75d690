"""Summarises a conversation in its own sentences, chosen by simple signals; it needs no model.

Each sentence gets a weight when it is said, by what is in it: names, numbers, times, words of decisions,
plans, preferences and relations, and whether it asks or answers. The sentences with the most weight for their
length stay, whatever their age, so a summary can be extended without the messages that it was made of.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from heapq import nsmallest
from importlib.resources import files
from itertools import islice
from math import prod
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from alcove.core.records import Message
from alcove.search.dates import MONTHS, WEEKDAYS
from alcove.search.words import ENGLISH, STOP_WORDS, is_question, stems, words

LONGEST = 400
"""Characters of a sentence; a longer one is cut."""
LONGEST_NAME = 60
"""Characters of the speaker's name."""
MAX_SENTENCES = 60
"""Sentences that are read of one message."""
MAX_COMPARED = 8
"""Earlier sentences that a sentence is compared with for each of its three rarest words."""
MAX_MISFITS = 40
"""A summary counts as full after this number of sentences in a row do not fit."""
BATCH = 500
"""Messages that are weighed against each other; the sentences that remain are weighed with the next batch."""
MIN_WEIGHT = 0.6
"""A sentence below this weight is dropped; one plain word of an assistant, such as *Noted*, has less."""
MIN_SIMILARITY = 0.6
"""Two sentences say nearly the same if they share this part of their words."""
MIN_CHANGED_SIMILARITY = 0.3
"""The part that is enough if the later one says that something has changed."""


class Point(Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"in_prose": "told"}):
    """A sentence of a conversation that is worth keeping."""

    text: str
    """As it was said, on one line, and cut if it is very long."""
    speaker: str
    """Who said it: the message's name, or else its role."""
    at: datetime | None = None
    """When it was said."""
    weight: float
    """How much it says, to be compared with later sentences."""
    unanswered: bool = False
    """A question that the next message did not answer; a later one on the same subject still may."""
    in_prose: bool = False
    """Whether a model's summary includes it, so that it is no longer shown itself."""

    @property
    def line(self) -> str:
        """The sentence with its speaker, as a summary shows it."""
        return f"{self.speaker}: {self.text}"


class Prose(Struct, frozen=True, kw_only=True, rename={"covers_until": "upto"}):
    """A summary in a model's words (`summaries.py`)."""

    text: str
    """Its sentences, one a line."""
    model: str
    """The model that wrote it."""
    covers_until: datetime
    """When the last message that it covers was said."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The factor by which each signal changes a sentence's weight; the last two are exponents."""

    name: float = 1.5
    """A name in it, up to three times."""
    number: float = 2.0
    time: float = 2.0
    lasting: float = 2.0
    """A word of decisions, plans, preferences or relations."""
    people: float = 1.5
    """It is about the speaker or another person."""
    addressed: float = 0.7
    """It is about the person it is said to."""
    answer: float = 3.0
    """A person's answer to a question."""
    question: float = 3.0
    """A question without an answer."""
    assistant: float = 0.5
    """An assistant says it, not a person."""
    aside: float = 3.0
    """The most that the weight is divided by if it is a small part of its message."""
    recent: float = 1.1
    """It is the newest sentence; the factor nears 1 with age."""
    rarity: float = 0.3
    """Of the number of sentences that contain a word: common words count less."""
    length: float = 0.7
    """Of the sentence's length, by which the weight is divided."""


WEIGHTS = Weights()
_STEMMED = ("filler", "lasting", "change", "time")
"""The word lists whose words are compared as stems; the others are compared whole."""
_EVASION = re.compile(
    r"\b(?:not sure|don[’']?t know|no idea|get back to|(?:let me|i[’']?ll) (?:check|ask|look|see|find))\b"
)
_BREAK = re.compile(
    r"(?<=[.!?…])(?<!\bMr\.)(?<!\bMs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bMrs\.)(?<!\b\d\.)(?<!\b\d\d\.)"
    r"['\"”’)\]]*\s+|(?<=[。！？])|\n+"
)
"""The end of a sentence; a title is none, nor is the number of a list item."""
_WORD = re.compile(r"\w+")


@cache
def _word_lists() -> Mapping[str, frozenset[str]]:
    text = (files("alcove.agents") / "summariser.toml").read_text(encoding="utf-8")
    lists = {name: listed.split() for name, listed in tomllib.loads(text).items()}
    lists["time"] += [*MONTHS, *WEEKDAYS]
    return {name: (_stems if name in _STEMMED else frozenset)(listed) for name, listed in lists.items()}


def _stems(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(stems([word for word in texts if word not in STOP_WORDS[ENGLISH]]))


class _Sentence(NamedTuple):
    """A sentence that is, or may become, a point of the summary."""

    point: Point
    terms: frozenset[str]
    """Its words as stems, without filler."""
    subject: frozenset[str]
    """Its terms without numbers and times, unless there are no others."""
    is_change: bool
    """Whether it says that something has changed."""
    is_question: bool

    @classmethod
    def of(cls, point: Point) -> _Sentence:
        lists, all_stems = _word_lists(), _stems(words(point.text))
        terms = all_stems - lists["filler"]
        subject = frozenset(term for term in terms - lists["time"] - lists["change"] if not term.isdecimal())
        is_change = not all_stems.isdisjoint(lists["change"])
        return cls(point, terms, subject or terms, is_change, is_question(point.text))

    @property
    def is_open(self) -> bool:
        """Whether it is a question that the next message may answer."""
        return self.is_question and not self.point.unanswered

    def mark_unanswered(self) -> _Sentence:
        return self._replace(point=replace(self.point, unanswered=True)) if self.is_open else self

    def with_weight(self, weight: float) -> _Sentence:
        """The sentence with at least this weight."""
        return self._replace(point=replace(self.point, weight=weight)) if weight > self.point.weight else self


def extend_summary(
    summary: Sequence[Point], messages: Sequence[Message], *, most_tokens: int, count: Callable[[str], int]
) -> list[Point]:
    """Extends a summary to cover further messages; its points are in the order in which they were said.

    `count` counts the tokens of a text; each point counts as its line, `speaker: text`.
    """
    points = list(summary)
    for start in range(0, max(len(messages), 1), BATCH):
        points = _extend(points, messages[start : start + BATCH], most_tokens, count)
    return points


def _extend(
    summary: list[Point], messages: Sequence[Message], most_tokens: int, count: Callable[[str], int]
) -> list[Point]:
    before = [sentence for sentence in map(_Sentence.of, summary) if sentence.terms]
    sentences = _add_messages(before, messages)
    if sentences == before and count(_render(summary)) <= most_tokens:
        return summary
    frequency = Counter(term for sentence in sentences for term in sentence.terms)
    return _select(_without_superseded(sentences, frequency), frequency, most_tokens, count)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, each on one line."""
    for piece in _BREAK.split(text):
        sentence = " ".join(piece[: 2 * LONGEST].split())
        if sentence:
            yield sentence if len(sentence) <= LONGEST else sentence[: LONGEST - 1] + "…"


def terms(text: str) -> frozenset[str]:
    """The stems of a text's words, without those that any text has."""
    return _stems(words(text)) - _word_lists()["filler"]


def _render(points: Iterable[Point]) -> str:
    return "\n".join(point.line for point in points)


def _add_messages(before: Sequence[_Sentence], messages: Iterable[Message]) -> list[_Sentence]:
    """Adds the sentences of messages, and removes questions that the next message answers."""
    result = list(before)
    latest = next((n for n, sentence in enumerate(result) if sentence.is_open), len(result))
    for message in messages:
        if message.role not in ("user", "assistant") or not message.content:
            continue
        speaker = " ".join((message.name or message.role)[:LONGEST_NAME].split())
        has_question = any(each.is_open and each.point.speaker != speaker for each in result[latest:])
        is_answer = has_question and _is_answer(message.content[: 2 * LONGEST])
        result[latest:] = [
            each.mark_unanswered() for each in result[latest:] if not (is_answer and each.is_open)
        ]
        latest = len(result)
        result += _weigh_message(message, speaker, is_answer=is_answer)
    return result


def _is_answer(text: str) -> bool:
    """Whether a reply says something that is no question, and does not evade."""
    lists = _word_lists()
    statements = {word for each in sentences(text) if not is_question(each) for word in words(each)}
    has_content = not statements.isdisjoint(lists["yes_no"]) or not _stems(statements) <= lists["filler"]
    return has_content and not _EVASION.search(text.casefold())


def _weigh_message(message: Message, speaker: str, *, is_answer: bool) -> list[_Sentence]:
    """The sentences of a message that have enough weight."""
    texts = islice(sentences(message.content or ""), MAX_SENTENCES)
    points = [Point(text=text, speaker=speaker, at=message.at, weight=0) for text in texts]
    time = _word_lists()["time"]
    parts = [
        each
        for each in map(_Sentence.of, points)
        if (each.subject - time if each.is_question else each.terms)
    ]
    total = sum(len(each.terms) for each in parts)
    factor = WEIGHTS.assistant if message.role == "assistant" else WEIGHTS.answer if is_answer else 1
    weighed = (
        each.with_weight(factor * _weight(each) / min(total / len(each.terms), WEIGHTS.aside))
        for each in parts
    )
    return [each for each in weighed if each.point.weight > MIN_WEIGHT]


def _weight(sentence: _Sentence) -> float:
    """How much a sentence says by itself."""
    text, lists = sentence.point.text, _word_lists()
    all_words = set(words(text))
    all_stems = {*stems([*all_words])}
    inner = _WORD.findall(text)[1:]
    names = sum(word[0].isupper() and len(word) > 1 for word in inner)
    is_shouted = 2 * names > len(inner) + 2
    signals = (
        (WEIGHTS.number, any(map(str.isdigit, text))),
        (WEIGHTS.time, not all_stems.isdisjoint(lists["time"])),
        (WEIGHTS.lasting, not all_stems.isdisjoint(lists["lasting"])),
        (WEIGHTS.people, not all_words.isdisjoint(lists["people"])),
        (WEIGHTS.addressed, not all_words.isdisjoint(lists["addressed"])),
        (WEIGHTS.question, sentence.is_question),
        (WEIGHTS.name ** min(names, 3), not is_shouted),
    )
    return len(sentence.terms) * prod(factor for factor, applies in signals if applies)


def _without_superseded(sentences: Iterable[_Sentence], frequency: Mapping[str, int]) -> list[_Sentence]:
    """Removes sentences that a later one corrects, answers or repeats.

    `frequency`: how many sentences contain a term.
    """
    remaining: dict[int, _Sentence] = {}
    by_term: dict[str, list[int]] = defaultdict(list)
    for n, sentence in enumerate(sentences):
        rarest = nsmallest(3, sentence.terms, key=lambda term: (frequency[term], term))
        similar = sorted({m for term in rarest for m in by_term[term][-MAX_COMPARED:] if m in remaining})
        if any(_repeats(sentence, remaining[m]) for m in similar):
            continue
        superseded = [remaining.pop(m).point.weight for m in similar if _supersedes(sentence, remaining[m])]
        remaining[n] = sentence.with_weight(max(superseded, default=0))
        for term in sentence.terms:
            by_term[term].append(n)
    return list(remaining.values())


def _repeats(later: _Sentence, earlier: _Sentence) -> bool:
    """Whether another speaker repeats a sentence."""
    other_speaker = later.point.speaker != earlier.point.speaker
    return (
        other_speaker
        and later.is_question == earlier.is_question
        and _similarity(later.terms, earlier.terms) >= MIN_SIMILARITY
    )


def _supersedes(later: _Sentence, earlier: _Sentence) -> bool:
    """Whether a sentence answers a question, or its speaker says the same anew."""
    if earlier.is_question and not later.is_question:
        return 2 * len(later.terms & earlier.terms) > len(earlier.terms)
    if later.point.speaker != earlier.point.speaker or later.is_question != earlier.is_question:
        return False
    similarity = _similarity(later.subject, earlier.subject)
    if later.is_change:
        return similarity >= MIN_CHANGED_SIMILARITY
    has_same_numbers = later.terms - later.subject == earlier.terms - earlier.subject
    return has_same_numbers and similarity >= MIN_SIMILARITY


def _similarity(terms: frozenset[str], other_terms: frozenset[str]) -> float:
    return len(terms & other_terms) / len(terms | other_terms)


def _select(
    sentences: Sequence[_Sentence],
    frequency: Mapping[str, int],
    most_tokens: int,
    count: Callable[[str], int],
) -> list[Point]:
    """The points with the most weight for their length, as many as fit."""
    points = [sentence.point for sentence in sentences]

    def value(n: int) -> float:
        terms = sentences[n].terms
        rarity: float = sum(frequency[term] ** -WEIGHTS.rarity for term in terms) / len(terms)
        recency = 1 + (WEIGHTS.recent - 1) * n / len(sentences)
        length: float = len(points[n].line) ** WEIGHTS.length
        return points[n].weight * rarity * recency / length

    selected: dict[int, int] = {}
    available, misfits = most_tokens, 0
    for n in sorted(range(len(sentences)), key=lambda n: (-value(n), -n)):
        tokens = count(points[n].line + "\n")
        if tokens <= available:
            selected[n] = tokens
            available -= tokens
            misfits = 0
        elif (misfits := misfits + 1) == MAX_MISFITS:
            break
    # Together, the lines may have more tokens than one by one, depending on the tokenizer.
    while selected and (excess := count(_render(points[n] for n in sorted(selected))) - most_tokens) > 0:
        while selected and excess > 0:
            excess -= max(selected.popitem()[1], 1)
    return [points[n] for n in sorted(selected)]
