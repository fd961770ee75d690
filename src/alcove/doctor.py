"""The doctor: compares what a store says with what it holds, and shows none of the content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from alcove import rows
from alcove.engine.base import Engine
from alcove.errors import AlcoveError


class Examination(NamedTuple):
    """One thing the doctor checked, over how many, and what was found wrong."""

    name: str
    compared: int
    wrong: list[str]


def examine(engine: Engine, opener: rows.Opener) -> Iterator[Examination]:
    """Every check, as it is done: first the engine's own, then each value under its key."""
    for name, compared, wrong in engine.check():
        yield Examination(name, compared, wrong)
    compared, unreadable = 0, []
    for row in engine.every_version():
        if row.sealed is not None:
            compared += 1
            try:
                opener.value(row)
            except AlcoveError as error:
                unreadable.append(f"{row.seq}: {error.message}")
    yield Examination("every value opens under its key, at its place", compared, unreadable)
