"""Commands that maintain and serve a store, and those about the command line itself."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from alcove.cli import output
from alcove.cli.command import command, duration
from alcove.cli.output import count, escape, show, show_table
from alcove.client import is_url
from alcove.core import __version__
from alcove.core.addresses import without_password
from alcove.core.errors import requires_extra
from alcove.server import config as configuration

if TYPE_CHECKING:
    from alcove.client.store import Store
    from alcove.upkeep.doctor import Examination

_MAX_FINDINGS_SHOWN = 10


@command()
def stats(store: Store) -> None:
    """Count memories, versions and bytes, by root segment.

    \b
    Example:  alcove stats
    """
    totals = store.admin.stats()
    show_table([*totals.roots, totals], "root, memories, versions, bytes", json=totals, empty="",
              root=lambda row: getattr(row, "root", "in all"))  # fmt: skip


@command()
@click.option("--strict", is_flag=True, help="Exit with code 1 for oddities, too.")
def doctor(store: Store, *, strict: bool) -> int:
    """Check a store, and say what to do.

    \b
    Checks the file, the log against the current state and the ledger, that every value decrypts, and
    whether anything looks odd.
    Exit codes: 0 all is well, 1 something is wrong, 2 the store cannot be opened.
    Example:    alcove doctor --at memory.db
    """
    wrong = odd = 0
    for check in store.doctor():
        wrong, odd = wrong + bool(check.wrong), odd + bool(check.noticed)
        show(check, *_check_lines(check))
    if not output.as_json():
        noticed = f" {count(odd, 'check')} noticed something to look at." if odd else ""
        click.echo(f"{count(wrong, 'check')} found something wrong." if wrong else f"All is well.{noticed}")
    return 1 if wrong or (odd and strict) else 0


def _check_lines(check: Examination) -> Iterator[str]:
    mark, colour = "WRONG", "red"
    if not check.wrong:
        mark, colour = ("LOOK", "yellow") if check.noticed else ("ok", "green")
    yield f"{click.style(f'{mark:<5}', fg=colour)} {check.compared:>9,}  {check.name}"
    findings = [*check.wrong, *check.noticed]
    yield from (f"                   at {escape(finding)}" for finding in findings[:_MAX_FINDINGS_SHOWN])
    if len(findings) > _MAX_FINDINGS_SHOWN:
        yield f"                   and {len(findings) - _MAX_FINDINGS_SHOWN:,} more"
    if findings:
        yield f"                 → {check.advice}"


@command()
def reindex(store: Store) -> None:
    """Embed every text again, after a change of the embedder.

    \b
    Searches use the old vectors until the last new one is there.
    If it is killed, run it again: it continues where it stopped.
    Example:  ALCOVE_EMBEDDER=minilm alcove reindex
    """
    status = store.admin.index()
    output.show_progress("indexing", status.indexed + status.waiting, store.admin.reindex())
    status = store.admin.index()
    show(status, f"{count(status.indexed, 'memory')} indexed")


@command()
@click.option("--retry", is_flag=True, help="Try to index parked texts again.")
@click.option("--wait", is_flag=True, help="Like --retry, until nothing waits; exit code 1 if some still do.")
def index(store: Store, *, retry: bool, wait: bool) -> int:
    """Show the progress of indexing, and texts that failed.

    \b
    Example:  alcove index
    """
    status = store.admin.trigger_index() if retry or wait else store.admin.index()
    if wait:
        output.wait_for_index(lambda: store.admin.index().waiting, status.waiting)
        status = store.admin.index()
    parked = (f"parked: {escape(each.key)} in {each.namespace}: {escape(each.error)}"
              for each in status.parked_items)  # fmt: skip
    model = status.serving or "nothing yet"
    show(status, f"{model}: {status.indexed:,} indexed, {status.waiting:,} waiting", *parked)
    return 1 if wait and status.waiting else 0


@command()
def keys(store: Store) -> None:
    """Show the keys that wrap data keys, and how many each wraps.

    \b
    Example:  alcove keys
    """
    state = store.admin.keys()
    show_table(state.keys, "key=id, active, data keys=data_keys", json=state, empty="")


@command("rotate-keys")
def rotate_keys(store: Store) -> None:
    """Wrap every data key with a new key.

    \b
    Values are not touched.
    If it is killed, run it again: it continues where it stopped.
    Example:  alcove rotate-keys
    """
    total = sum(key.data_keys for key in store.admin.keys().keys)
    counts = (rotation.rewrapped for rotation in store.rotate_keys())
    rewrapped = output.show_progress("rotating", total, counts)
    active = store.admin.keys().active
    record = {"active": active, "rewrapped": rewrapped}
    show(record, f"{count(rewrapped, 'data key')} now wrapped by {active}")


@click.command()
@configuration.options
def serve(**options: Any) -> None:
    """Serve the REST API.

    \b
    Without options, it serves memory.db to this machine only.
    Each option is also a variable (ALCOVE_PORT) and a name in a YAML file (port).
    Seconds and days may also be typed 90s, 15m, 1h or 7d.
    Example:  alcove serve --port 8080 --at memory.db --auth jwt --jwt-secret "$SECRET"
    """
    if is_url(str(options["at"])):
        raise click.BadParameter(f"{options['at']} is a server already; give a file", param_hint="'--at'")
    with requires_extra("alcove serve", extra="server"):
        from alcove.server.startup import serve as run  # noqa: PLC0415

    run(configuration.ServeConfig(**options))


@click.command()
@configuration.options
def worker(**options: Any) -> None:
    """Do the background work of a store, and serve nothing.

    \b
    It indexes texts and deletes what has expired. It takes the options of `alcove serve`; run as many as you
    need. Each ends at SIGTERM.
    Nodes with --indexing-interval 0 leave indexing to workers.
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
    """Print what `alcove serve` would use, and where it comes from."""
    sources = configuration.sources(click.get_current_context())
    rows = []
    for name, value in options.items():
        is_secret = name in configuration.SECRETS and value is not None
        text = "(set)" if is_secret else without_password(value) if name == "at" else value
        rows.append({"name": name, "value": text, "source": sources[name]})
    if output.as_json():
        click.echo(json.dumps(rows, indent=2))
    else:
        cells = [["" if cell is None else str(cell) for cell in row.values()] for row in rows]
        click.echo("\n".join(output.align_columns(cells, None)))


@command()
@click.option("--user", required=True, help="The user that the token names.")
@click.option("--jwt-secret", cls=configuration.Option, envvar="ALCOVE_JWT_SECRET", required=True,
              help="The server's shared secret.")  # fmt: skip
@click.option("--seconds", "--ttl", "seconds", type=duration, default=3600,
              metavar="DURATION", help="How long it is valid: seconds, or 15m, 1h, 7d.")  # fmt: skip
def token(user: str, roles: tuple[str, ...], jwt_secret: str, seconds: int) -> None:
    """Create a token for trying things out.

    \b
    For a server with --auth jwt and --jwt-secret.
    Example:  alcove token --user alice --role admin --jwt-secret "$SECRET"
    """
    if not user:
        raise click.UsageError("--user must not be empty")
    with requires_extra("alcove token", extra="server"):
        from alcove.server.jwt_tokens import make_token  # noqa: PLC0415

    text = make_token(jwt_secret, user, list(roles), seconds=seconds)
    show({"token": text}, text)


@command()
def version() -> None:
    """Print the versions of Alcove and Python."""
    parts = {"alcove": __version__, "python": platform.python_version()}
    show(parts, f"alcove {parts['alcove']} (Python {parts['python']})")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands in your shell.

    \b
    Examples:
      eval "$(alcove completion bash)"                     in ~/.bashrc, or zsh in ~/.zshrc
      alcove completion fish > ~/.config/fish/completions/alcove.fish
    """
    script_type = get_completion_class(shell)
    assert script_type is not None
    click.echo(script_type(context.find_root().command, {}, "alcove", "_ALCOVE_COMPLETE").source())


UPKEEP = [stats, doctor, index, reindex, keys, rotate_keys]
SERVING = [serve, worker, config, token, version, completion]
