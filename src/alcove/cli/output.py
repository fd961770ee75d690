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
_MIN_WIDTH = 6
_POLL_SECONDS = 0.1
_STALL_SECONDS = 120.0
"""Without any progress; an embedder that fails is tried again within one minute."""


class Refusal(AlcoveError):
    """A command that is not carried out: nobody confirmed it, or it would do harm."""


def as_json() -> bool:
    """Whether the running command was called with `--json`."""
    return bool(click.get_current_context().params["as_json"])


def show(record: object, *text: str) -> None:
    """Prints one answer: as a line of JSON, as these lines of text, or else as one field per line."""
    if as_json():
        text = (to_json(record),)
    elif not text:
        fields: dict[str, object] = msgspec.to_builtins(record, builtin_types=[datetime])
        text = (*align_columns([*fields.items()], _terminal_width()),)
    for line in text:
        click.echo(line)


def show_table(
    records: Iterable[T], columns: str, *, empty: str, json: object = None, **cells: Callable[[T], object]
) -> None:
    """Prints many answers: one per row, or one per line of JSON.

    `columns` names fields of the records, such as `key, rev=revision, score:.3f`: `rev` is the title of the
    field `revision`, and `.3f` formats a number. `cells` computes columns that are no field. `empty` is
    printed if there are no records. `json` is printed as JSON in their place.
    """
    if as_json():
        for record in records if json is None else (json,):
            click.echo(to_json(record))
        return
    names = [column.rpartition("=") for column in columns.split(", ")]
    makers = [cells.get(field) or partial(_field, column=field) for _, _, field in names]
    rows = [[make(record) for make in makers] for record in records]
    titles = [title or field.partition(":")[0] for title, _, field in names]
    for number, line in enumerate(align_columns([titles, *rows], _terminal_width())):
        click.echo(click.style(line, bold=True) if number == 0 else line)
    if not rows:
        click.echo(empty, err=True)


def _field(record: Any, column: str) -> object:
    path, _, decimals = column.partition(":")
    for name in path.split("."):
        record = record[name] if isinstance(record, dict) else getattr(record, name)
    return format(record, decimals) if decimals and record is not None else record


def to_json(record: object) -> str:
    """A record as one line of JSON."""
    return msgspec.json.encode(record, enc_hook=str).decode()  # paths are text


def format_cell(cell: object) -> str:
    """A cell's text: times without fractions, nothing for None, no control characters."""
    match cell:
        case None:
            return ""
        case datetime():
            return f"{cell:%Y-%m-%d %H:%M:%SZ}"
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
        case dict():
            return escape(to_json(cell))
        case list():
            return ", ".join(map(format_cell, cell))
    return escape(str(cell))


def escape(text: str, *, keep: str = "") -> str:
    """Spells out every character that does not print, so that stored text cannot control a terminal."""
    return "".join(
        c if c.isprintable() or c in keep or unicodedata.category(c) == "Zs" else ascii(c)[1:-1] for c in text
    )


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 memory, 2 memories, 3 keys."""
    plural = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def align_columns(table: Sequence[Sequence[object]], width: int | None) -> Iterator[str]:
    """Lines with aligned columns, numbers to the right; cuts the widest columns to fit the width."""
    rows = [[format_cell(cell) for cell in row] for row in table]
    columns = [*zip(*table, strict=True)]
    limit = width or sys.maxsize
    widths = [min(max(map(_display_width, column)), limit) for column in zip(*rows, strict=True)]
    # A number, a time or an id is useless if it is cut.
    fixed = (int, datetime)
    shrinkable = [n for n, (title, *cells) in enumerate(columns)
                  if title != "id" and not any(isinstance(cell, fixed) for cell in cells)]  # fmt: skip
    while width is not None and shrinkable and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        widest = max(shrinkable, key=widths.__getitem__)
        if widths[widest] <= _MIN_WIDTH:
            break
        widths[widest] -= 1
    numeric = [all(type(cell) is int for cell in column[1:]) for column in columns]
    for row in rows:
        yield _GAP.join(map(_fit, row, widths, numeric)).rstrip()


def _fit(text: str, width: int, is_number: bool) -> str:
    """Fills a text with spaces to a width, or cuts it."""
    if _display_width(text) > width:
        text = text[: width - 1]
        while _display_width(text) > width - 1:
            text = text[:-1]
        text += "…"
    spaces = " " * (width - _display_width(text))
    return spaces + text if is_number else text + spaces


def _display_width(text: str) -> int:
    """The columns a text takes in a terminal: some characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def _terminal_width() -> int | None:
    """The terminal's width; without a terminal nothing is cut, unless COLUMNS is set."""
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return shutil.get_terminal_size().columns if has_width else None


def confirm(question: str, *, yes: bool) -> None:
    """Raises Refusal unless `--yes` or somebody at the terminal confirms."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refusal(f"{question} There is no terminal to ask at: confirm with --yes")
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise Refusal("nothing was changed")


@contextmanager
def progress_bar(
    label: str, length: int | None = None, *, start: int | None = None
) -> Iterator[Callable[[int], None]]:
    """Shows a bar on the error stream if that is a terminal; call the yielded function with each step's size.

    `start` is the position to begin at; with it, the bar also shows counts and a rate.
    """
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    steps = range(length) if length else itertools.count()
    begin = time.monotonic()

    def rate(_: object) -> str | None:
        seconds = time.monotonic() - begin
        return None if start is None or seconds < 1 else f"{(bar.pos - start) / seconds:,.1f}/s"

    show_pos = start is not None or not length
    with click.progressbar(
        steps, label=label, file=sys.stderr, show_pos=show_pos, item_show_func=rate
    ) as bar:
        bar.update_min_steps = max(1, length // 200) if length else 100
        bar.update(start or 0)
        yield bar.update
        bar.finish()  # a finished bar is full, whatever was counted
        bar.update_min_steps = 0
        bar.update(0)


def show_progress(label: str, length: int, positions: Iterable[int]) -> int:
    """Consumes the positions of a job with a progress bar; returns the last one."""
    steps = iter(positions)
    last = start = next(steps, 0)
    with progress_bar(label, length, start=start) as step:
        for position in steps:
            step(position - last)
            last = position
    return last


def wait_for_index(count_waiting: Callable[[], int], total: int) -> None:
    """Waits until no text waits to be indexed, or indexing has stalled. `total`: how many wait now."""
    waiting, changed_at = total, time.monotonic()
    with progress_bar("indexing", total, start=0) as step:
        while waiting and time.monotonic() - changed_at < _STALL_SECONDS:
            time.sleep(_POLL_SECONDS)
            if (now := count_waiting()) != waiting:
                step(waiting - now)
                waiting, changed_at = now, time.monotonic()


def run_steps(steps: Iterable[Progress[T]]) -> T:
    """Runs a long job with a progress bar for each of its steps; returns its result."""
    for name, group in itertools.groupby(steps, key=lambda progress: progress.step):
        first = next(group)
        if first.result is not None:
            return first.result
        show_progress(name, first.total, (progress.done for progress in itertools.chain([first], group)))
    raise AssertionError("the last step has the result")


@contextmanager
def open_output(path: str | None) -> Iterator[Callable[[bytes], object]]:
    """Yields a function that writes to stdout for '-', to a file that appears when complete, or nowhere."""
    if path is None:
        yield lambda data: None
    elif path == "-":
        yield sys.stdout.buffer.write
    else:
        from alcove.upkeep.backup import Partial  # noqa: PLC0415  not needed for --help

        with Partial(Path(path)) as partial:
            yield partial.write
            partial.complete()
