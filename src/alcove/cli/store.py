"""Which store a command works on, and as whom."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from alcove.cli.output import Output
from alcove.client import SCHEMES, connect
from alcove.core.errors import InvalidRequest, PermissionDenied, StoreError
from alcove.core.namespace import Namespace
from alcove.core.settings import Settings

if TYPE_CHECKING:
    from alcove.client.embedded import Alcove
    from alcove.search.embedders import Embedder

OPERATOR = Settings(sweep_interval=0)
"""A command does its work and ends; it sweeps nothing on the side."""

Command = Callable[..., Any]

json_option = click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")

_OPTIONS = [
    click.option(
        "--at",
        envvar="ALCOVE_AT",
        show_envvar=True,
        default="memory.db",
        show_default=True,
        metavar="FILE|URL",
        help="The store: its file, or the address of its server.",
    ),
    click.option("--token", envvar="ALCOVE_TOKEN", show_envvar=True, help="Bearer token for a server."),
    click.option("--api-key", envvar="ALCOVE_API_KEY", show_envvar=True, help="API key for a server."),
    click.option("--as-user", metavar="USER", help="Act as this user: on a file, or with a trusted API key."),
    json_option,
]


def on_store(*, make: bool = False) -> Callable[[Command], Command]:
    """Gives a command its store and its output; only with `make` may the file be new."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(
            at: str,
            token: str | None,
            api_key: str | None,
            as_user: str | None,
            *,
            as_json: bool,
            **arguments: Any,
        ) -> None:
            if click.get_current_context().invoked_subcommand:
                return  # a group's own work is what it does without one
            with opened(at, token=token, api_key=api_key, as_user=as_user, make=make) as store:
                command(store, Output(as_json=as_json), **arguments)

        for option in reversed(_OPTIONS):
            run = option(run)
        return run

    return decorate


@contextmanager
def opened(
    at: str, *, token: str | None, api_key: str | None, as_user: str | None, make: bool
) -> Iterator[Alcove]:
    """The store for the length of a `with`."""
    local = not is_url(at)
    if local:
        _check_file(at, make=make)
    embedder = _embedder() if local else None
    with connect(
        at, user=as_user, token=token, api_key=api_key, settings=OPERATOR, embedder=embedder
    ) as store:
        try:
            yield store
        except PermissionDenied as denied:
            if local and as_user is None:
                denied.message += " (you are noop here; --as-user NAME acts as somebody else)"
            raise


def _embedder() -> Embedder | None:
    """The one that `alcove serve` would use in the same environment."""
    from alcove.search.embedders import embedder_for  # noqa: PLC0415  --help does without

    folder = os.environ.get("ALCOVE_MODEL_DIR")
    return embedder_for(
        os.environ.get("ALCOVE_EMBEDDER") or "minilm",
        folder=Path(folder) if folder else None,
        key=os.environ.get("ALCOVE_EMBEDDER_KEY"),
    )


def is_url(at: str) -> bool:
    return at.lower().startswith(SCHEMES)


def _check_file(at: str, *, make: bool) -> None:
    """Refuses a file that is not there: a slip of the finger more often than a wish for a new one."""
    context = click.get_current_context()
    for name in ("token", "api_key"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} is for a server; a file is opened with --as-user")
    if not Path(at).exists():
        if not make:
            raise StoreError(f"there is no store at {at}; say where it is with --at or ALCOVE_AT")
        where = "the key of ALCOVE_KEY" if os.environ.get("ALCOVE_KEY") else f"its key in {at}.key"
        click.echo(f"A new store: {at}, with {where}", err=True)


class NamespaceType(click.ParamType):  # type: ignore[type-arg]
    """A namespace as it is typed: user:alice:notes."""

    name = "namespace"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Namespace:
        try:
            return Namespace.checked(value)
        except InvalidRequest as error:
            self.fail(f"expected {error.expected}", param, ctx)


namespace_argument = click.argument("namespace", type=NamespaceType())
prefix_argument = click.argument("prefix", type=NamespaceType(), default="")
