"""Moving memories and whole stores: export and import, backup and restore."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from alcove.cli.output import Output, compact, count, plain, progress
from alcove.cli.store import on_store, prefix_argument
from alcove.client import Alcove
from alcove.errors import StoreError
from alcove.namespace import Namespace


@click.command()
@on_store()
@prefix_argument
@click.option("--of-user", metavar="USER", help="Everything held of this user instead (an access request).")
@click.option("--output", "-o", default="-", metavar="FILE", help="Where to write; stdout without it.")
def export(store: Alcove, out: Output, prefix: Namespace, of_user: str | None, output: str) -> None:
    """Write memories as JSON Lines, one a line, as `alcove import` takes them.

    \b
    Examples:
      alcove export user:alice -o alice.jsonl
      alcove export --of-user alice | gzip > access-request.jsonl.gz
    """
    found = store.export_memories(prefix) if of_user is None else store.admin.export(of_user)
    done = 0
    with _written(output) as file, progress("exporting") as step:
        for memory in found:
            file.write(compact(memory).encode() + b"\n")
            done += 1
            step(1)
    if output != "-":
        out.record({"exported": done}, f"{count(done, 'memory')} in {output}")


@contextmanager
def _written(path: str) -> Iterator[BinaryIO]:
    """A file that is there only once it is whole, or the standard output."""
    if path == "-":
        yield sys.stdout.buffer
        return
    part = Path(f"{path}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


@click.command(name="import")
@on_store(make=True)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
def import_memories(store: Alcove, out: Output, file: str) -> None:
    """Take memories from JSON Lines ('-' for stdin); what is there already is left as it is.

    \b
    A broken line is named and left out, and the exit code is 1; the others are taken.
    Example:  alcove import alice.jsonl
    """
    size = None if file == "-" else Path(file).stat().st_size
    with click.open_file(file, "rb") as lines, progress("importing", size) as step:
        report = store.import_memories(_watched(lines, step))
    told = [f"{count(report.imported, 'memory')} imported, {report.unchanged:,} unchanged"]
    told += [f"line {each.line}: {plain(each.error)}" for each in report.failed[:20]]
    if report.failures > 20:
        told.append(f"and {report.failures - 20:,} more lines that were not taken")
    out.record(report, "\n".join(told))
    if report.failures:
        sys.exit(1)


def _watched(lines: Iterable[bytes], step: Callable[[int], None]) -> Iterator[bytes]:
    for line in lines:
        yield line
        step(len(line))


COMMANDS = [export, import_memories]
