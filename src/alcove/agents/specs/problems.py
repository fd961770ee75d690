"""What is wrong with spec files: where, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from alcove.core.errors import AlcoveError

Path: TypeAlias = tuple[str | int, ...]
"""A place in a file: names of fields and indexes of lists."""


def dotted(path: Path) -> str:
    """A path as text: `agents[0].memory.pools[1]`, or `document 2: name` where a step ends with a colon."""
    text = ""
    for step in path:
        dot = "." if text and not text.endswith(": ") else ""
        text += f"[{step}]" if isinstance(step, int) else f"{dot}{step}"
    return text.removesuffix(": ")


@dataclass(frozen=True, slots=True, order=True)
class SpecProblem:
    """One mistake in one file."""

    file: str
    path: str
    message: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.file, self.path, self.message)))


class InvalidSpecs(AlcoveError):
    """Specs that do not load; the message has every problem, a line each."""

    code = "invalid_request"

    def __init__(self, problems: Sequence[SpecProblem]) -> None:
        lines = [str(problem) for problem in problems]
        super().__init__("\n".join(lines), details={"errors": lines})
        self.problems = tuple(problems)


def quote_name(name: str) -> str:
    """A name that a caller sent, quoted and at most 60 characters long, for an error message."""
    return repr(name if len(name) <= 60 else f"{name[:60]}…")
