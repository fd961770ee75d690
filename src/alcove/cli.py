"""The `alcove` command."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import click

from alcove.client import Alcove
from alcove.errors import AlcoveError
from alcove.settings import Settings

OPERATOR = Settings(sweep_interval=0)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("alcove"), prog_name="alcove")
def main() -> None:
    """Memory for AI agents: private rooms, common rooms, and nobody in a room that is not theirs."""


@main.command()
@click.option(
    "--at",
    "path",
    envvar="ALCOVE_AT",
    default="memory.db",
    show_default=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The store's file.",
)
def doctor(path: Path) -> None:
    """Check a store: its file, its log against what is current, and that every value opens.

    \b
    Exit codes: 0 all is well, 1 something is wrong, 2 the store cannot be opened.
    Example:    alcove doctor --at memory.db
    """
    try:
        store = Alcove(path, settings=OPERATOR)
    except AlcoveError as error:
        click.echo(f"alcove: {error.message}", err=True)
        sys.exit(2)
    ill = 0
    with store:
        for examination in store.doctor():
            ill += bool(examination.wrong)
            mark = click.style("WRONG", fg="red") if examination.wrong else click.style("ok   ", fg="green")
            click.echo(f"{mark} {examination.compared:>9,}  {examination.name}")
            for finding in examination.wrong[:10]:
                click.echo(f"                   at {finding}")
            if len(examination.wrong) > 10:
                click.echo(f"                   and {len(examination.wrong) - 10:,} more")
    if ill:
        click.echo(
            f"{ill} of these checks found something wrong; keep the file, and restore a backup beside it."
        )
        sys.exit(1)
    click.echo("All is well.")
