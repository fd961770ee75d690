"""What a summary keeps with weights that have not seen the conversation they are measured on.

    python bench/summary_weights.py DATA.json [--ratio 10]      about ten minutes

For each conversation, weights are fitted to all others, one at a time and from 1, and measured on the one
that was left out. Data and figures are those of `summaries.py`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

from alcove.agents import summariser
from alcove.agents.summariser import Weights
from alcove.search.words import words
from summaries import HEAD, Figures, Talk, at_once, by_session, each_session, measured, talks

_words = cache(words)


def fitted(every: Sequence[Talk], ratio: float, start: Weights) -> Weights:
    """Weights moved one at a time, as long as more evidence survives in these conversations."""
    best, most = start, _goal(every, ratio, start)
    for step in (2.0, 1.4):
        for each in fields(Weights):
            for factor in (step, 1 / step):
                while True:
                    tried = replace(best, **{each.name: getattr(best, each.name) * factor})
                    reached = _goal(every, ratio, tried)
                    if reached <= most + 1e-9:
                        break
                    best, most = tried, reached
    return best


def _goal(every: Sequence[Talk], ratio: float, weights: Weights) -> float:
    with patch.object(summariser, "WEIGHTS", weights), patch.object(summariser, "words", _words):
        return (measured(every, each_session, ratio).survival + measured(every, at_once, ratio).survival) / 2


def left_out(every: Sequence[Talk], ratio: float) -> None:
    """Each conversation with weights fitted to the others, from weights that say nothing."""
    neutral = Weights(**{each.name: 1.0 for each in fields(Weights)})
    methods = {"each session": each_session, "at once": at_once, "session by session": by_session}
    rows = defaultdict(list)
    for talk in every:
        weights = fitted([other for other in every if other is not talk], ratio, neutral)
        print(f"without {talk.name}: {weights}", flush=True)
        with patch.object(summariser, "WEIGHTS", weights):
            for name, method in methods.items():
                rows[name].append(measured([talk], method, ratio))
    print(HEAD)
    for name, some in rows.items():
        print(f"| {name}, fitted to the other conversations | {Figures.joined(some).row()} |")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("data", type=Path)
    options.add_argument("--ratio", type=float, default=10, help="how many times shorter")
    given = options.parse_args()
    left_out(list(talks(given.data)), given.ratio)


if __name__ == "__main__":
    main()
