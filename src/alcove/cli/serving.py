"""Serving a store: the server, its configuration, tokens and API keys, and the command itself."""

from __future__ import annotations

import json
import platform
import time
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from alcove import __version__
from alcove.cli.output import Output
from alcove.cli.store import is_url, json_option, on_store
from alcove.core.clock import system_clock, to_datetime
from alcove.core.errors import needed_by
from alcove.server import config as configuration
from alcove.server.config import ServeConfig

if TYPE_CHECKING:
    from alcove.client.embedded import Alcove
    from alcove.store.api_keys import ApiKey


@click.command()
@configuration.options
def serve(**options: Any) -> None:
    """Serve the REST API.

    \b
    With no options, on this machine only, over memory.db.
    Each option is also a variable (ALCOVE_PORT) and a name in a YAML file (port).
    Example:  alcove serve --port 8080 --at memory.db --auth jwt --jwt-secret "$SECRET"
    """
    if is_url(str(options["at"])):
        raise click.BadParameter(f"{options['at']} is served already; give a file", param_hint="'--at'")
    with needed_by("alcove serve", extra="server"):
        from alcove.server.running import serve as run  # noqa: PLC0415

    run(ServeConfig(**options))


@click.command()
@configuration.options
@json_option
@click.pass_context
def config(context: click.Context, /, *, as_json: bool, **options: Any) -> None:
    """Print what `alcove serve` would use, and why."""
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


@click.command()
@click.option("--user", required=True, help="Whom the token names.")
@click.option("--role", "roles", multiple=True, help="A role, such as admin; may be repeated.")
@click.option("--jwt-secret", envvar="ALCOVE_JWT_SECRET", required=True, help="The server's shared secret.")
@click.option("--seconds", default=3600, show_default=True, help="How long it is valid.")
@json_option
def token(user: str, roles: tuple[str, ...], jwt_secret: str, seconds: int, *, as_json: bool) -> None:
    """Make a token, for trying things out.

    \b
    For a server in HS256 mode.
    Example:  alcove token --user alice --role admin --jwt-secret "$SECRET"
    """
    if not user:
        raise click.UsageError("--user names nobody")
    with needed_by("alcove token", extra="server"):
        from alcove.server.auth import make_token  # noqa: PLC0415

    made = make_token(jwt_secret, user, list(roles), seconds=seconds, clock=time.time)
    Output(as_json=as_json).record({"token": made}, made)


@click.group()
def apikey() -> None:
    """Make, list and revoke the API keys of a store."""


@apikey.command()
@on_store()
@click.option("--client", required=True, help="The program that will use it.")
@click.option("--user", help="Whom it acts for.")
@click.option("--trusted", is_flag=True, help="It may name the user of each request with X-User-ID.")
@click.option("--role", "roles", multiple=True, help="A role, such as admin; may be repeated.")
def create(
    store: Alcove, out: Output, client: str, user: str | None, *, trusted: bool, roles: tuple[str, ...]
) -> None:
    """Make a key; it is shown once.

    \b
    Example:  alcove apikey create --client phone-app --user alice
    """
    if not trusted and not user:
        raise click.UsageError("--user is needed unless the key is --trusted to name the user itself")
    key = store.api_keys.create(
        client=client, user=user, roles=list(roles), trusted=trusted, now=system_clock()
    )
    out.record({"key": key}, key)


@apikey.command(name="list")
@on_store()
def list_keys(store: Alcove, out: Output) -> None:
    """List the keys that have not been revoked."""
    out.table(
        [_known(key) for key in store.api_keys.list()],
        ["id", "client", "user", "roles", "trusted", "made"],
        lambda key: [*key.values()],
        empty="there are no API keys",
    )


def _known(key: ApiKey) -> dict[str, object]:
    """What may be shown of a key: not its digest."""
    known = {"id": key.id, "client": key.client, "user": key.user, "roles": " ".join(key.roles)}
    return {**known, "trusted": "yes" if key.trusted else "no", "created_at": to_datetime(key.created_at)}


@apikey.command()
@on_store()
@click.argument("id")
def revoke(store: Alcove, out: Output, id: str) -> None:
    """Make a key useless, from now on and in every worker."""
    store.api_keys.revoke(id)
    out.record({"revoked": id}, f"revoked {id}")


@click.command()
@json_option
def version(*, as_json: bool) -> None:
    """Print which Alcove this is."""
    parts = {"alcove": __version__, "python": platform.python_version()}
    Output(as_json=as_json).record(parts, f"alcove {parts['alcove']} (Python {parts['python']})")


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


COMMANDS: list[click.Command] = [serve, config, token, apikey, version, completion]
