"""The `alcove` command."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from alcove import config as configuration
from alcove.client import Alcove
from alcove.clock import system_clock, to_datetime
from alcove.config import ServeConfig
from alcove.errors import AlcoveError
from alcove.settings import Settings

OPERATOR = Settings(sweep_interval=0)


class Explained(click.Group):
    """Ends with our errors' own words and exit code 2, never with a stack."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except AlcoveError as error:
            click.echo(f"alcove: {error.message}", err=True)
            sys.exit(2)


at_existing = click.option(
    "--at",
    "path",
    envvar="ALCOVE_AT",
    default="memory.db",
    show_default=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The store's file.",
)


@click.group(cls=Explained, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("alcove"), prog_name="alcove")
def main() -> None:
    """Memory for AI agents: private rooms, common rooms, and nobody in a room that is not theirs."""


@main.command()
@configuration.options
def serve(**options: Any) -> None:
    """Serve the REST API; with no options, on this machine only, over memory.db.

    \b
    Each option is also a variable (ALCOVE_PORT) and a name in a YAML file (port).
    Example:  alcove serve --port 8080 --at memory.db --auth jwt --jwt-secret "$SECRET"
    """
    from alcove.http.server import serve as run  # noqa: PLC0415  the server's packages are an extra

    run(ServeConfig(**options))


@main.command()
@configuration.options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_context
def config(context: click.Context, /, *, as_json: bool, **options: Any) -> None:
    """Print the options that `alcove serve` would use, and where each came from."""
    sources = configuration.sources(context)
    rows = []
    for name, value in options.items():
        hidden = name in configuration.SECRETS and value is not None
        rows.append({"name": name, "value": "(set)" if hidden else value, "source": sources[name]})
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        shown = "" if row["value"] is None else row["value"]
        click.echo(f"{row['name']:<16} {shown!s:<24} {row['source']}")


@main.command()
@click.option("--user", required=True, help="Whom the token names.")
@click.option("--role", "roles", multiple=True, help="A role, such as admin; may be repeated.")
@click.option("--jwt-secret", envvar="ALCOVE_JWT_SECRET", required=True, help="The server's shared secret.")
@click.option("--seconds", default=3600, show_default=True, help="How long it is valid.")
def token(user: str, roles: tuple[str, ...], jwt_secret: str, seconds: int) -> None:
    """Make a token for a server in HS256 mode, for trying things out.

    \b
    Example:  alcove token --user alice --role admin --jwt-secret "$SECRET"
    """
    if not user:
        raise click.UsageError("--user names nobody")
    from alcove.http.auth import make_token  # noqa: PLC0415  the server's packages are an extra

    click.echo(make_token(jwt_secret, user, list(roles), seconds=seconds, clock=time.time))


@main.group()
def apikey() -> None:
    """Make, list and revoke the API keys of a store."""


@apikey.command()
@at_existing
@click.option("--client", required=True, help="The program that will use it.")
@click.option("--user", help="Whom it acts for.")
@click.option("--trusted", is_flag=True, help="It may name the user of each request with X-User-ID.")
@click.option("--role", "roles", multiple=True, help="A role, such as admin; may be repeated.")
def create(path: Path, client: str, user: str | None, *, trusted: bool, roles: tuple[str, ...]) -> None:
    """Make a key; it is shown once.

    \b
    Example:  alcove apikey create --client phone-app --user alice
    """
    if not trusted and not user:
        raise click.UsageError("--user is needed unless the key is --trusted to name the user itself")
    with Alcove(path, settings=OPERATOR) as store:
        key = store.api_keys.create(
            client=client, user=user, roles=list(roles), trusted=trusted, now=system_clock()
        )
    click.echo(key)


@apikey.command(name="list")
@at_existing
def list_keys(path: Path) -> None:
    """List the keys that have not been revoked."""
    with Alcove(path, settings=OPERATOR) as store:
        keys = store.api_keys.list()
    click.echo(f"{'id':<14}{'client':<20}{'user':<20}{'roles':<12}{'trusted':<9}made")
    for key in keys:
        made = to_datetime(key.created_at).date()
        trusted = "yes" if key.trusted else ""
        click.echo(
            f"{key.id:<14}{key.client:<20}{key.user or '':<20}{' '.join(key.roles):<12}{trusted:<9}{made}"
        )


@apikey.command()
@at_existing
@click.argument("id")
def revoke(path: Path, id: str) -> None:
    """Make a key useless, from now on and in every worker."""
    with Alcove(path, settings=OPERATOR) as store:
        store.api_keys.revoke(id)
    click.echo(f"revoked {id}")


@main.command()
@at_existing
def doctor(path: Path) -> None:
    """Check a store: its file, its log against what is current, and that every value opens.

    \b
    Exit codes: 0 all is well, 1 something is wrong, 2 the store cannot be opened.
    Example:    alcove doctor --at memory.db
    """
    ill = 0
    with Alcove(path, settings=OPERATOR) as store:
        for examination in store.doctor():
            ill += bool(examination.wrong)
            mark = click.style("WRONG", fg="red") if examination.wrong else click.style("ok   ", fg="green")
            click.echo(f"{mark} {examination.compared:>9,}  {examination.name}")
            for finding in examination.wrong[:10]:
                click.echo(f"                   at {finding}")
            if len(examination.wrong) > 10:
                click.echo(f"                   and {len(examination.wrong) - 10:,} more")
    if ill:
        click.echo(f"{ill} checks found something wrong; keep the file, and restore a backup beside it.")
        sys.exit(1)
    click.echo("All is well.")
