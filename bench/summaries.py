"""What a summary of a conversation keeps of what is asked later, with no LLM.

    python bench/summaries.py DATA.json                 at 10:1, counted in tokens
    python bench/summaries.py DATA.json --ratio 20

DATA.json is LoCoMo's layout, and is never part of this repository. Both speakers are people, so both have
the role of the user. A summary may have a tenth of the tokens of the transcript, `speaker: text` a turn.

An evidence turn *survives* if at least half of its content words (each once, stop words aside) stand in
points of the summary that were taken from that very turn, or that are a sentence of it word for word.
`evidence` is the mean over questions of the share of their evidence turns that survive. `answer` is the share
of an answer's content words (as stems) that stand anywhere in the summary, for answers of up to five such
words. Categories: 1 several turns, 2 dates, 3 inference, 4 one turn, 5 unanswerable (these have no answer).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from splintr import Tokenizer

from alcove.agents.summariser import Point, extend_summary, sentences
from alcove.core.records import Message
from alcove.search.words import ENGLISH, STOP_WORDS, stems, words

SHORT_ANSWER = 5
SEEDS = 5
CATEGORIES = (1, 2, 3, 4, 5)
_TOKENS = Tokenizer.from_pretrained("o200k_base")
Sessions = list[list[Message]]
Method = Callable[[Sessions, float], list[Point]]


@dataclass(frozen=True)
class Asked:
    evidence: list[Message]
    answer: frozenset[str]
    """Its terms; none if it is long, or there is none."""
    category: int


@dataclass(frozen=True)
class Talk:
    name: str
    sessions: Sessions
    questions: list[Asked]


def talks(path: Path) -> Iterator[Talk]:
    """The conversations; a turn's time tells it from all others."""
    for sample in json.loads(path.read_text()):
        talk: dict[str, Any] = sample["conversation"]
        names = sorted((k for k in talk if re.fullmatch(r"session_\d+", k)), key=lambda k: int(k[8:]))
        turns: dict[str, Message] = {}
        sessions: Sessions = []
        for day, name in enumerate(names):
            start = datetime(2023, 1, 1, tzinfo=UTC) + timedelta(days=day)
            sessions.append([])
            for minute, turn in enumerate(talk[name]):
                caption = f" [{turn['blip_caption']}]" if turn.get("blip_caption") else ""
                message = Message(
                    role="user",
                    name=turn["speaker"],
                    content=turn["text"] + caption,
                    at=start + timedelta(minutes=minute),
                )
                turns[turn["dia_id"]] = message
                sessions[-1].append(message)
        questions = []
        for qa in sample["qa"]:
            found = [e for text in qa.get("evidence") or [] for e in re.findall(r"D\d+:\d+", text)]
            answer = frozenset(stems([*_content(str(qa.get("answer", "")))]))
            if evidence := [turns[e] for e in dict.fromkeys(found) if e in turns]:
                short = answer if len(answer) <= SHORT_ANSWER else frozenset[str]()
                questions.append(Asked(evidence, short, qa["category"]))
        yield Talk(sample["sample_id"], sessions, questions)


@cache
def count(text: str) -> int:
    return len(_TOKENS.encode(text))


@cache
def _content(text: str) -> frozenset[str]:
    return frozenset(words(text)) - STOP_WORDS[ENGLISH]


def _size(messages: Sequence[Message]) -> int:
    return count("\n".join(f"{message.name}: {message.content}" for message in messages))


# Ways to summarise


def each_session(sessions: Sessions, ratio: float) -> list[Point]:
    return [
        point
        for session in sessions
        for point in extend_summary([], session, most_tokens=int(_size(session) / ratio), count=count)
    ]


def at_once(sessions: Sessions, ratio: float) -> list[Point]:
    every = [message for session in sessions for message in session]
    return extend_summary([], every, most_tokens=int(_size(every) / ratio), count=count)


def by_session(sessions: Sessions, ratio: float) -> list[Point]:
    return _rolling(sessions, sessions, ratio)


def by_message(sessions: Sessions, ratio: float) -> list[Point]:
    return _rolling(sessions, [[message] for session in sessions for message in session], ratio)


def _rolling(sessions: Sessions, steps: Sequence[Sequence[Message]], ratio: float) -> list[Point]:
    most = int(sum(map(_size, sessions)) / ratio)
    summary: list[Point] = []
    for step in steps:
        summary = extend_summary(summary, step, most_tokens=most, count=count)
    return summary


# What they are compared with: the same sentences, chosen otherwise


def _said(messages: Sequence[Message]) -> list[Point]:
    pairs = ((each, text) for each in messages for text in sentences(each.content or ""))
    return [Point(text=text, speaker=each.name or each.role, at=each.at, weight=0) for each, text in pairs]


def _filled(points: Sequence[Point], most: int) -> list[Point]:
    """The first points that fit; what does not fit is passed over."""
    taken, left = [], most
    for point in points:
        size = count(f"{point.speaker}: {point.text}\n")
        if size <= left:
            taken.append(point)
            left -= size
    return taken


def _inwards(points: list[Point]) -> list[Point]:
    """The first, the last, the second, the last but one, …"""
    half = (len(points) + 1) // 2
    pairs = zip_longest(points[:half], reversed(points[half:]))
    return [point for pair in pairs for point in pair if point]


def of_each_session(order: Callable[[list[Point]], list[Point]]) -> Method:
    def method(sessions: Sessions, ratio: float) -> list[Point]:
        chosen = (_filled(order(_said(each)), int(_size(each) / ratio)) for each in sessions)
        return [point for some in chosen for point in some]

    return method


def _shuffled(seed: int) -> Callable[[list[Point]], list[Point]]:
    def order(points: list[Point]) -> list[Point]:
        random.Random(seed).shuffle(points)
        return points

    return order


def _longest(points: list[Point]) -> list[Point]:
    return sorted(points, key=lambda point: -len(point.text))


def knowing(talk: Talk, ratio: float) -> list[Point]:
    """About the best there can be: whoever knows the questions takes the turns that most of them ask for."""
    asked: Counter[str] = Counter()
    turns = {str(m.at): m for session in talk.sessions for m in session}
    for question in talk.questions:
        for message in question.evidence:
            asked[str(message.at)] += 1
    chosen = {at: _enough(turns[at]) for at in asked}
    cost = {at: count("\n".join(f"{p.speaker}: {p.text}" for p in some)) for at, some in chosen.items()}
    order = sorted(asked, key=lambda at: (-asked[at] / cost[at], at))
    taken, left = [], int(sum(map(_size, talk.sessions)) / ratio)
    for at in order:
        if cost[at] <= left:
            taken += chosen[at]
            left -= cost[at]
    return taken


def _enough(message: Message) -> list[Point]:
    """The longest sentences of a turn, until it survives."""
    taken: list[Point] = []
    for point in _longest(_said([message])):
        if not survives(message, taken):
            taken.append(point)
    return taken


# Figures


@dataclass
class Figures:
    evidence: dict[int, list[float]]
    answer: list[float]

    @classmethod
    def joined(cls, some: Sequence[Figures]) -> Figures:
        evidence: dict[int, list[float]] = defaultdict(list)
        for each in some:
            for category, values in each.evidence.items():
                evidence[category] += values
        return cls(evidence, [value for each in some for value in each.answer])

    @property
    def survival(self) -> float:
        return statistics.fmean(value for values in self.evidence.values() for value in values)

    def row(self) -> str:
        by_category = (f"{100 * statistics.fmean(self.evidence[each]):.1f}" for each in CATEGORIES)
        answer = statistics.fmean(self.answer)
        return f"{100 * self.survival:.1f} | {100 * answer:.1f} | {' | '.join(by_category)}"


def survives(message: Message, points: Sequence[Point]) -> bool:
    """Whether half of its content words are in points of its own, or in its very sentences."""
    text = message.content or ""
    wanted = _content(text)
    own = (p.text for p in points if p.at == message.at or p.text in text)
    kept = set().union(*map(_content, own))
    return 2 * len(wanted & kept) >= len(wanted)


def figures(talk: Talk, points: Sequence[Point]) -> Figures:
    alive: dict[datetime | None, bool] = {}
    told = {*stems([word for point in points for word in words(f"{point.speaker}: {point.text}")])}
    found = Figures(defaultdict(list), [])
    for asked in talk.questions:
        for message in asked.evidence:
            if message.at not in alive:
                alive[message.at] = survives(message, points)
        found.evidence[asked.category].append(statistics.fmean(alive[m.at] for m in asked.evidence))
        if asked.answer:
            found.answer.append(len(asked.answer & told) / len(asked.answer))
    return found


def measured(every: Sequence[Talk], method: Method, ratio: float) -> Figures:
    return Figures.joined([figures(talk, method(talk.sessions, ratio)) for talk in every])


HEAD = (
    f"| | evidence | answer |{''.join(f' {each} |' for each in CATEGORIES)}\n"
    f"|---|---|---|{'---|' * len(CATEGORIES)}"
)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("data", type=Path)
    options.add_argument("--ratio", type=float, default=10, help="how many times shorter")
    given = options.parse_args()
    every = list(talks(given.data))
    turns = sum(len(session) for talk in every for session in talk.sessions)
    print(
        f"{len(every)} conversations, {turns} turns, {sum(len(talk.questions) for talk in every)} questions"
    )
    methods: dict[str, Method] = {
        "each session by itself": each_session,
        "the whole at once": at_once,
        "the whole, session by session": by_session,
        "the whole, message by message": by_message,
        "first and last sentences of each session": of_each_session(_inwards),
        "first sentences of each session": of_each_session(lambda points: points),
        "longest sentences of each session": of_each_session(_longest),
    }
    print(HEAD)
    for name, method in methods.items():
        print(f"| {name} | {measured(every, method, given.ratio).row()} |", flush=True)
    chance = [measured(every, of_each_session(_shuffled(seed)), given.ratio) for seed in range(SEEDS)]
    print(f"| random sentences of each session, mean of {SEEDS} | {Figures.joined(chance).row()} |")
    best = [figures(talk, knowing(talk, given.ratio)) for talk in every]
    print(f"| chosen by who knows the questions | {Figures.joined(best).row()} |")


if __name__ == "__main__":
    main()
