"""Importing: lines of JSON as `alcove export` writes them, and what other projects kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from alcove.cli import output
from alcove.cli.output import count, plain, show
from alcove.cli.store import command
from alcove.core.addresses import is_database
from alcove.core.namespace import Namespace

if TYPE_CHECKING:
    from alcove.client.store import Store
    from alcove.importers import ImportSummary
    from alcove.upkeep.transfer import File, Imports

_LINES = "jsonl"
_SOURCES = (_LINES, "mem0", "langgraph", "letta", "zep")
_TOLD = 20
"""Failures that are told one by one."""


class _FileOrAddress(click.Path):
    """A file that is there, or the address of a PostgreSQL server."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str | bytes:
        if isinstance(value, str) and is_database(value):
            return value
        return super().convert(value, param, ctx)  # type: ignore[arg-type, return-value]


@command("import", make=True)
@click.argument("file", type=_FileOrAddress(exists=True, dir_okay=False, allow_dash=True))
@click.option("--from", "source", type=click.Choice(_SOURCES), default=_LINES, show_default=True,
              help="What wrote it.")  # fmt: skip
@click.option("--user", metavar="NAME", help="Whose is what does not say whose it is; not of jsonl.")
@click.option("--agent", metavar="NAME", help="With whom conversations were; not of jsonl.")
@click.option("--by-user", is_flag=True, help="Of langgraph: the first label of a namespace is whose it is.")
@click.option("--root", metavar="NAMESPACE",
              help="Of langgraph: put items below it, as AlcoveStore(root=...) reads them.")  # fmt: skip
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until they can be found by meaning.")
def import_memories(
    store: Store,
    file: str,
    source: str,
    user: str | None,
    agent: str | None,
    *,
    by_user: bool,
    root: str | None,
    wait: bool,
) -> int:
    """Take memories from JSON Lines, or from another project.

    \b
    FILE is '-' for stdin. What is there already is left as it is.
    A broken line or record is named and left out, and the exit code is 1; the others are taken.
    From LangGraph, it may also be the address of a database: postgresql://host/name.
    Examples:
      alcove import alice.jsonl
      alcove import --from mem0 memories.json
      alcove import --from letta agent.af --user alice --agent scout
      alcove import --from langgraph store.db --root user:alice:langgraph
    """
    if by_user and (source != "langgraph" or user is not None):
        raise click.UsageError("--by-user is for --from langgraph, without --user")
    if root is not None and (source != "langgraph" or user is not None or by_user):
        raise click.UsageError("--root is for --from langgraph, without --user and --by-user")
    if source == _LINES:
        if user is not None or agent is not None:
            raise click.UsageError("--user and --agent are for --from mem0, langgraph, letta and zep")
        return _from_lines(store, file, wait=wait)
    if file == "-" or (is_database(file) and source != "langgraph"):
        raise click.BadParameter(f"--from {source} reads a file", param_hint="'FILE'")
    from alcove.importers import Target, import_from  # noqa: PLC0415  --help does without

    below = None if root is None else tuple(Namespace.checked(root, "--root"))
    said: dict[str, Any] = {"user": user, "agent": agent, "by_user": by_user, "root": below}
    target = Target(caller=store.whoami().user, now=datetime.now(UTC), **said)
    with output.progress("importing") as step:
        done = import_from(partial(store.import_memories, wait_for_index=wait), source, file, target, step)
    broken = [f"{plain(each.record)}: {plain(each.error)}" for each in done.failed]
    left = [f"not brought: {count(each.count, each.kind)} ({each.reason})" for each in done.not_mapped]
    return _tell(done, broken, "records", *left, wait=wait)


def _from_lines(store: Store, file: str, *, wait: bool) -> int:
    size = None if file == "-" else Path(file).stat().st_size
    with click.open_file(file, "rb") as text, output.progress("importing", size) as step:
        report = store.import_memories(_Watched(text, step), wait_for_index=wait)
    broken = [f"line {each.line}: {plain(each.error)}" for each in report.failed]
    return _tell(report, broken, "lines", wait=wait)


def _tell(done: Imports | ImportSummary, broken: Sequence[str], what: str, *more: str, wait: bool) -> int:
    """Says what was done, what was not, and what waits to be indexed; gives the exit code."""
    told = [f"{count(done.imported, 'memory')} imported, {done.unchanged:,} unchanged", *broken[:_TOLD]]
    if done.failures > _TOLD:
        told.append(f"and {done.failures - _TOLD:,} more {what} that were not taken")
    show(done, *told, *more)
    if done.waiting or (done.imported and not wait):
        some = f"{done.waiting:,} of them" if done.waiting else "those with an index text"
        click.echo(f"{some} wait to be indexed; to see to it: alcove index --wait", err=True)
    return 1 if done.failures else 0


class _Watched:
    """A file that tells how much of it was read."""

    def __init__(self, file: File, step: Callable[[int], None]) -> None:
        self._file = file
        self._step = step

    def read(self, size: int, /) -> bytes:
        piece = self._file.read(size)
        self._step(len(piece))
        return piece
