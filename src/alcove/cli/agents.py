"""Agents: who there is, what they have, what they did, calling their tools, and their runs and rooms."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from alcove.cli.memories import given, pair
from alcove.cli.output import Output, compact, confirm, count, plain
from alcove.cli.store import Function, is_url, json_option, on_store, paged, yes_option
from alcove.cli.timeline import show_coming
from alcove.core.settings import Settings

if TYPE_CHECKING:
    from alcove import Alcove
    from alcove.agents.runs import Run
    from alcove.client.store import AgentsHandle

_MOST_CALLS = 1000
_MOST_RUNS = 100
_KINDS = ["workflow", "swarm", "debate"]


def on_agents(name: str | None = None, **attributes: Any) -> Callable[[Function], click.Command]:
    """Makes a command of a function that is called with agents: those of a server, or of a file's specs.

    The arguments are those of `on_store`.
    """

    def decorate(function: Function) -> click.Command:
        @click.option("--agents", "specs", envvar="ALCOVE_AGENTS", show_envvar=True, metavar="FILE|FOLDER",
                      help="The specs, for a store's file; a server has its own.")  # fmt: skip
        @functools.wraps(function)
        def run(store: Alcove, out: Output, specs: str | None, **arguments: Any) -> None:
            context = click.get_current_context()
            if not is_url(context.params["at"]):
                if specs is None:
                    raise click.UsageError("say where the specs are with --agents or ALCOVE_AGENTS")
            elif context.get_parameter_source("specs") is not ParameterSource.COMMANDLINE:
                specs = None
            function(store.agents(specs), out, **arguments)

        return on_store(name, **attributes)(run)

    return decorate


@on_agents("agents", cls=click.Group, invoke_without_command=True)
@click.option("--teams", is_flag=True, help="The teams instead.")
def list_agents(agents: AgentsHandle, out: Output, *, teams: bool) -> None:
    """List the agents you may use, or the teams.

    \b
    Examples:
      alcove agents --agents agents.yaml
      alcove agents check agents.yaml
    """
    if teams:
        columns = "team=name, workers, room=shared_memory_namespace, mode"
        out.table(agents.teams(), columns, empty="no teams")
        return
    out.table(agents.agents(), "agent=name, role, owner, tools, rooms", empty="no agents",
              tools=lambda a: len(agents.tools(a.name)), rooms=lambda a: _rooms(a.memory))  # fmt: skip


assert isinstance(list_agents, click.Group)


@list_agents.command()
@click.argument("path", metavar="FILE|FOLDER")
@click.option("--max-depth", envvar="ALCOVE_MAX_DEPTH", default=Settings().max_depth, show_default=True,
              help="Segments in a namespace.")  # fmt: skip
@json_option
def check(path: str, max_depth: int, *, as_json: bool) -> None:
    """Check specs, without a store.

    \b
    All that is wrong is said at once, and the exit code is 2.
    Example:  alcove agents check agents.yaml
    """
    from alcove.agents.loading import load  # noqa: PLC0415  loads YAML, which few calls need

    found = load(path, max_depth=max_depth)
    for warning in found.warnings:
        click.echo(f"warning: {plain(warning)}", err=True)
    told = {"agents": sorted(found.agents), "teams": sorted(found.teams), "warnings": found.warnings}
    text = f"ok: {count(len(found.agents), 'agent')}, {count(len(found.teams), 'team')}"
    Output(as_json=as_json).record(told, text)


def _rooms(memory: Any) -> str:
    blocks = [name for name in ("private", "facts", "long_term") if getattr(memory, name).enabled]
    pools = [count(len(memory.pools), "pool")] if memory.pools else []
    return ", ".join([*blocks[:1], *pools, *memory.scratch, *blocks[1:]])


@on_agents()
@click.argument("name")
@click.argument("what", type=click.Choice(["spec", "tools", "memory", "calls"]), default="spec")
@click.option("--format", type=click.Choice(["openai", "anthropic", "mcp"]), default="openai",
              help="Of tools with --json.")  # fmt: skip
@click.option("--team", help="Tools inside this team.")
@click.option("--limit", type=click.IntRange(1, _MOST_CALLS), default=100, help="At most so many calls.")
def agent(
    agents: AgentsHandle, out: Output, name: str, what: str, format: str, team: str | None, limit: int
) -> None:
    """Show an agent: its spec, its tools, its rooms or its calls.

    \b
    Examples:
      alcove agent researcher tools --json --format anthropic
      alcove agent researcher memory --as-user alice
    """
    match what:
        case "spec":
            spec = agents.agent(name)
            out.record(spec, plain(compact(spec)))
        case "tools":
            out.table(agents.tools(name, format if out.as_json else "mcp", team),
                      "tool=name, arguments, about=description", empty="no tools",
                      arguments=lambda tool: _signature(tool["inputSchema"]))  # fmt: skip
        case "memory":
            out.table(agents.rooms(name), "room, namespace, memories", empty="no rooms")
        case _:
            out.table(islice(agents.calls_of(name), limit), "when=at, user, tool, outcome, ms, session",
                      empty="no calls", ms=lambda call: f"{call.ms:.1f}")  # fmt: skip


def _signature(schema: Mapping[str, Any]) -> str:
    return ", ".join(name if name in schema["required"] else f"[{name}]" for name in schema["properties"])


@on_agents("runs")
def list_runs(agents: AgentsHandle, out: Output) -> None:
    """List the workflows, swarms and debates you own or are in.

    \b
    Example:  alcove runs
    """

    def ask(limit: int, offset: int) -> tuple[Sequence[Run], int | None]:
        page = agents.list_runs(limit, offset)
        return page, offset + limit if len(page) == limit else None

    runs = paged(ask, 0, limit=sys.maxsize, most=_MOST_RUNS)
    out.table(runs, "kind, id, owner, members", empty="no runs")


@click.group()
def run() -> None:
    """Open a workflow, swarm or debate, say who is in it, and close it."""


_kind_argument = click.argument("kind", type=click.Choice(_KINDS))
_members_option = click.option("--member", "members", multiple=True, help="Who is in it; may be repeated.")


@on_agents("open", group=run, make=True)
@_kind_argument
@click.argument("id", required=False)
@_members_option
def open_run(agents: AgentsHandle, out: Output, kind: str, id: str | None, members: Sequence[str]) -> None:
    """Open a run for several users.

    \b
    Without an ID it gets one that nobody guesses.
    Example:  alcove run open workflow --member bob
    """
    _tell(out, agents.open_run(kind, id, members))


@on_agents("change", group=run)
@_kind_argument
@click.argument("id")
@_members_option
def change_run(agents: AgentsHandle, out: Output, kind: str, id: str, members: Sequence[str]) -> None:
    """Say who is in a run; only its owner may.

    \b
    Who is not named is let out, but for the owner.
    Example:  alcove run change workflow w1 --member bob --member carol
    """
    _tell(out, agents.change_run(kind, id, members))


def _tell(out: Output, run: Run) -> None:
    out.record(run, f"{run.kind} {plain(run.id)}: {plain(', '.join(run.members))}")


@on_agents("close", group=run)
@_kind_argument
@click.argument("id")
@yes_option
def close_run(agents: AgentsHandle, out: Output, kind: str, id: str, *, yes: bool) -> None:
    """Close a run and take its rooms away; only its owner may.

    \b
    Example:  alcove run close workflow w1 --yes
    """
    confirm(f"Close the {kind} {plain(id)} and take its rooms away, for good?", yes=yes)
    agents.close_run(kind, id)
    out.record({"closed": id}, f"closed {kind} {plain(id)}")


@click.group()
def room() -> None:
    """Show how a scratch room is used, watch it, or empty it."""


def on_room(name: str) -> Callable[[Function], click.Command]:
    """Makes a command of a function that is called with agents and which room it is about."""

    def decorate(function: Function) -> click.Command:
        function = click.argument("instance", required=False)(function)
        for argument in ("kind", "agent"):
            function = click.argument(argument)(function)
        return on_agents(name, group=room)(function)

    return decorate


@on_room("stats")
def room_stats(agents: AgentsHandle, out: Output, **room: str) -> None:
    """Show how much a room holds, and how it was used in the last thirty days.

    \b
    KIND is global, workflow, swarm, debate, session or agent, and INSTANCE the id of the run or session.
    Example:  alcove room stats researcher workflow w1
    """
    out.record(agents.room_stats(**room))


@on_room("watch")
def watch_room(agents: AgentsHandle, out: Output, **room: str) -> None:
    """Print what happens in a room, until interrupted or let out.

    \b
    Example:  alcove room watch researcher workflow w1
    """
    show_coming(out, agents.watch_room(**room))


@on_room("reset")
@yes_option
def reset_room(agents: AgentsHandle, out: Output, *, yes: bool, **room: str) -> None:
    """Empty a room; its versions start at 1 again.

    \b
    A run's only for its owner, global only for an admin.
    Example:  alcove room reset researcher workflow w1 --yes
    """
    named = plain(" ".join(filter(None, (room["kind"], room["instance"]))))
    confirm(f"Empty the room {named}, for good?", yes=yes)
    agents.reset_room(**room)
    out.record({"reset": named}, f"emptied {named}")


@on_agents(make=True)
@click.argument("name")
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE|JSON|-]...")
@click.option("--session", help="In this session.")
@click.option("--team", help="In this team.")
@click.option("--instance", multiple=True, metavar="KIND=ID", help="In this workflow, swarm or debate.")
def call(
    agents: AgentsHandle, out: Output, name: str, tool: str, arguments: tuple[str, ...], session: str | None,
    team: str | None, instance: tuple[str, ...],
) -> None:  # fmt: skip
    """Call a tool of an agent.

    \b
    Examples:
      alcove call researcher remember key=tea content="green tea" --as-user alice
      alcove call fighter shared_memory_read namespace=workflow key=log --instance workflow=w1
    """
    schemas = {each["name"]: each["inputSchema"] for each in agents.tools(name, "mcp", team)}
    instances = dict(pair(word, "--instance") for word in instance)
    said = _arguments(arguments, schemas.get(tool, {}).get("properties", {}))
    answer = agents.call_with(name, tool, said, session_id=session, team=team, instances=instances)
    out.record(answer._asdict(), plain(answer.text, keep="\n"))


def _arguments(words: Sequence[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed; where the tool wants a text, `key=7` is one."""
    arguments: dict[str, Any] = {}
    for word in words:
        if word == "-" or word.lstrip().startswith("{"):
            arguments |= given([word], "ARGUMENTS")
            continue
        name, text = pair(word, "ARGUMENTS")
        is_text = properties.get(name, {}).get("type") == "string"
        arguments[name] = text if is_text else given([word], "ARGUMENTS")[name]
    return arguments


COMMANDS: list[click.Command] = [list_agents, agent, call, room, list_runs, run]
