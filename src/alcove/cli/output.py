"""What commands print: aligned tables and sentences for people, JSON for programs."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from alcove.core.errors import AlcoveError
from alcove.upkeep.atomic_file import Partial

if TYPE_CHECKING:
    from alcove.upkeep.backup import Progress

T = TypeVar("T")

_GAP = "  "
_LEAST = 6


class Refused(AlcoveError):
    """What a command does not do: nobody said yes, or it would do harm."""


class Output:
    """One command's output: as JSON, one document or a line for each record, or as text."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def record(self, record: object, text: str) -> None:
        """One answer."""
        click.echo(compact(record) if self.as_json else text)

    def table(
        self,
        records: Iterable[T],
        columns: Sequence[str],
        cells: Callable[[T], Sequence[object]],
        *,
        empty: str,
    ) -> None:
        """Many answers; `cells` gives a record's row."""
        if self.as_json:
            for record in records:
                click.echo(compact(record))
            return
        rows = [cells(record) for record in records]
        for number, line in enumerate(aligned([columns, *rows], _width())):
            click.echo(click.style(line, bold=True) if number == 0 else line)
        if not rows:
            click.echo(empty, err=True)


def compact(record: object) -> str:
    """A record as one line of JSON."""
    return msgspec.json.encode(record).decode()


def shown(cell: object) -> str:
    """A cell's text: times without their fractions, nothing for None, no control characters."""
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return f"{cell:%Y-%m-%d %H:%M:%SZ}"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, dict | list):
        return plain(compact(cell))
    return plain(str(cell))


def plain(text: str, *, keep: str = "") -> str:
    """Text that cannot steer a terminal: whatever does not print is spelled out."""
    return "".join(
        c if c.isprintable() or c in keep or unicodedata.category(c) == "Zs" else ascii(c)[1:-1] for c in text
    )


def count(number: int, what: str) -> str:
    """So many, in words: 1 memory, 2 memories, 3 keys."""
    many = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}s"
    return f"{number:,} {what if number == 1 else many}"


def aligned(table: Sequence[Sequence[object]], width: int | None) -> Iterator[str]:
    """Lines with their columns under one another, numbers to the right; the widest columns give way."""
    rows = [[shown(cell) for cell in row] for row in table]
    widths = [max(map(_columns, column)) for column in zip(*rows, strict=True)]
    while width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    numbers = [all(isinstance(cell, int) for cell in column[1:]) for column in zip(*table, strict=True)]
    for row in rows:
        cells = [_cut(cell, most) for cell, most in zip(row, widths, strict=True)]
        filled = [
            " " * (most - _columns(cell)) + cell if number else cell + " " * (most - _columns(cell))
            for cell, most, number in zip(cells, widths, numbers, strict=True)
        ]
        yield _GAP.join(filled).rstrip()


def _cut(text: str, most: int) -> str:
    if _columns(text) <= most:
        return text
    while text and _columns(text) > most - 1:
        text = text[:-1]
    return text + "…"


def _columns(text: str) -> int:
    """How wide a terminal shows it: some characters take two columns, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def _width() -> int | None:
    """The terminal's width; without a terminal nothing is cut, unless COLUMNS says so."""
    given = os.environ.get("COLUMNS", "").isdigit()
    return shutil.get_terminal_size().columns if given or sys.stdout.isatty() else None


def confirm(question: str, *, yes: bool) -> None:
    """Goes on only if told to: by `--yes`, or by somebody at the terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{question} There is no terminal to ask at: say so with --yes")
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise Refused("nothing was done")


@contextmanager
def progress(
    label: str, length: int | None = None, *, hidden: bool = False
) -> Iterator[Callable[[int], None]]:
    """A bar on the error stream, where that is a terminal; the value is called with each step's size."""
    if hidden or not sys.stderr.isatty():
        yield lambda step: None
        return
    steps = range(length) if length else itertools.count()
    often = max(1, length // 200) if length else 100
    with click.progressbar(
        steps, label=label, file=sys.stderr, show_pos=not length, update_min_steps=often
    ) as bar:
        yield bar.update


def finished(steps: Iterable[Progress[T]]) -> T:
    """What a long job gives in the end, with a bar for each of its steps."""
    result = None
    for name, group in itertools.groupby(steps, key=lambda each: each.step):
        bar, done, total = None, 0, 0
        with ExitStack() as stack:
            for each in group:
                bar = bar or stack.enter_context(progress(name, each.total, hidden=name == "done"))
                bar(each.done - done)
                done, total, result = each.done, each.total, each.result
            if bar:
                bar(total - done)
    assert result is not None
    return result


@contextmanager
def writing(path: str | None) -> Iterator[Callable[[bytes], object]]:
    """Writes to the standard output for '-', to a new file that is there once it is whole, or nowhere."""
    if path is None:
        yield lambda data: None
    elif path == "-":
        yield sys.stdout.buffer.write
    else:
        with Partial(Path(path)) as partial:
            yield partial.write
            partial.complete()


@contextmanager
def working(what: str) -> Iterator[None]:
    """Says what takes a while and cannot be measured, at a terminal."""
    if sys.stderr.isatty():
        click.echo(f"{what} …", err=True)
    yield
