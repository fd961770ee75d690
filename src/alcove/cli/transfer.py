"""Moving memories and whole stores: export and import, backup and restore."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from alcove.cli.output import Output, Refused, compact, count, finished, plain, progress, writing
from alcove.cli.store import is_url, json_option, on_store, prefix_argument
from alcove.core.namespace import Namespace

if TYPE_CHECKING:
    from alcove.client.embedded import Alcove
    from alcove.upkeep.backup import BackedUp, Restored
    from alcove.upkeep.transfer import File


@click.command()
@on_store()
@prefix_argument
@click.option(
    "--of-user",
    metavar="USER",
    help="Everything held of this user instead, with its history (an access request).",
)
@click.option("--output", "-o", default="-", metavar="FILE", help="A new file to write; stdout without it.")
def export(store: Alcove, out: Output, prefix: Namespace, of_user: str | None, output: str) -> None:
    """Write memories as JSON Lines.

    \b
    One a line, as `alcove import` takes them.
    Examples:
      alcove export user:alice -o alice.jsonl
      alcove export --of-user alice | gzip > access-request.jsonl.gz
    """
    found = store.export_memories(prefix) if of_user is None else store.admin.export(of_user)
    done = 0
    with writing(output) as write, progress("exporting") as step:
        for memory in found:
            write(compact(memory).encode() + b"\n")
            done += 1
            step(1)
    if output != "-":
        what = "memory" if of_user is None else "version"
        out.record({"exported": done}, f"{count(done, what)} in {output}")


@click.command(name="import")
@on_store(make=True)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until they can be found by meaning.")
def import_memories(store: Alcove, out: Output, file: str, *, wait: bool) -> None:
    """Take memories from JSON Lines.

    \b
    FILE is '-' for stdin. What is there already is left as it is.
    A broken line is named and left out, and the exit code is 1; the others are taken.
    Example:  alcove import alice.jsonl
    """
    size = None if file == "-" else Path(file).stat().st_size
    with click.open_file(file, "rb") as text, progress("importing", size) as step:
        report = store.import_memories(_Watched(text, step), wait_for_index=wait)
    told = [f"{count(report.imported, 'memory')} imported, {report.unchanged:,} unchanged"]
    told += [f"line {each.line}: {plain(each.error)}" for each in report.failed[:20]]
    if report.failures > 20:
        told.append(f"and {report.failures - 20:,} more lines that were not taken")
    out.record(report, "\n".join(told))
    if report.waiting or (report.imported and not wait):
        some = f"{report.waiting:,} of them" if report.waiting else "those with an index text"
        click.echo(f"{some} wait to be indexed; to see to it: alcove index --wait", err=True)
    if report.failures:
        sys.exit(1)


class _Watched:
    """A file that tells how much of it was read."""

    def __init__(self, file: File, step: Callable[[int], None]) -> None:
        self._file = file
        self._step = step

    def read(self, size: int, /) -> bytes:
        piece = self._file.read(size)
        self._step(len(piece))
        return piece


@click.command()
@on_store()
@click.argument("file", type=click.Path(path_type=Path))
def backup(store: Alcove, out: Output, file: Path) -> None:
    """Copy a store in use into one file, verified.

    \b
    The key (memory.db.key) and the ledger of wipes (memory.db.wipes) are not in it: keep copies of both
    elsewhere, since a restore needs them.
    Example:  alcove backup /backups/monday.db
    """
    done = finished(store.backup(file))
    _told(out, done, f"{done.path}: {count(done.memories, 'memory')}, {count(done.versions, 'version')}, "
                     f"{done.bytes:,} bytes, verified")  # fmt: skip
    if done.unreadable:
        click.echo(f"{done.unreadable:,} of them do not open in the store either: alcove doctor", err=True)


@click.command()
@click.argument("backup", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--at", envvar="ALCOVE_AT", default="memory.db", show_default=True, help="The file to make.")
@click.option("--ledger", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A ledger of wipes besides the one at FILE.wipes.")  # fmt: skip
@click.option("--without-ledger", is_flag=True, help="Accept that who was wiped since may come back.")
@json_option
def restore(backup: Path, at: str, ledger: Path | None, *, without_ledger: bool, as_json: bool) -> None:
    """Make a store of a backup.

    \b
    It forgets again whoever was wiped since the backup.
    Nothing is written over: move a store that is there away. The key must be at FILE.key.
    Example:  alcove restore /backups/monday.db --at memory.db
    """
    if is_url(at):
        raise Refused(f"{at} is a server: stop it, restore its file, start it again")
    from alcove.upkeep.backup import restore as restored  # noqa: PLC0415  --help does without
    from alcove.upkeep.wipe_ledger import Ledger  # noqa: PLC0415

    if not (ledger or Ledger.beside(Path(at)).path).exists():
        click.echo("alcove: there is no ledger: whoever was wiped since the backup comes back, and API keys "
                   "revoked since are valid", err=True)  # fmt: skip
    done = finished(restored(backup, Path(at), ledger=ledger, without_ledger=without_ledger))
    _told(Output(as_json=as_json), done,
          f"{done.path}: {count(done.memories, 'memory')}, {count(done.versions, 'version')}\n"
          f"forgotten again: {count(done.users_forgotten, 'user')}, "
          f"{count(done.memories_forgotten, 'single memory')}")  # fmt: skip


def _told(out: Output, done: BackedUp | Restored, text: str) -> None:
    out.record({**done._asdict(), "path": str(done.path)}, text)


COMMANDS = [export, import_memories, backup, restore]
