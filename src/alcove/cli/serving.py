"""Serving a store, and its rules: server, tokens, API keys, policies, settings, and the command itself."""

from __future__ import annotations

import json
import platform
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from alcove import __version__
from alcove.cli.output import aligned, as_json, compact, show, show_table
from alcove.cli.store import command, duration, given, is_url
from alcove.core.clock import parse_duration
from alcove.core.errors import needed_by
from alcove.server import config as configuration
from alcove.server.config import ServeConfig

if TYPE_CHECKING:
    from alcove import Store

TEXTS = ("authz", "attributes", "filter")

_roles_option = click.option("--role", "roles", multiple=True,
                             help="A role, such as admin; may be repeated.")  # fmt: skip


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
    with needed_by("alcove serve", extra="server"):
        from alcove.server.startup import serve as run  # noqa: PLC0415

    run(ServeConfig(**options))


@command()
@configuration.options
def config(**options: Any) -> None:
    """Print what `alcove serve` would use, and why."""
    sources = configuration.sources(click.get_current_context())
    rows = []
    for name, value in options.items():
        hidden = name in configuration.SECRETS and value is not None
        rows.append({"name": name, "value": "(set)" if hidden else value, "source": sources[name]})
    if as_json():
        click.echo(json.dumps(rows, indent=2))
        return
    for line in aligned([["" if cell is None else str(cell) for cell in row.values()] for row in rows], None):
        click.echo(line)


@command()
@click.option("--user", required=True, help="Whom the token names.")
@_roles_option
@click.option("--jwt-secret", envvar="ALCOVE_JWT_SECRET", required=True, help="The server's shared secret.")
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
    with needed_by("alcove token", extra="server"):
        from alcove.server.auth import make_token  # noqa: PLC0415

    made = make_token(jwt_secret, user, list(roles), seconds=seconds)
    show({"token": made}, made)


policy = click.Group("policy", help="Show policies, try what they would decide, and put them in force.")


_folder_option = partial(
    click.option, "--dir", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


def _texts(folder: Path | None) -> dict[str, str | None]:
    """The policies of a folder, by name."""
    files = {name: folder / f"{name}.rego" for name in TEXTS} if folder else {}
    return {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.exists()}


@command("show", group=policy)
@click.argument("name", type=click.Choice(TEXTS), required=False)
def show_policies(store: Store, name: str | None) -> None:
    """Print the policies in force, or one of them.

    \b
    Example:  alcove policy show authz > authz.rego
    """
    found = store.admin.policies()
    if as_json():
        show(found)
    elif name:
        click.echo(getattr(found, name), nl=False)
    else:
        for each in TEXTS:
            whence = "put by an admin" if each in found.stored else "from the folder, or built in"
            click.echo(click.style(f"# {each}.rego ({whence})", bold=True))
            click.echo(getattr(found, each).rstrip("\n") + "\n")


@command(group=policy)
@click.argument("input", nargs=-1, required=True)
@_folder_option(help="Try the *.rego files of this folder instead of those in force.")
def test(store: Store, input: tuple[str, ...], folder: Path | None) -> int:
    """Show what the policies would say to an input.

    \b
    INPUT is a JSON object, or '-' for one on stdin. Nothing is changed.
    Exit code 1 if authz would deny it.
    Example:
      alcove policy test '{"operation": "read", "namespace": ["user", "bob"], "key": "k",
                           "context": {"user_id": "alice", "jwt_claims": {}, "agent": null, "grants": []}}'
    """
    said = store.admin.test_policies(given(input, "INPUT"), _texts(folder))
    show(said, *(f"{rule:<18}{compact(answer)}" for rule, answer in said.items()))
    decision = said.get("decision")
    return 0 if isinstance(decision, dict) and decision.get("allow") is True else 1


@command("put", group=policy)
@_folder_option(help="Where the *.rego files are: authz, attributes, filter, or some of them.")
@click.option("--reset", is_flag=True, help="Take back what was put.")
def put_policies(store: Store, folder: Path | None, *, reset: bool) -> None:
    """Put policies in force, at once and in every process.

    \b
    All that was put before is replaced; one that the folder does not have is the server's own or the built-in
    one. Try them first: alcove policy test --dir FOLDER.
    Example:  alcove policy put --dir policies
    """
    texts = _texts(folder)
    if bool(texts) == reset:
        raise click.UsageError("say which: --dir with authz.rego, attributes.rego or filter.rego, "
                               "or --reset")  # fmt: skip
    found = store.admin.put_policies(texts)
    stored = ", ".join(found.stored) or "none"
    show(found, f"put by an admin: {stored}; the others are from the folder, or built in")


@command()
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE|JSON|-]...")
def settings(store: Store, changes: tuple[str, ...]) -> None:
    """Show the limits and retention in force, or change some of them.

    \b
    Changes hold at once and in every process; null takes one back. Days may be typed 30d or 12h.
    Examples:
      alcove settings
      alcove settings retention_days=30d max_batch=500
      alcove settings retention_days=null
    """
    wanted = given(changes, "CHANGES")
    for name, value in wanted.items():
        if name.endswith("_days") and isinstance(value, str):
            wanted[name] = parse_duration(value, unit="d") or value
    show(store.admin.put_settings(wanted) if wanted else store.admin.settings())


apikey = click.Group("apikey", help="Make, list and revoke the API keys of a store.")


@command(group=apikey)
@click.option("--client", required=True, help="The program that will use it.")
@click.option("--user", help="Whom it acts for.")
@click.option("--trusted", is_flag=True, help="It may name the user of each request with X-User-ID.")
@_roles_option
def create(store: Store, roles: tuple[str, ...], **whom: Any) -> None:
    """Make a key; it is shown once.

    \b
    Example:  alcove apikey create --client phone-app --user alice
    """
    if not whom["trusted"] and not whom["user"]:
        raise click.UsageError("--user is needed unless the key is --trusted to name the user itself")
    key = store.api_keys.create(roles=roles, **whom)
    show({"key": key}, key)


@command("list", group=apikey)
def list_keys(store: Store) -> None:
    """List the keys that have not been revoked."""
    known = store.api_keys.list()
    show_table(known, "id, client, user, roles, trusted, made=created_at", empty="there are no API keys")


@command(group=apikey)
def revoke(store: Store, id: str) -> None:
    """Make a key useless, from now on and in every worker.

    \b
    Example:  alcove apikey revoke 0123456789ab
    """
    store.api_keys.revoke(id)
    show({"revoked": id}, f"revoked {id}")


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


RULES: list[click.Command] = [policy, settings, apikey]
COMMANDS: list[click.Command] = [serve, config, token, version, completion]
