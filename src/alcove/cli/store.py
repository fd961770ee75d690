"""What makes a command: the store it works on, as whom, and the kinds of arguments that commands share."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from alcove.client import connect, is_url
from alcove.core.addresses import is_database
from alcove.core.clock import parse_duration
from alcove.core.errors import InvalidRequest, PermissionDenied, StoreError
from alcove.core.namespace import Namespace
from alcove.core.settings import LLMSettings, Settings, read_variable
from alcove.server.config import Option

if TYPE_CHECKING:
    from alcove.client.store import AgentsHandle, Store
    from alcove.search.embedders import Embedder
    from alcove.search.rerankers import Reranker

T = TypeVar("T")
Function = Callable[..., Any]

OPERATOR = Settings(sweep_interval=0)
"""A command does its work and ends; it sweeps nothing on the side."""


def command(
    name: str | None = None, cls: type[click.Command] = click.Command, *, takes: str = "",
    group: click.Group | None = None, make: bool = False, talks: bool = False, needs_specs: bool = True,
    **attributes: Any,
) -> Callable[[Function], click.Command]:  # fmt: skip
    """Makes a command of a function, which returns its exit code, or None where all is well.

    If its first parameter is called `store`, it works on the store that is opened for it; if that is called
    `agents`, on the store's agents. Parameters that have a name of `PARAMETERS` are what that says, before
    those it is decorated with; `takes` names more of them, which the function hands on as keywords. `group`
    is the command that this one is a part of; only with `make` may the store's file be new. One that `talks`
    can be told which LLM to talk with. Without `needs_specs`, agents of a file may have no specs. The other
    arguments are those of `click.command`.
    """

    def decorate(function: Function) -> click.Command:
        own = {each.name: each.default for each in inspect.signature(function).parameters.values()}
        declared = {each.name for each in getattr(function, "__click_params__", ())}
        works_on = next(iter(own), None)

        @functools.wraps(function)
        def run(*, as_json: bool, **arguments: Any) -> object:
            if click.get_current_context().invoked_subcommand:
                return None  # a group's own work is what it does without one
            if works_on in ("store", "agents"):
                return _on_store(function, make=make, needs_specs=needs_specs, **arguments)
            return function(**arguments)

        defaults = {**dict.fromkeys(takes.split(", "), inspect.Parameter.empty), **own}
        shared = [_made(each, defaults[each]) for each in defaults if each in PARAMETERS.keys() - declared]
        shared += [_SPECS] if works_on == "agents" else []
        made = click.command(name, cls, params=shared, **attributes)(run)
        made.params += [*(_STORE if works_on in ("store", "agents") else []), *(_LLM if talks else []), _JSON]
        if group:
            group.add_command(made)
        return made

    return decorate


def _made(name: str, default: object) -> click.Parameter:
    more = {} if default is inspect.Parameter.empty else {"default": default, "required": False}
    return PARAMETERS[name](name, **more)


def _on_store(
    function: Function, *, make: bool, needs_specs: bool, at: str, token: str | None, api_key: str | None,
    as_user: str | None, **arguments: Any,
) -> object:  # fmt: skip
    """Calls a command's function with the store at a place, or with its agents where there are specs."""
    embedder = reranker = None
    if local := not is_url(at):
        _check_file(at, make=make)
        embedder, reranker = _models()
    who: dict[str, Any] = {"user": as_user, "token": token, "api_key": api_key}
    settings = replace(OPERATOR, session_store=read_variable("ALCOVE_SESSION_STORE") if local else None)
    vectors = read_variable("ALCOVE_VECTORS") if is_database(at) else None
    with connect(
        at, **who, settings=settings, embedder=embedder, reranker=reranker, vectors=vectors
    ) as store:
        try:
            llm = {name: arguments.pop(name) for name in _LLM_NAMES if name in arguments}
            on: object = store
            if "specs" in arguments:
                on = _agents(store, arguments.pop("specs"), llm, local=local, needs_specs=needs_specs)
            return function(on, **arguments)
        except PermissionDenied as denied:
            if local and as_user is None:
                denied.message += " (you are noop here; --as-user NAME acts as somebody else)"
            raise


def _agents(
    store: Store, specs: str | None, llm: Mapping[str, Any], *, local: bool, needs_specs: bool
) -> AgentsHandle:
    """The agents of a file's specs, or of a server, which has its own unless others are asked for."""
    if local and specs is None and needs_specs:
        raise click.UsageError("say where the specs are with --agents or ALCOVE_AGENTS")
    given = {name: value for name, value in llm.items() if value is not None}
    if local:
        from alcove.client.store import AgentsHandle  # noqa: PLC0415  --help does without

        return AgentsHandle(store.transport.agent(specs, replace(LLMSettings.from_environment(), **given)))
    typed = click.get_current_context().get_parameter_source
    if any(typed(name) is ParameterSource.COMMANDLINE for name in llm):
        raise click.UsageError("--llm-… is for a store's file; a server has its own LLM")
    return store.agents(specs if typed("specs") is ParameterSource.COMMANDLINE else None)


def _models() -> tuple[Embedder | None, Reranker | None]:
    """Those that `alcove serve` would use in the same environment."""
    from alcove.search.embedders import embedder_for  # noqa: PLC0415  --help does without
    from alcove.search.rerankers import reranker_for  # noqa: PLC0415

    variables = ("ALCOVE_EMBEDDER", "ALCOVE_MODEL_DIR", "ALCOVE_EMBEDDER_KEY")
    name, folder, key = map(read_variable, variables)
    embedder = embedder_for(name or "minilm", folder=Path(folder) if folder else None, key=key)
    return embedder, reranker_for(read_variable("ALCOVE_RERANKER"), key=read_variable("ALCOVE_RERANKER_KEY"))


def _check_file(at: str, *, make: bool) -> None:
    """Refuses a file that is not there: a slip of the finger more often than a wish for a new one."""
    context = click.get_current_context()
    for name in ("token", "api_key"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} is for a server; a file is opened with --as-user")
    if not is_database(at) and not Path(at).exists():
        if not make:
            raise StoreError(f"there is no store at {at}; say where it is with --at or ALCOVE_AT")
        file = os.environ.get("ALCOVE_KEY_FILE") or f"{at}.key"
        where = "the key of ALCOVE_KEY" if os.environ.get("ALCOVE_KEY") else f"its key in {file}"
        click.echo(f"A new store: {at}, with {where}", err=True)


def by_offset(
    find: Callable[..., Sequence[T]], *where: object, limit: int, offset: int = 0, most: int, **asked: Any
) -> Iterator[T]:
    """As many records as are wanted, asked for page by page, at most `most` at a time.

    `find` takes a limit and an offset. Prints what made a search poorer, if anything did.
    """
    while limit > 0:
        found = find(*where, limit=min(limit, most), offset=offset, **asked)
        if degraded := getattr(found, "degraded", None):
            click.echo(f"alcove: {degraded}", err=True)
        if unindexed := getattr(found, "unindexed", None):
            told = f"alcove: no query finds the {unindexed:,} here that have no index text"
            click.echo(f"{told}: `list --unindexed` shows them, `put --index-all` indexes", err=True)
        yield from found
        if len(found) < min(limit, most) and not getattr(found, "next_offset", None):
            return
        limit, offset = limit - len(found), offset + len(found)


def by_cursor(ask: Callable[..., Any], *where: object, field: str, limit: int, **asked: Any) -> Iterator[Any]:
    """The same, of an operation that takes a limit and a cursor; `field` of a page has its records."""
    cursor = None
    while limit > 0:
        page = ask(*where, limit=min(limit, 1000), after_cursor=cursor, **asked)
        records, cursor = getattr(page, field), page.after_cursor
        yield from records
        if not records or cursor is None:
            return
        limit -= len(records)


def namespace(typed: str) -> Namespace:
    """A namespace as it is typed: user:alice:notes."""
    try:
        return Namespace.checked(typed)
    except InvalidRequest as error:
        raise click.BadParameter(f"expected {error.expected}") from None


def duration(typed: str | int) -> int:
    """Whole seconds, as they are typed: 90, 90s, 15m, 1h, 7d."""
    seconds = parse_duration(str(typed))
    if seconds is None or not seconds.is_integer():
        raise click.BadParameter(f"expected whole seconds, or such as 15m, 1h, 7d, not {typed!r}")
    return int(seconds)


def given(words: Sequence[str], where: str, texts: Container[str] = ()) -> dict[str, Any]:
    """The object that was typed: as JSON, as '-' for JSON on stdin, as NAME=VALUE pairs, or as several.

    What reads as JSON in a pair is JSON, unless its name is one of `texts`. `where` names it in errors.
    """
    content: dict[str, Any] = {}
    for word in words:
        if word == "-" or word.lstrip().startswith("{"):
            content |= object_of(sys.stdin.read() if word == "-" else word, where)
        else:
            name, text = pair(word, where)
            content[name] = text if name in texts else _json(text, otherwise=text)
    return content


def pair(word: str, where: str) -> tuple[str, str]:
    """The two sides of NAME=VALUE."""
    name, equals, text = word.partition("=")
    if not equals or not name:
        raise click.BadParameter(
            f"expected a JSON object or NAME=VALUE, not {word!r}", param_hint=f"'{where}'"
        )
    return name, text


def object_of(text: str | bytes, where: str) -> dict[str, Any]:
    if not isinstance(found := _json(text, otherwise=None), dict):
        raise click.BadParameter("expected a JSON object", param_hint=f"'{where}'")
    return found


def _json(text: str | bytes, *, otherwise: object) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


def _argument(**attributes: Any) -> Callable[..., click.Parameter]:
    return lambda name, **more: click.Argument([name], **{**attributes, **more})


def _option(flag: str, **attributes: Any) -> Callable[..., click.Parameter]:
    return lambda name, **more: click.Option([flag, name], **{**attributes, **more})


PARAMETERS = {
    "namespace": _argument(type=namespace),
    "prefix": _argument(type=namespace, default=""),
    "key": _argument(),
    "user": _argument(),
    "agent": _argument(),
    "kind": _argument(),
    "id": _argument(),
    "session": _argument(),
    "message": _argument(),
    "source": _argument(),
    "name": _argument(),
    "query": _argument(),
    "instance": _argument(required=False),
    "ttl_seconds": _option("--ttl", type=duration, metavar="DURATION",
                           help="Forget it after so many seconds, or 15m, 1h, 7d."),
    "expected_revision": _option("--expected-revision", type=int,
                                 help="Only if this is its revision; 0 if it is not there."),
    "idempotency_key": _option("--idempotency-key", help="A repetition with the same key is done once."),
    "as_of": _option("--as-of", metavar="TIME", help="As it was then, such as 2026-01-31T12:00:00Z."),
    "filter": _option("--filter", multiple=True, metavar="FIELD=VALUE|JSON",
                      help="What must hold; may be repeated."),
    "limit": _option("--limit", type=click.IntRange(1), default=100, show_default=True,
                     help="At most so many."),
    "offset": _option("--offset", type=click.IntRange(0), default=0, help="Leave out the first so many."),
    "members": _option("--member", multiple=True, help="Who is in it; may be repeated."),
    "team": _option("--team", help="In this team."),
    "yes": _option("--yes", is_flag=True, help="Do not ask."),
}  # fmt: skip
"""What a parameter is on the command line, by its name: the same in every command that has it."""

roles_option = click.option("--role", "roles", multiple=True,
                            help="A role, such as admin; may be repeated.")  # fmt: skip
_SPECS = click.Option(
    ["--agents", "specs"], envvar="ALCOVE_AGENTS", show_envvar=True, metavar="FILE|FOLDER",
    help="The specs, for a store's file; a server has its own.",
)  # fmt: skip
_STORE = [
    Option(["--at"], envvar="ALCOVE_AT", show_envvar=True, default="memory.db", show_default=True,
           metavar="FILE|URL", help="The store: its file, or the address of its server."),
    Option(["--token"], envvar="ALCOVE_TOKEN", show_envvar=True, help="Bearer token for a server."),
    Option(["--api-key"], envvar="ALCOVE_API_KEY", show_envvar=True, help="API key for a server."),
    click.Option(["--as-user"], metavar="USER", help="Act as this user: on a file, or with a trusted key."),
]  # fmt: skip
_LLM_NAMES = ("llm_url", "llm_key", "llm_model", "llm_provider", "llm_timeout")
_LLM = [
    Option([f"--{name.replace('_', '-')}"], envvar=f"ALCOVE_{name.upper()}", show_envvar=True,
           type=float if name == "llm_timeout" else str,
           help=LLMSettings.__dataclass_fields__[name].metadata["help"])
    for name in _LLM_NAMES
] + [click.Option(["--user", "as_user"], metavar="USER", help="The same as --as-user.")]  # fmt: skip
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="As JSON, for programs.")
