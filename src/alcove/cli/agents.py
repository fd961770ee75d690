"""Agents: who there is, what they have, what they did, and calling their tools."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from alcove.cli.memories import given, pair
from alcove.cli.output import Output, compact, count, plain
from alcove.cli.store import is_url, json_option, on_store
from alcove.core.settings import Settings

if TYPE_CHECKING:
    from alcove.agents.handle import AgentsHandle
    from alcove.agents.runs import Run
    from alcove.client.embedded import Alcove

_MOST_CALLS = 1000


def with_agents(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the option that names the specs of a file's agents."""
    return click.option(
        "--agents",
        "specs",
        envvar="ALCOVE_AGENTS",
        show_envvar=True,
        metavar="FILE|FOLDER",
        help="The specs, for a store's file; a server has its own.",
    )(command)


def _agents(store: Alcove, specs: str | None) -> AgentsHandle:
    context = click.get_current_context()
    if is_url(context.params["at"]):
        named = context.get_parameter_source("specs") is ParameterSource.COMMANDLINE
        return store.agents(specs if named else None)
    if specs is None:
        raise click.UsageError("say where the specs are with --agents or ALCOVE_AGENTS")
    return store.agents(specs)


@click.group(name="agents", invoke_without_command=True)
@on_store()
@with_agents
@click.option("--teams", is_flag=True, help="The teams instead.")
def list_agents(store: Alcove, out: Output, specs: str | None, *, teams: bool) -> None:
    """List the agents you may use, or the teams.

    \b
    Examples:
      alcove agents --agents agents.yaml
      alcove agents check agents.yaml
    """
    agents = _agents(store, specs)
    if teams:
        out.table(agents.teams(), ["team", "workers", "room", "mode"],
                  lambda t: [t.name, ", ".join(t.workers), t.shared_memory_namespace, t.mode],
                  empty="no teams")  # fmt: skip
        return
    out.table(agents.agents(), ["agent", "role", "owner", "tools", "rooms"],
              lambda a: [a.name, a.role, a.owner, len(agents.tools(a.name)), _rooms(a.memory)],
              empty="no agents")  # fmt: skip


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


@click.command()
@on_store()
@with_agents
@click.argument("name")
@click.argument("what", type=click.Choice(["spec", "tools", "memory", "calls"]), default="spec")
@click.option("--format", type=click.Choice(["openai", "anthropic", "mcp"]), default="openai",
              help="Of tools with --json.")  # fmt: skip
@click.option("--team", help="Tools inside this team.")
@click.option("--limit", type=click.IntRange(1, _MOST_CALLS), default=100, help="At most so many calls.")
def agent(
    store: Alcove, out: Output, specs: str | None, name: str, what: str, format: str, team: str | None,
    limit: int,
) -> None:  # fmt: skip
    """Show an agent: its spec, its tools, its rooms or its calls.

    \b
    Examples:
      alcove agent researcher tools --json --format anthropic
      alcove agent researcher memory --as-user alice
    """
    agents = _agents(store, specs)
    match what:
        case "spec":
            spec = agents.agent(name)
            out.record(spec, plain(compact(spec)))
        case "tools" if out.as_json:
            for tool in agents.tools(name, format, team):
                out.record(tool, "")
        case "tools":
            out.table(agents.tools(name, "mcp", team), ["tool", "arguments", "about"],
                      lambda t: [t["name"], _signature(t["inputSchema"]), t["description"]],
                      empty="no tools")  # fmt: skip
        case "memory":
            out.table(agents.rooms(name), ["room", "namespace", "memories"],
                      lambda r: [r.room, r.namespace, r.memories], empty="no rooms")  # fmt: skip
        case _:
            calls = islice(agents.calls_of(name), limit)
            out.table(calls, ["when", "user", "tool", "outcome", "ms", "session"],
                      lambda c: [c.at, c.user, c.tool, c.outcome, f"{c.ms:.1f}", c.session],
                      empty="no calls")  # fmt: skip


def _signature(schema: Mapping[str, Any]) -> str:
    return ", ".join(name if name in schema["required"] else f"[{name}]" for name in schema["properties"])


@click.command(name="runs")
@on_store()
@with_agents
def list_runs(store: Alcove, out: Output, specs: str | None) -> None:
    """List the workflows, swarms and debates you own or are in."""
    out.table(_every_run(_agents(store, specs)), ["kind", "id", "owner", "members"],
              lambda run: [run.kind, run.id, run.owner, ", ".join(run.members)], empty="no runs")  # fmt: skip


def _every_run(agents: AgentsHandle) -> Iterator[Run]:
    from alcove.agents.runs import MOST_RUNS  # noqa: PLC0415  --help does without

    for offset in itertools.count(0, MOST_RUNS):
        page = agents.list_runs(offset=offset)
        yield from page
        if len(page) < MOST_RUNS:
            return


@click.command()
@on_store(make=True)
@with_agents
@click.argument("name")
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE|JSON|-]...")
@click.option("--session", help="In this session.")
@click.option("--team", help="In this team.")
@click.option("--instance", multiple=True, metavar="KIND=ID", help="In this workflow, swarm or debate.")
def call(
    store: Alcove, out: Output, specs: str | None, name: str, tool: str, arguments: tuple[str, ...],
    session: str | None, team: str | None, instance: tuple[str, ...],
) -> None:  # fmt: skip
    """Call a tool of an agent.

    \b
    Examples:
      alcove call researcher remember key=tea content="green tea" --as-user alice
      alcove call fighter shared_memory_read namespace=workflow key=log --instance workflow=w1
    """
    agents = _agents(store, specs)
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


COMMANDS = [list_agents, agent, call, list_runs]
