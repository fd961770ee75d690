"""A summary of a conversation in its own sentences, chosen by plain signs; no model is needed.

A sentence is weighed once, when it is heard, by what is in it: names, numbers, times, words of decisions,
plans, preferences and relations, whether it asks or answers. What tells most for its length stays, whatever
its age, so that a summary can be extended without the messages it was made of.
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

from alcove.core.messages import Message
from alcove.search.text.dates import MONTHS, WEEKDAYS
from alcove.search.text.words import ENGLISH, STOP_WORDS, asks, stems, words

LONGEST = 400
"""Characters of a sentence; of a longer one, its beginning is kept."""
LONGEST_NAME = 60
"""Characters of who said it."""
MOST_SENTENCES = 60
"""Of one message; a longer one is read as far as that."""
COMPARED = 8
"""Earlier sentences that a sentence is compared with for each of its three rarest words."""
MISFITS = 40
"""Sentences in a row that no longer fit, after which a summary counts as full."""
AT_ONCE = 500
"""Messages that are weighed against each other at once; what is left of them goes on with the next."""
LEAST = 0.6
"""What a sentence must weigh to be kept at all: more than one plain word of an assistant, such as *Noted*."""
LIKE = 0.6
"""The share of their words that two sentences have in common if they say nearly the same."""
CHANGED = 0.3
"""The share that is enough where the later one says that something has changed."""


class Point(Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"in_prose": "told"}):
    """A sentence of a conversation that is worth keeping."""

    text: str
    """As it was said, on one line, and cut if it is very long."""
    speaker: str
    """Who said it: the message's name, or else its role."""
    at: datetime | None = None
    """When it was said."""
    weight: float
    """How much it tells, to be compared with what is said later."""
    unanswered: bool = False
    """A question that the next message did not answer; a later one that speaks of the same still may."""
    in_prose: bool = False
    """Whether a model was given it for its summary, which speaks for it since."""

    @property
    def line(self) -> str:
        """As it stands in a summary."""
        return f"{self.speaker}: {self.text}"


class Prose(Struct, frozen=True, kw_only=True, rename={"covers_until": "upto"}):
    """A summary in a model's words (`prose.py`)."""

    text: str
    """Its sentences, one a line."""
    model: str
    """Who wrote it."""
    covers_until: datetime
    """When the last of what it sums up was said."""


def points_without_prose(points: Iterable[Point]) -> list[Point]:
    """The sentences that a model's summary does not speak for."""
    return [point for point in points if not point.in_prose]


@dataclass(frozen=True, slots=True)
class Weights:
    """How many times as much a sentence tells if it has something; the last two are powers."""

    name: float = 1.5
    """A name in it, up to three times."""
    number: float = 2.0
    time: float = 2.0
    lasting: float = 2.0
    """A word of decisions, plans, preferences or relations."""
    people: float = 1.5
    """It speaks of the speaker or of somebody else."""
    addressed: float = 0.7
    """It speaks of whom it is said to."""
    answer: float = 3.0
    """A person says it in answer to a question."""
    question: float = 3.0
    """It asks, and nobody has answered."""
    assistant: float = 0.5
    """An assistant says it, not a person."""
    aside: float = 3.0
    """How many times *less* it tells, at most, if it is a small part of its message."""
    recent: float = 1.1
    """It is the newest of all; the older it is, the nearer to 1."""
    rarity: float = 0.3
    """Of the number of sentences that have a word: so much less does that word tell."""
    length: float = 0.7
    """Of a sentence's length, by which its weight is divided."""


WEIGHTS = Weights()


def _stems(some: Iterable[str]) -> frozenset[str]:
    return frozenset(stems([word for word in some if word not in STOP_WORDS[ENGLISH]]))


class _Tables(NamedTuple):
    """Words that say something of a sentence, as they are compared: as stems, or whole."""

    filler: frozenset[str]
    lasting: frozenset[str]
    change: frozenset[str]
    time: frozenset[str]
    people: frozenset[str]
    addressed: frozenset[str]
    yes_no: frozenset[str]


@cache
def _tables() -> _Tables:
    text = (files("alcove.agents") / "summariser.toml").read_text(encoding="utf-8")
    found = {name: some.split() for name, some in tomllib.loads(text).items()}
    found["time"] += [*MONTHS, *WEEKDAYS]
    as_stems = {name: _stems(found[name]) for name in ("filler", "lasting", "change", "time")}
    return _Tables(**as_stems, **{name: frozenset(found[name]) for name in ("people", "addressed", "yes_no")})


_PUT_OFF = re.compile(
    r"\b(?:not sure|don[’']?t know|no idea|get back to|(?:let me|i[’']?ll) (?:check|ask|look|see|find))\b"
)
_BREAK = re.compile(
    r"(?<=[.!?…])(?<!\bMr\.)(?<!\bMs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bMrs\.)(?<!\b\d\.)(?<!\b\d\d\.)"
    r"['\"”’)\]]*\s+|(?<=[。！？])|\n+"
)
"""Where a sentence ends; titles do not end one, nor do ordinals and the numbers of lists."""
_WORD = re.compile(r"\w+")


class _Said(NamedTuple):
    """A sentence that is, or may become, a point of the summary."""

    point: Point
    terms: frozenset[str]
    """What it tells: its terms without those that any sentence may have."""
    subject: frozenset[str]
    """What it tells something of: those without numbers and times, unless there are no others."""
    changes: bool
    """Whether it says that something is no longer as it was."""
    asks: bool

    @classmethod
    def of(cls, point: Point) -> _Said:
        every = _stems(words(point.text))
        terms = every - _tables().filler
        subject = frozenset(
            each for each in terms - _tables().time - _tables().change if not each.isdecimal()
        )
        return cls(point, terms, subject or terms, not every.isdisjoint(_tables().change), asks(point.text))

    @property
    def waits(self) -> bool:
        """Whether the next message may answer it."""
        return self.asks and not self.point.unanswered

    def left_open(self) -> _Said:
        return self._replace(point=replace(self.point, unanswered=True)) if self.waits else self


def extend_summary(
    summary: Sequence[Point], messages: Sequence[Message], *, most_tokens: int, count: Callable[[str], int]
) -> list[Point]:
    """A summary that also covers further messages, within so many tokens.

    `summary` is what the messages before came to; they are not needed again. `count` says how many tokens a
    text has; points are counted as lines, `speaker: text`. They come in the order in which they were said.
    """
    points = list(summary)
    for start in range(0, max(len(messages), 1), AT_ONCE):
        points = _extended(points, messages[start : start + AT_ONCE], most_tokens, count)
    return points


def _extended(
    summary: list[Point], messages: Sequence[Message], most_tokens: int, count: Callable[[str], int]
) -> list[Point]:
    before = [each for each in map(_Said.of, summary) if each.terms]
    said = _heard(before, messages)
    if said == before and count(_rendered(summary)) <= most_tokens:
        return summary
    common = Counter(each for one in said for each in one.terms)
    return _chosen(_standing(said, common), common, most_tokens, count)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, each on one line."""
    for piece in _BREAK.split(text):
        sentence = " ".join(piece[: 2 * LONGEST].split())
        if sentence:
            yield sentence if len(sentence) <= LONGEST else sentence[: LONGEST - 1] + "…"


def terms(text: str) -> frozenset[str]:
    """What a text speaks of: the stems of its words, without those that any text has."""
    return _stems(words(text)) - _tables().filler


def _rendered(points: Iterable[Point]) -> str:
    return "\n".join(point.line for point in points)


def _heard(before: Sequence[_Said], messages: Iterable[Message]) -> list[_Said]:
    """What was said before and in the messages, without the questions that the next message answers."""
    said = list(before)
    latest = next((n for n, each in enumerate(said) if each.waits), len(said))
    for message in messages:
        if message.role not in ("user", "assistant") or not message.content:
            continue
        speaker = " ".join((message.name or message.role)[:LONGEST_NAME].split())
        asked = any(each.waits and each.point.speaker != speaker for each in said[latest:])
        answers = asked and _answers(message.content[: 2 * LONGEST])
        said[latest:] = [each.left_open() for each in said[latest:] if not (answers and each.waits)]
        latest = len(said)
        said += _weighed(message, speaker, answers=answers)
    return said


def _answers(text: str) -> bool:
    """Whether a reply to a question tells something, and does not put it off."""
    told = {word for each in sentences(text) if not asks(each) for word in words(each)}
    tells = not told.isdisjoint(_tables().yes_no) or not _stems(told) <= _tables().filler
    return tells and not _PUT_OFF.search(text.casefold())


def _weighed(message: Message, speaker: str, *, answers: bool) -> list[_Said]:
    """The sentences of a message that tell something."""
    texts = islice(sentences(message.content or ""), MOST_SENTENCES)
    said = [_Said.of(Point(text=text, speaker=speaker, at=message.at, weight=0)) for text in texts]
    said = [each for each in said if (each.subject - _tables().time if each.asks else each.terms)]
    whole = sum(len(each.terms) for each in said)
    factor = WEIGHTS.assistant if message.role == "assistant" else WEIGHTS.answer if answers else 1
    weighed = (
        _heavier(each, factor * _weight(each) / min(whole / len(each.terms), WEIGHTS.aside)) for each in said
    )
    return [each for each in weighed if each.point.weight > LEAST]


def _heavier(said: _Said, weight: float) -> _Said:
    return said._replace(point=replace(said.point, weight=weight)) if weight > said.point.weight else said


def _weight(said: _Said) -> float:
    """How much a sentence tells by itself."""
    text = said.point.text
    every = set(words(text))
    terms = {*stems([*every])}
    inner = _WORD.findall(text)[1:]
    names = sum(word[0].isupper() and len(word) > 1 for word in inner)
    shouted = 2 * names > len(inner) + 2
    signs = (
        (WEIGHTS.number, any(map(str.isdigit, text))),
        (WEIGHTS.time, not terms.isdisjoint(_tables().time)),
        (WEIGHTS.lasting, not terms.isdisjoint(_tables().lasting)),
        (WEIGHTS.people, not every.isdisjoint(_tables().people)),
        (WEIGHTS.addressed, not every.isdisjoint(_tables().addressed)),
        (WEIGHTS.question, said.asks),
        (WEIGHTS.name ** min(names, 3), not shouted),
    )
    return len(said.terms) * prod(factor for factor, there in signs if there)


def _standing(said: Iterable[_Said], common: Mapping[str, int]) -> list[_Said]:
    """Without what a later sentence corrects or answers, and what is only repeated.

    `common` says how many sentences have a term.
    """
    standing: dict[int, _Said] = {}
    having: dict[str, list[int]] = defaultdict(list)
    for n, each in enumerate(said):
        rarest = nsmallest(3, each.terms, key=lambda one: (common[one], one))
        near = sorted({m for one in rarest for m in having[one][-COMPARED:] if m in standing})
        if any(_echoes(each, standing[m]) for m in near):
            continue
        overtaken = [standing.pop(m).point.weight for m in near if _overtakes(each, standing[m])]
        standing[n] = _heavier(each, max(overtaken, default=0))
        for one in each.terms:
            having[one].append(n)
    return list(standing.values())


def _echoes(later: _Said, earlier: _Said) -> bool:
    """Whether somebody else repeats what was said."""
    other = later.point.speaker != earlier.point.speaker and later.asks == earlier.asks
    return other and _likeness(later.terms, earlier.terms) >= LIKE


def _overtakes(later: _Said, earlier: _Said) -> bool:
    """Whether a question is answered, or a speaker says anew what they said before."""
    if earlier.asks and not later.asks:
        return 2 * len(later.terms & earlier.terms) > len(earlier.terms)
    same = later.point.speaker == earlier.point.speaker and later.asks == earlier.asks
    if later.changes:
        return same and _likeness(later.subject, earlier.subject) >= CHANGED
    told = later.terms - later.subject, earlier.terms - earlier.subject
    return same and told[0] == told[1] and _likeness(later.subject, earlier.subject) >= LIKE


def _likeness(some: frozenset[str], others: frozenset[str]) -> float:
    return len(some & others) / len(some | others)


def _chosen(
    said: Sequence[_Said], common: Mapping[str, int], most_tokens: int, count: Callable[[str], int]
) -> list[Point]:
    """The points that tell most for their length, as many as fit."""
    points = [each.point for each in said]

    def worth(n: int) -> float:
        rare: float = sum(common[one] ** -WEIGHTS.rarity for one in said[n].terms) / len(said[n].terms)
        recent = 1 + (WEIGHTS.recent - 1) * n / len(said)
        length: float = len(points[n].line) ** WEIGHTS.length
        return points[n].weight * rare * recent / length

    taken: dict[int, int] = {}
    left, misfits = most_tokens, 0
    for n in sorted(range(len(said)), key=lambda n: (-worth(n), -n)):
        size = count(points[n].line + "\n")
        if size <= left:
            taken[n] = size
            left -= size
            misfits = 0
        elif (misfits := misfits + 1) == MISFITS:
            break
    # The whole may have more tokens than its lines have, depending on who counts.
    while taken and (over := count(_rendered(points[n] for n in sorted(taken))) - most_tokens) > 0:
        while taken and over > 0:
            over -= max(taken.popitem()[1], 1)
    return [points[n] for n in sorted(taken)]
