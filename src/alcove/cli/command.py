"""What makes a command: the store it works on, the user it acts as, and arguments that commands share."""

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

from alcove.cli.output import count
from alcove.client import connect, is_url
from alcove.core.addresses import is_database
from alcove.core.clock import parse_duration
from alcove.core.errors import InvalidRequest, PermissionDenied, StoreError
from alcove.core.namespace import Namespace
from alcove.core.settings import LLMSettings, Settings, read_variable
from alcove.server.config import Option

if TYPE_CHECKING:
    from alcove.client.store import AgentsHandle, Store

T = TypeVar("T")
Function = Callable[..., Any]

OPERATOR = Settings(sweep_interval=0)
"""A command does its work and ends; it sweeps nothing in the background."""
_MAX_PAGE = 1000
_REQUIRED = inspect.Parameter.empty


def command(
    name: str | None = None, cls: type[click.Command] = click.Command, *, takes: str = "",
    group: click.Group | None = None, creates: bool = False, has_llm: bool = False, needs_specs: bool = True,
    **attributes: Any,
) -> Callable[[Function], click.Command]:  # fmt: skip
    """Makes a command of a function, which returns its exit code, or None for success.

    If the function's first parameter is called `store`, it receives the store of `--at`; if it is called
    `agents`, that store's agents. Parameters with a name in `PARAMETERS` become the argument or option
    declared there, before those of decorators; `takes` names more of them, which arrive as keywords.
    `group` is the parent command. Only a command that `creates` may make a new store file. One that
    `has_llm` takes the options that configure an LLM. Without `needs_specs`, agents on a file may have no
    specs. Other arguments are those of `click.command`.
    """

    def decorate(function: Function) -> click.Command:
        own = {each.name: each.default for each in inspect.signature(function).parameters.values()}
        declared = {each.name for each in getattr(function, "__click_params__", ())}
        target = next(iter(own), None)
        has_store = target in ("store", "agents")

        @functools.wraps(function)
        def run(*, as_json: bool, **arguments: Any) -> object:
            if click.get_current_context().invoked_subcommand:
                return None  # a group's own work is what it does without a subcommand
            if has_store:
                return _run_on_store(function, creates=creates, needs_specs=needs_specs, **arguments)
            return function(**arguments)

        defaults = {**dict.fromkeys(takes.split(", "), _REQUIRED), **own}
        shared = [_parameter(*each) for each in defaults.items() if each[0] in PARAMETERS.keys() - declared]
        shared += [_SPECS] if target == "agents" else []
        result = click.command(name, cls, params=shared, **attributes)(run)
        result.params += [*(_STORE if has_store else []), *(_LLM if has_llm else []), _JSON]
        if group:
            group.add_command(result)
        return result

    return decorate


def _parameter(name: str, default: object) -> click.Parameter:
    flags, attributes = PARAMETERS[name]
    optional = {} if default is _REQUIRED else {"default": default, "required": False}
    return (click.Option if flags else click.Argument)([*flags, name], **{**attributes, **optional})


def _run_on_store(
    function: Function, *, creates: bool, needs_specs: bool, at: str, token: str | None, api_key: str | None,
    as_user: str | None, **arguments: Any,
) -> object:  # fmt: skip
    """Calls a command's function with the store at an address, or with its agents if it takes specs."""
    options: dict[str, Any] = {"settings": OPERATOR}
    if is_local := not is_url(at):
        _check_file(at, creates=creates)
        options = _local_options()
    if is_database(at):
        options["vectors"] = read_variable("ALCOVE_VECTORS")
    with connect(at, user=as_user, token=token, api_key=api_key, **options) as store:
        try:
            llm = {name: arguments.pop(name) for name in _LLM_NAMES if name in arguments}
            target: object = store
            if "specs" in arguments:
                specs = arguments.pop("specs")
                target = _agents(store, specs, llm, is_local=is_local, needs_specs=needs_specs)
            return function(target, **arguments)
        except PermissionDenied as denied:
            if is_local and as_user is None:
                denied.message += " (you are noop here; --as-user NAME acts as another user)"
            raise


def _local_options() -> dict[str, Any]:
    """The session cache and the models that `alcove serve` would use in the same environment."""
    from alcove.search.embedders import embedder_for  # noqa: PLC0415  not needed for --help
    from alcove.search.rerankers import reranker_for  # noqa: PLC0415

    names = ("EMBEDDER", "EMBEDDER_KEY", "MODEL_DIR", "RERANKER", "RERANKER_KEY", "SESSION_STORE")
    embedder, key, folder, reranker, reranker_key, cache = (read_variable(f"ALCOVE_{name}") for name in names)
    return {
        "settings": replace(OPERATOR, session_store=cache),
        "embedder": embedder_for(embedder or "minilm", folder=Path(folder) if folder else None, key=key),
        "reranker": reranker_for(reranker, key=reranker_key),
    }


def _check_file(at: str, *, creates: bool) -> None:
    """Refuses a file that does not exist, which is more often a typo than a wish for a new store."""
    typed = click.get_current_context().get_parameter_source
    for name in ("token", "api_key"):
        if typed(name) is ParameterSource.COMMANDLINE:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} is for a server; a file is opened with --as-user")
    if not is_database(at) and not Path(at).exists():
        if not creates:
            raise StoreError(f"there is no store at {at}; say where it is with --at or ALCOVE_AT")
        file = os.environ.get("ALCOVE_KEY_FILE") or f"{at}.key"
        key = "the key of ALCOVE_KEY" if os.environ.get("ALCOVE_KEY") else f"its key in {file}"
        click.echo(f"A new store: {at}, with {key}", err=True)


def _agents(
    store: Store, specs: str | None, llm: Mapping[str, Any], *, is_local: bool, needs_specs: bool
) -> AgentsHandle:
    """The agents of a file's specs, or of a server, which has its own unless `--agents` was typed."""
    if is_local:
        if specs is None and needs_specs:
            raise click.UsageError("name the specs with --agents or ALCOVE_AGENTS")
        from alcove.client.store import AgentsHandle  # noqa: PLC0415  not needed for --help

        changes = {name: value for name, value in llm.items() if value is not None}
        return AgentsHandle(store.transport.agent(specs, replace(LLMSettings.from_environment(), **changes)))
    typed = click.get_current_context().get_parameter_source
    if any(typed(name) is ParameterSource.COMMANDLINE for name in llm):
        raise click.UsageError("--llm-… is for a store's file; a server has its own LLM")
    return store.agents(specs if typed("specs") is ParameterSource.COMMANDLINE else None)


def by_offset(
    find: Callable[..., Sequence[T]], *arguments: object, limit: int, offset: int = 0, page_size: int,
    **options: Any,
) -> Iterator[T]:  # fmt: skip
    """Up to `limit` records of a function that takes a limit and an offset, requested page by page.

    Prints what made a search's results poorer, if anything did.
    """
    while limit > 0:
        page = find(*arguments, limit=min(limit, page_size), offset=offset, **options)
        if degraded := getattr(page, "degraded", None):
            click.echo(f"alcove: {degraded}", err=True)
        if unindexed := getattr(page, "unindexed", None):
            click.echo(f"alcove: no query finds {count(unindexed, 'memory')} here without index text: "
                       "`list --unindexed` lists them, `put --index-all` indexes", err=True)  # fmt: skip
        yield from page
        if len(page) < min(limit, page_size) and not getattr(page, "next_offset", None):
            return
        limit, offset = limit - len(page), offset + len(page)


def by_cursor(
    find: Callable[..., Any], *arguments: object, field: str, limit: int, **options: Any
) -> Iterator[Any]:
    """Up to `limit` records of a function that takes a limit and a cursor; `field` of a page has them."""
    cursor = None
    while limit > 0:
        page = find(*arguments, limit=min(limit, _MAX_PAGE), after_cursor=cursor, **options)
        records, cursor = getattr(page, field), page.after_cursor
        yield from records
        if not records or cursor is None:
            return
        limit -= len(records)


def all_pages(find: Callable[..., Any], *arguments: object, **options: Any) -> Iterator[Any]:
    """All records of a function that answers in pages; requests a page when its records are needed."""
    cursor = None
    while True:
        page = find(*arguments, after_cursor=cursor, **options)
        yield from page
        if (cursor := page.after_cursor) is None:
            return


def namespace(text: str) -> Namespace:
    """Parses a namespace such as user:alice:notes."""
    try:
        return Namespace.checked(text)
    except InvalidRequest as error:
        raise click.BadParameter(f"expected {error.expected}") from None


def duration(text: str | int) -> int:
    """Parses whole seconds: 90, 90s, 15m, 1h, 7d."""
    seconds = parse_duration(str(text))
    if seconds is None or not seconds.is_integer():
        raise click.BadParameter(f"expected whole seconds, or such as 15m, 1h, 7d, not {text!r}")
    return int(seconds)


def parse_object(words: Sequence[str], name: str, texts: Container[str] = ()) -> dict[str, Any]:
    """Parses an object from JSON, from '-' for JSON on stdin, from NAME=VALUE pairs, or a mix of these.

    A value that parses as JSON is JSON, unless its name is in `texts`. Errors call the argument `name`.
    """
    content: dict[str, Any] = {}
    for word in words:
        if word == "-" or word.lstrip().startswith("{"):
            content |= parse_json_object(sys.stdin.read() if word == "-" else word, name)
        else:
            field, text = parse_pair(word, name)
            content[field] = text if field in texts else _parse_json(text, otherwise=text)
    return content


def parse_pair(word: str, name: str) -> tuple[str, str]:
    """Splits NAME=VALUE."""
    field, equals, text = word.partition("=")
    if not equals or not field:
        expected = f"expected a JSON object or NAME=VALUE, not {word!r}"
        raise click.BadParameter(expected, param_hint=f"'{name}'")
    return field, text


def parse_json_object(text: str | bytes, name: str) -> dict[str, Any]:
    if not isinstance(value := _parse_json(text, otherwise=None), dict):
        raise click.BadParameter("expected a JSON object", param_hint=f"'{name}'")
    return value


def _parse_json(text: str | bytes, *, otherwise: object) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


def _declare(*flags: str, **attributes: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Declares a parameter: an option with these flags, or an argument without."""
    return flags, attributes


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_TEXTS = ("key", "user", "agent", "kind", "id", "session", "message", "source", "name", "query")
PARAMETERS = {
    **{name: _declare() for name in _TEXTS},
    "namespace": _declare(type=namespace),
    "prefix": _declare(type=namespace, default=""),
    "instance": _declare(required=False),
    "file": _declare(type=FILE),
    "ttl_seconds": _declare("--ttl", type=duration, metavar="DURATION",
                            help="Expire after this many seconds, or 15m, 1h, 7d."),
    "expected_revision": _declare("--expected-revision", type=int,
                                  help="Only if the memory has this revision; 0 if it must not exist."),
    "idempotency_key": _declare("--idempotency-key", help="A request repeated with this key runs only once."),
    "as_of": _declare("--as-of", metavar="TIME", help="Show the state at this time: 2026-01-31T12:00:00Z."),
    "filter": _declare("--filter", multiple=True, metavar="FIELD=VALUE|JSON",
                       help="Only memories that match; repeatable."),
    "unindexed": _declare("--unindexed", is_flag=True, help="Only memories that have no index text."),
    "limit": _declare("--limit", type=click.IntRange(1), default=100, help="Show at most this many."),
    "offset": _declare("--offset", type=click.IntRange(0), default=0, help="Skip this many first."),
    "members": _declare("--member", multiple=True, help="A member of the run; repeatable."),
    "team": _declare("--team", help="Act as a member of this team."),
    "session_id": _declare("--session", help="Act in this session."),
    "runs": _declare("--instance", multiple=True, metavar="KIND=ID",
                     help="Act in this workflow, swarm or debate; repeatable."),
    "roles": _declare("--role", multiple=True, help="A role, such as admin; repeatable."),
    "folder": _declare("--dir", type=_FOLDER, help="Folder with authz.rego, attributes.rego or filter.rego."),
    "ledger": _declare("--ledger", type=FILE, help="Another ledger of wipes, besides FILE.wipes."),
    "wait": _declare("--wait/--no-wait", default=True, help="Wait until searches find them by meaning."),
    "yes": _declare("--yes", is_flag=True, help="Do not ask for confirmation."),
}  # fmt: skip
"""The argument or option for a parameter of this name: the same in every command that has it."""

_SPECS = click.Option(
    ["--agents", "specs"], envvar="ALCOVE_AGENTS", show_envvar=True, metavar="FILE|FOLDER",
    help="Specs of the agents, for a store's file; a server has its own.",
)  # fmt: skip
_STORE = [
    Option(["--at"], envvar="ALCOVE_AT", show_envvar=True, default="memory.db",
           metavar="FILE|URL", help="The store: its file, or the address of its database or server."),
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
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, for programs.")
