"""Commands that move memories and stores: export, import, backup, restore, migrate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from alcove.cli import output
from alcove.cli.command import FILE, command
from alcove.cli.output import count, escape, show
from alcove.client import is_url
from alcove.core.addresses import is_database, locate_store
from alcove.core.namespace import Namespace
from alcove.server.config import Option

if TYPE_CHECKING:
    from alcove.client.store import Store
    from alcove.importers import ImportSummary
    from alcove.upkeep.backup import Forgotten, Restored
    from alcove.upkeep.transfer import File, Imports

_LINES = "jsonl"
_SOURCES = (_LINES, "mem0", "langgraph", "letta", "zep")
_MAX_FAILURES_SHOWN = 20


@command()
@click.option("--of-user", metavar="USER",
              help="Write everything stored about this user instead, with history.")  # fmt: skip
@click.option("--output", "-o", "file", default="-", show_default=False, metavar="FILE",
              help="Write to this new file instead of stdout.")  # fmt: skip
def export(store: Store, prefix: Namespace, of_user: str | None, file: str) -> None:
    """Write memories as JSON Lines.

    \b
    One per line, in the form that `alcove import` reads.
    Examples:
      alcove export user:alice -o alice.jsonl
      alcove export --of-user alice | gzip > access-request.jsonl.gz
    """
    memories = store.export_memories(prefix) if of_user is None else store.admin.export(of_user)
    exported = 0
    with output.open_output(file) as write, output.progress_bar("exporting") as step:
        for memory in memories:
            write(output.to_json(memory).encode() + b"\n")
            exported += 1
            step(1)
    if file != "-":
        noun = "memory" if of_user is None else "version"
        show({"exported": exported}, f"{count(exported, noun)} in {file}")


class _FileOrAddress(click.Path):
    """An existing file, or the address of a PostgreSQL database."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str | bytes:
        if isinstance(value, str) and is_database(value):
            return value
        return super().convert(value, param, ctx)  # type: ignore[arg-type, return-value]


@command("import", creates=True)
@click.argument("file", type=_FileOrAddress(exists=True, dir_okay=False, allow_dash=True))
@click.option("--from", "source", type=click.Choice(_SOURCES), default=_LINES,
              help="The program that wrote the file.")  # fmt: skip
@click.option("--user", metavar="NAME", help="Owner of records that name no user (not for jsonl).")
@click.option("--agent", metavar="NAME", help="The agent of imported conversations (not for jsonl).")
@click.option("--by-user", is_flag=True, help="For langgraph: the first label of a namespace is its user.")
@click.option("--root", metavar="NAMESPACE",
              help="For langgraph: import below it, where AlcoveStore(root=...) reads.")  # fmt: skip
def import_memories(store: Store, file: str, source: str, *, wait: bool, **options: Any) -> int:
    """Import memories from JSON Lines or from another project.

    \b
    FILE may be '-' for stdin. Memories that exist already stay as they are.
    Broken lines or records are listed and left out, and the exit code is 1; the others are imported.
    From LangGraph, FILE may also be the address of a database: postgresql://host/name.
    Examples:
      alcove import alice.jsonl
      alcove import --from mem0 memories.json
      alcove import --from letta agent.af --user alice --agent scout
      alcove import --from langgraph store.db --root user:alice:langgraph
    """
    user, agent, by_user, root = (options[name] for name in ("user", "agent", "by_user", "root"))
    if by_user and (source != "langgraph" or user is not None):
        raise click.UsageError("--by-user is for --from langgraph, without --user")
    if root is not None and (source != "langgraph" or user is not None or by_user):
        raise click.UsageError("--root is for --from langgraph, without --user and --by-user")
    if source == _LINES:
        if user is not None or agent is not None:
            raise click.UsageError("--user and --agent are for --from mem0, langgraph, letta and zep")
        return _import_lines(store, file, wait=wait)
    if file == "-" or (is_database(file) and source != "langgraph"):
        raise click.BadParameter(f"--from {source} reads a file", param_hint="'FILE'")
    from alcove.importers import Target, import_from  # noqa: PLC0415  not needed for --help

    options["root"] = None if root is None else tuple(Namespace.checked(root, "--root"))
    target = Target(caller=store.whoami().user, now=datetime.now(UTC), **options)
    with output.progress_bar("importing") as step:
        write = partial(store.import_memories, wait_for_index=wait)
        summary = import_from(write, source, file, target, step)
    failures = [f"{escape(each.record)}: {escape(each.error)}" for each in summary.failed]
    skipped = [f"not imported: {count(each.count, each.kind)} ({each.reason})" for each in summary.not_mapped]
    return _show_import(summary, failures, "records", *skipped, wait=wait)


def _import_lines(store: Store, file: str, *, wait: bool) -> int:
    size = None if file == "-" else Path(file).stat().st_size
    with click.open_file(file, "rb") as text, output.progress_bar("importing", size) as step:
        report = store.import_memories(_CountedFile(text, step), wait_for_index=wait)
    failures = [f"line {each.line}: {escape(each.error)}" for each in report.failed]
    return _show_import(report, failures, "lines", wait=wait)


class _CountedFile:
    """A file that reports how many bytes were read."""

    def __init__(self, file: File, step: Callable[[int], None]) -> None:
        self._file = file
        self._step = step

    def read(self, size: int, /) -> bytes:
        chunk = self._file.read(size)
        self._step(len(chunk))
        return chunk


def _show_import(
    summary: Imports | ImportSummary, failures: Sequence[str], noun: str, *more: str, wait: bool
) -> int:
    """Shows what was imported, what failed, and how many texts wait for the index; returns the exit code."""
    lines = [f"{count(summary.imported, 'memory')} imported, {summary.unchanged:,} unchanged",
             *failures[:_MAX_FAILURES_SHOWN]]  # fmt: skip
    if summary.failures > _MAX_FAILURES_SHOWN:
        lines.append(f"and {summary.failures - _MAX_FAILURES_SHOWN:,} more {noun} that were not imported")
    show(summary, *lines, *more)
    if summary.waiting or (summary.imported and not wait):
        texts = f"{summary.waiting:,} of them" if summary.waiting else "those with an index text"
        click.echo(f"{texts} wait to be indexed; index them with: alcove index --wait", err=True)
    return 1 if summary.failures else 0


@command()
@click.argument("file", type=click.Path(path_type=Path))
def backup(store: Store, file: Path) -> None:
    """Copy a store in use into one file, and verify the copy.

    \b
    The key (memory.db.key) and the ledger of wipes (memory.db.wipes) are not in it: keep copies of both
    elsewhere, since a restore needs them.
    Example:  alcove backup /backups/monday.db
    """
    copy = output.run_steps(store.backup(file))
    contents = f"{count(copy.memories, 'memory')}, {count(copy.versions, 'version')}, {copy.bytes:,} bytes"
    show(copy._asdict(), f"{copy.path}: {contents}, verified")
    if copy.unreadable:
        click.echo(f"{copy.unreadable:,} of them cannot be decrypted, in the store either: run alcove doctor",
                   err=True)  # fmt: skip


@command()
@click.argument("backup", type=FILE, required=False)
@click.option("--at", cls=Option, envvar="ALCOVE_AT", default="memory.db",
              help="The file to create; or a database, to apply the ledger of wipes to.")  # fmt: skip
@click.option("--without-ledger", is_flag=True, help="Accept that users wiped since may come back.")
def restore(backup: Path | None, at: str, ledger: Path | None = None, *, without_ledger: bool) -> None:
    """Make a store from a backup.

    \b
    It erases again every user who was wiped since the backup.
    No file is overwritten: move an existing store away first. The key must be at FILE.key.
    Restore a database with PostgreSQL's tools, then run this without BACKUP to apply the ledger of wipes.
    Examples:
      alcove restore /backups/monday.db --at memory.db
      alcove restore --at postgresql://db/restored --ledger lost.wipes
    """
    if is_url(at):
        raise output.Refusal(f"{at} is a server: stop it, restore its file, start it again")
    from alcove.store.erasure_ledger import ErasureLedger  # noqa: PLC0415
    from alcove.upkeep.backup import forget_again  # noqa: PLC0415  not needed for --help
    from alcove.upkeep.backup import restore as restore_file  # noqa: PLC0415

    if is_database(at) is (backup is not None):
        raise click.UsageError("give a BACKUP for a file, and none for a database, which pg_restore restores")
    if backup is None:
        erased = output.run_steps(forget_again(at, locate_store(at)[1], ledger=ledger))
        show(erased._asdict(), _count_erased(erased))
        return
    if not (ledger or ErasureLedger.of_store(Path(at)).path).exists():
        click.echo("alcove: there is no ledger of wipes: users wiped since the backup are back, and API keys "
                   "revoked since are valid", err=True)  # fmt: skip
    restored = output.run_steps(restore_file(backup, Path(at), ledger=ledger, without_ledger=without_ledger))
    contents = f"{count(restored.memories, 'memory')}, {count(restored.versions, 'version')}"
    show(restored._asdict(), f"{restored.path}: {contents}", _count_erased(restored))


def _count_erased(result: Restored | Forgotten) -> str:
    memories = count(result.memories_forgotten, "single memory")
    return f"forgotten again: {count(result.users_forgotten, 'user')}, {memories}"


@command()
@click.option("--from", "source", required=True, metavar="STORE", help="A file, or postgresql://HOST/NAME.")
@click.option("--to", "target", required=True, metavar="STORE",
              help="A file or a database that has no store yet.")  # fmt: skip
def migrate(source: str, target: str) -> int:
    """Copy a store into another database, and verify the copy.

    \b
    Copies everything, with its numbers and times, and reads every row back. The store may be in use: further
    rounds copy what is written during the copy. If writes never pause, it reports how much is missing (exit
    code 1): stop the writers and run it again, and it copies only what differs; likewise if it was killed.
    The key and the ledger of wipes are copied to where the target keeps them: beside a file, or, for a
    database, in the folder ALCOVE_STATE. The key comes last: a target without it is incomplete.
    Examples:
      ALCOVE_STATE=/srv/alcove alcove migrate --from memory.db --to postgresql://db.internal/alcove
      ALCOVE_STATE=/srv/alcove alcove migrate --from postgresql://db.internal/alcove --to memory.db
    """
    for address in (source, target):
        if is_url(address):
            raise output.Refusal(f"{address} is a server: name its file or its database")
    from alcove.upkeep.migration import migrate as copy_store  # noqa: PLC0415  not needed for --help

    copy = output.run_steps(copy_store(source, target))
    rows = sum(copy.rows.values())
    key = f"key: {copy.key}" if copy.key else "key: ALCOVE_KEY, the same for both"
    show(copy._asdict(), f"{copy.path}: {count(copy.versions, 'version')}, {rows:,} rows in all, verified",
         f"{key}; ledger of wipes: {copy.ledger or 'none yet'}; keep copies of both elsewhere")  # fmt: skip
    if copy.changed:
        click.echo(f"alcove: {count(copy.missed, 'version')} and other changes since are missing: "
                   "stop the writers, and run it again", err=True)  # fmt: skip
    return 1 if copy.changed else 0


COMMANDS = [export, import_memories, backup, restore, migrate]
