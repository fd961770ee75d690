"""Running a store: figures, health, index, keys; backup, restore, export, import; serving; this command."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from alcove.cli import output
from alcove.cli.importing import import_memories
from alcove.cli.migrating import migrate
from alcove.cli.output import count, plain, show, show_table
from alcove.cli.store import command, duration, roles_option
from alcove.client import is_url
from alcove.core import __version__
from alcove.core.addresses import is_database, locate_store, without_password
from alcove.core.errors import requires_extra
from alcove.core.namespace import Namespace
from alcove.server import config as configuration

if TYPE_CHECKING:
    from alcove.client.store import Store
    from alcove.upkeep.backup import Forgotten, Restored
    from alcove.upkeep.doctor import Examination


@command()
def stats(store: Store) -> None:
    """Show how much there is, in all and below each root segment.

    \b
    Example:  alcove stats
    """
    found = store.admin.stats()
    show_table([*found.roots, found], "root, memories, versions, bytes", whole=found, empty="",
              root=lambda row: getattr(row, "root", "in all"))  # fmt: skip


@command()
@click.option("--strict", is_flag=True, help="Exit code 1 also where something was only noticed.")
def doctor(store: Store, *, strict: bool) -> int:
    """Check a store, and say what to do.

    \b
    Its file, its log against what is current, its ledger, that every value opens, and what looks odd.
    Exit codes: 0 all is well, 1 something is wrong, 2 the store cannot be opened.
    Example:    alcove doctor --at memory.db
    """
    ill = odd = 0
    for each in store.doctor():
        ill, odd = ill + bool(each.wrong), odd + bool(each.noticed)
        show(each, *_lines(each))
    if not output.as_json():
        noticed = f" {count(odd, 'check')} noticed something to look at." if odd else ""
        click.echo(f"{count(ill, 'check')} found something wrong." if ill else f"All is well.{noticed}")
    return 1 if ill or (odd and strict) else 0


def _lines(each: Examination) -> Iterator[str]:
    mark, colour = ("WRONG", "red") if each.wrong else ("LOOK", "yellow") if each.noticed else ("ok", "green")
    yield f"{click.style(f'{mark:<5}', fg=colour)} {each.compared:>9,}  {each.name}"
    findings = [*each.wrong, *each.noticed]
    yield from (f"                   at {plain(finding)}" for finding in findings[:10])
    if len(findings) > 10:
        yield f"                   and {len(findings) - 10:,} more"
    if findings:
        yield f"                 → {each.advice}"


@command()
def reindex(store: Store) -> None:
    """Make every vector anew, as after a change of the embedder.

    \b
    The old vectors are searched until the last of the new ones is there.
    Killed half-way, it goes on where it was when it is started again.
    Example:  ALCOVE_EMBEDDER=minilm alcove reindex
    """
    status = store.admin.index()
    output.followed("indexing", status.indexed + status.waiting, store.admin.reindex())
    status = store.admin.index()
    show(status, f"{count(status.indexed, 'memory')} indexed")


@command()
@click.option("--retry", is_flag=True, help="Try again what was parked.")
@click.option("--wait", is_flag=True, help="The same, until nothing waits; exit code 1 if it cannot be.")
def index(store: Store, *, retry: bool, wait: bool) -> int:
    """Show how far indexing has come, and what is in its way.

    \b
    Example:  alcove index
    """
    status = store.admin.trigger_index() if retry or wait else store.admin.index()
    if wait:
        output.wait_for_index(lambda: store.admin.index().waiting, status.waiting)
        status = store.admin.index()
    far = f"{status.serving or 'nothing yet'}: {status.indexed:,} indexed, {status.waiting:,} waiting"
    parked = (f"{plain(each.key)} in {each.namespace}: {plain(each.error)}" for each in status.parked_items)
    show(status, far, *(f"parked: {each}" for each in parked))
    return 1 if wait and status.waiting else 0


@command()
def keys(store: Store) -> None:
    """Show which keys wrap the data keys, and how many each.

    \b
    Example:  alcove keys
    """
    found = store.admin.keys()
    show_table(found.keys, "key=id, active, data keys=data_keys", whole=found, empty="")


@command("rotate-keys")
def rotate_keys(store: Store) -> None:
    """Wrap every data key with a new key.

    \b
    Values are not touched.
    Killed half-way, it goes on where it was when it is started again.
    Example:  alcove rotate-keys
    """
    wrapped = sum(key.data_keys for key in store.admin.keys().keys)
    done = output.followed("rotating", wrapped, (rotation.rewrapped for rotation in store.rotate_keys()))
    active = store.admin.keys().active
    show({"active": active, "rewrapped": done}, f"{count(done, 'data key')} wrapped anew by {active}")


@command()
@click.option("--of-user", metavar="USER",
              help="Everything held of this user instead, with its history (an access request).")  # fmt: skip
@click.option("--output", "-o", "file", default="-", metavar="FILE",
              help="A new file to write; stdout without it.")  # fmt: skip
def export(store: Store, prefix: Namespace, of_user: str | None, file: str) -> None:
    """Write memories as JSON Lines.

    \b
    One a line, as `alcove import` takes them.
    Examples:
      alcove export user:alice -o alice.jsonl
      alcove export --of-user alice | gzip > access-request.jsonl.gz
    """
    found = store.export_memories(prefix) if of_user is None else store.admin.export(of_user)
    done = 0
    with output.writing(file) as write, output.progress("exporting") as step:
        for memory in found:
            write(output.compact(memory).encode() + b"\n")
            done += 1
            step(1)
    if file != "-":
        what = "memory" if of_user is None else "version"
        show({"exported": done}, f"{count(done, what)} in {file}")


@command()
@click.argument("file", type=click.Path(path_type=Path))
def backup(store: Store, file: Path) -> None:
    """Copy a store in use into one file, verified.

    \b
    The key (memory.db.key) and the ledger of wipes (memory.db.wipes) are not in it: keep copies of both
    elsewhere, since a restore needs them.
    Example:  alcove backup /backups/monday.db
    """
    done = output.finished(store.backup(file))
    held = f"{count(done.memories, 'memory')}, {count(done.versions, 'version')}, {done.bytes:,} bytes"
    show(done._asdict(), f"{done.path}: {held}, verified")
    if done.unreadable:
        click.echo(f"{done.unreadable:,} of them do not open in the store either: alcove doctor", err=True)


@command()
@click.argument("backup", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option("--at", cls=configuration.Option, envvar="ALCOVE_AT", default="memory.db", show_default=True,
              help="The file to make; or a database, to make it forget again.")  # fmt: skip
@click.option("--ledger", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A ledger of wipes besides the one at FILE.wipes.")  # fmt: skip
@click.option("--without-ledger", is_flag=True, help="Accept that who was wiped since may come back.")
def restore(backup: Path | None, at: str, ledger: Path | None, *, without_ledger: bool) -> None:
    """Make a store of a backup.

    \b
    It forgets again whoever was wiped since the backup.
    Nothing is written over: move a store that is there away. The key must be at FILE.key.
    A database is restored by PostgreSQL's tools; without BACKUP, this makes it forget again by the ledger.
    Examples:
      alcove restore /backups/monday.db --at memory.db
      alcove restore --at postgresql://db/restored --ledger lost.wipes
    """
    if is_url(at):
        raise output.Refused(f"{at} is a server: stop it, restore its file, start it again")
    from alcove.store.erasure_ledger import ErasureLedger  # noqa: PLC0415
    from alcove.upkeep.backup import forget_again  # noqa: PLC0415  --help does without
    from alcove.upkeep.backup import restore as restored  # noqa: PLC0415

    if is_database(at) is (backup is not None):
        raise click.UsageError("give a BACKUP for a file, and none for a database, which pg_restore has made")
    if backup is None:
        again = output.finished(forget_again(at, locate_store(at)[1], ledger=ledger))
        show(again._asdict(), f"forgotten again: {_forgotten(again)}")
        return
    if not (ledger or ErasureLedger.beside(Path(at)).path).exists():
        click.echo("alcove: there is no ledger: whoever was wiped since the backup comes back, and API keys "
                   "revoked since are valid", err=True)  # fmt: skip
    done = output.finished(restored(backup, Path(at), ledger=ledger, without_ledger=without_ledger))
    held = f"{count(done.memories, 'memory')}, {count(done.versions, 'version')}"
    show(done._asdict(), f"{done.path}: {held}", f"forgotten again: {_forgotten(done)}")


def _forgotten(done: Restored | Forgotten) -> str:
    return f"{count(done.users_forgotten, 'user')}, {count(done.memories_forgotten, 'single memory')}"


@click.command()
@configuration.options
def serve(**options: Any) -> None:
    """Serve the REST API.

    \b
    With no options, on this machine only, over memory.db.
    Each option is also a variable (ALCOVE_PORT) and a name in a YAML file (port).
    Seconds and days may also be typed 90s, 15m, 1h or 7d.
    Example:  alcove serve --port 8080 --at memory.db --auth jwt --jwt-secret "$SECRET"
    """
    if is_url(str(options["at"])):
        raise click.BadParameter(f"{options['at']} is served already; give a file", param_hint="'--at'")
    with requires_extra("alcove serve", extra="server"):
        from alcove.server.startup import serve as run  # noqa: PLC0415

    run(configuration.ServeConfig(**options))


@click.command()
@configuration.options
def worker(**options: Any) -> None:
    """Index, sweep and keep up for nodes, and serve nothing.

    \b
    It takes the options of `alcove serve`, as many run as are needed, and each ends at SIGTERM.
    Nodes with --indexing-interval 0 leave their texts to it.
    Example:  alcove worker --engine postgresql://db.example.org/alcove
    """
    if is_url(str(options["at"])):
        raise click.BadParameter(f"{options['at']} is a server; give its store", param_hint="'--at'")
    with requires_extra("alcove worker", extra="server"):
        from alcove.server.startup import work  # noqa: PLC0415

    work(configuration.ServeConfig(**options))


@command()
@configuration.options
def config(**options: Any) -> None:
    """Print what `alcove serve` would use, and why."""
    sources = configuration.sources(click.get_current_context())
    rows = []
    for name, value in options.items():
        hidden = name in configuration.SECRETS and value is not None
        shown = without_password(value) if name == "at" else value
        rows.append({"name": name, "value": "(set)" if hidden else shown, "source": sources[name]})
    if output.as_json():
        click.echo(json.dumps(rows, indent=2))
    else:
        cells = [["" if cell is None else str(cell) for cell in row.values()] for row in rows]
        click.echo("\n".join(output.aligned(cells, None)))


@command()
@click.option("--user", required=True, help="Whom the token names.")
@roles_option
@click.option("--jwt-secret", cls=configuration.Option, envvar="ALCOVE_JWT_SECRET", required=True,
              help="The server's shared secret.")  # fmt: skip
@click.option("--seconds", "--ttl", "seconds", type=duration, default=3600, show_default=True,
              metavar="DURATION", help="How long it is valid: seconds, or 15m, 1h, 7d.")  # fmt: skip
def token(user: str, roles: tuple[str, ...], jwt_secret: str, seconds: int) -> None:
    """Make a token, for trying things out.

    \b
    For a server in HS256 mode.
    Example:  alcove token --user alice --role admin --jwt-secret "$SECRET"
    """
    if not user:
        raise click.UsageError("--user names nobody")
    with requires_extra("alcove token", extra="server"):
        from alcove.server.jwt_tokens import make_token  # noqa: PLC0415

    made = make_token(jwt_secret, user, list(roles), seconds=seconds)
    show({"token": made}, made)


@command()
def version() -> None:
    """Print which Alcove this is."""
    parts = {"alcove": __version__, "python": platform.python_version()}
    show(parts, f"alcove {parts['alcove']} (Python {parts['python']})")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands and options.

    \b
    Examples:
      eval "$(alcove completion bash)"                     in ~/.bashrc, or zsh in ~/.zshrc
      alcove completion fish > ~/.config/fish/completions/alcove.fish
    """
    maker = get_completion_class(shell)
    assert maker is not None
    click.echo(maker(context.find_root().command, {}, "alcove", "_ALCOVE_COMPLETE").source())


UPKEEP = [stats, doctor, index, reindex, keys, rotate_keys]
MOVING = [export, import_memories, backup, restore, migrate]
SERVING = [serve, worker, config, token, version, completion]
