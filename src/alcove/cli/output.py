"""What commands print: aligned tables and sentences for people, JSON for programs."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from alcove.core.errors import AlcoveError

if TYPE_CHECKING:
    from alcove.upkeep.backup import Progress

T = TypeVar("T")

_GAP = "  "
_LEAST = 6
_BETWEEN_LOOKS = 0.1
_PATIENCE = 120.0
"""Seconds without any progress; an embedder that fails is tried again within one minute."""


class Refused(AlcoveError):
    """What a command does not do: nobody said yes, or it would do harm."""


def as_json() -> bool:
    """Whether the command that runs was asked for JSON."""
    return bool(click.get_current_context().params["as_json"])


def show(record: object, *text: str) -> None:
    """One answer: a line of JSON, or these lines of text; without any, its fields by name, one a line."""
    if as_json():
        text = (compact(record),)
    elif not text:
        fields: dict[str, object] = msgspec.to_builtins(record, builtin_types=[datetime])
        text = (*aligned([[name, shown(value)] for name, value in fields.items()], _width()),)
    for line in text:
        click.echo(line)


def show_table(
    records: Iterable[T], columns: str, *, empty: str, whole: object = None, **made: Callable[[T], object]
) -> None:
    """Many answers, one a row, or one a line of JSON.

    `columns` are the records' fields, such as `key, rev=revision, score:.3f` where a column's name is
    another, or a number is shown with three decimals; `made` has those that are no field. `empty` is said
    where there are no records. `whole` is what is printed as JSON in their place.
    """
    if as_json():
        for record in records if whole is None else (whole,):
            click.echo(compact(record))
        return
    names = [column.rpartition("=") for column in columns.split(", ")]
    cells = [made.get(field) or partial(_field, column=field) for _, _, field in names]
    rows = [[cell(record) for cell in cells] for record in records]
    titles = [title or field.partition(":")[0] for title, _, field in names]
    for number, line in enumerate(aligned([titles, *rows], _width())):
        click.echo(click.style(line, bold=True) if number == 0 else line)
    if not rows:
        click.echo(empty, err=True)


def _field(record: Any, column: str) -> object:
    path, _, decimals = column.partition(":")
    for name in path.split("."):
        record = record[name] if isinstance(record, dict) else getattr(record, name)
    return format(record, decimals) if decimals and record is not None else record


def compact(record: object) -> str:
    """A record as one line of JSON."""
    return msgspec.json.encode(record, enc_hook=str).decode()  # paths are text


def shown(cell: object) -> str:
    """A cell's text: times without their fractions, nothing for None, no control characters."""
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return f"{cell:%Y-%m-%d %H:%M:%SZ}"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, dict):
        return plain(compact(cell))
    if isinstance(cell, list):
        return ", ".join(map(shown, cell))
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
    widths = [min(max(map(_columns, column)), width or sys.maxsize) for column in zip(*rows, strict=True)]
    # A number, a time or an id that is cut says nothing.
    may_give = [n for n, (title, *cells) in enumerate(zip(*table, strict=True))
                if title != "id" and not any(isinstance(cell, int | datetime) for cell in cells)]  # fmt: skip
    while width is not None and may_give and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        widest = max(may_give, key=widths.__getitem__)
        if widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    numbers = [all(type(cell) is int for cell in column[1:]) for column in zip(*table, strict=True)]
    for row in rows:
        cells = (_fitted(*each) for each in zip(row, widths, numbers, strict=True))
        yield _GAP.join(cells).rstrip()


def _fitted(text: str, width: int, to_the_right: bool) -> str:
    """A text of this width: filled with spaces, or cut."""
    if _columns(text) > width:
        text = text[: width - 1]
        while _columns(text) > width - 1:
            text = text[:-1]
        text += "…"
    spaces = " " * (width - _columns(text))
    return spaces + text if to_the_right else text + spaces


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
    label: str, length: int | None = None, *, before: int | None = None
) -> Iterator[Callable[[int], None]]:
    """A bar on the error stream, where that is a terminal; the value is called with each step's size.

    `before`: how many were done before; then it tells how far of how many it is, and how many a second.
    """
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    steps = range(length) if length else itertools.count()
    begun = time.monotonic()

    def rate(_: object) -> str | None:
        seconds = time.monotonic() - begun
        return None if before is None or seconds < 1 else f"{(bar.pos - before) / seconds:,.1f}/s"

    counted = before is not None or not length
    with click.progressbar(steps, label=label, file=sys.stderr, show_pos=counted, item_show_func=rate) as bar:
        bar.update_min_steps = max(1, length // 200) if length else 100
        bar.update(before or 0)
        yield bar.update
        bar.finish()  # what is done is shown as done, whatever was counted
        bar.update_min_steps = 0
        bar.update(0)


def followed(label: str, length: int, reached: Iterable[int]) -> int:
    """Goes through how far a job has come, with a bar; how far it came in the end."""
    steps = iter(reached)
    done = before = next(steps, 0)
    with progress(label, length, before=before) as step:
        for now in steps:
            step(now - done)
            done = now
    return done


def wait_for_index(waiting: Callable[[], int], waited: int) -> None:
    """Waits until none of so many texts waits to be indexed, or nothing has happened for long."""

    def indexed() -> Iterator[int]:
        last, changed = waited, time.monotonic()
        while last and time.monotonic() - changed < _PATIENCE:
            time.sleep(_BETWEEN_LOOKS)
            if (now := waiting()) != last:
                last, changed = now, time.monotonic()
                yield max(waited - now, 0)

    followed("indexing", waited, indexed())


def finished(steps: Iterable[Progress[T]]) -> T:
    """What a long job gives in the end, with a bar for each of its steps."""
    for name, group in itertools.groupby(steps, key=lambda each: each.step):
        first = next(group)
        if first.result is not None:
            return first.result
        followed(name, first.total, (each.done for each in itertools.chain([first], group)))
    raise AssertionError("the last step has the result")


@contextmanager
def writing(path: str | None) -> Iterator[Callable[[bytes], object]]:
    """Writes to the standard output for '-', to a new file that is there once it is whole, or nowhere."""
    if path is None:
        yield lambda data: None
    elif path == "-":
        yield sys.stdout.buffer.write
    else:
        from alcove.upkeep.backup import Partial  # noqa: PLC0415  --help does without

        with Partial(Path(path)) as partial:
            yield partial.write
            partial.complete()
