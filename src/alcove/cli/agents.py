"""Agents: who there is, what they have, what they did, calling their tools, and their runs and rooms."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from alcove.cli.memories import show_coming
from alcove.cli.output import as_json, compact, confirm, count, plain, show, show_table
from alcove.cli.store import by_offset, command, given, pair
from alcove.core.settings import Settings

if TYPE_CHECKING:
    from alcove.agents.runs import Run
    from alcove.client.store import AgentsHandle

_MOST_RUNS = 100


@command("agents", cls=click.Group, invoke_without_command=True)
@click.option("--teams", is_flag=True, help="The teams instead.")
def list_agents(agents: AgentsHandle, *, teams: bool) -> None:
    """List the agents you may use, or the teams.

    \b
    Examples:
      alcove agents --agents agents.yaml
      alcove agents check agents.yaml
      alcove agents convert agents.yaml
    """
    if teams:
        columns = "team=name, workers, room=shared_memory_namespace, mode"
        show_table(agents.teams(), columns, empty="no teams")
        return
    show_table(agents.agents(), "agent=name, role, owner, tools, rooms", empty="no agents",
              tools=lambda a: len(agents.tools(a.name)), rooms=lambda a: _rooms(a.memory))  # fmt: skip


assert isinstance(list_agents, click.Group)


@command(group=list_agents)
@click.argument("path", metavar="FILE|FOLDER")
@click.option("--max-depth", envvar="ALCOVE_MAX_DEPTH", default=Settings().max_depth, show_default=True,
              help="Segments in a namespace.")  # fmt: skip
def check(path: str, max_depth: int) -> None:
    """Check specs, without a store.

    \b
    All that is wrong is said at once, and the exit code is 2.
    Example:  alcove agents check agents.yaml
    """
    from alcove.agents.specs.loading import load  # noqa: PLC0415  loads YAML, which few calls need

    found = load(path, max_depth=max_depth)
    for warning in found.warnings:
        click.echo(f"warning: {plain(warning)}", err=True)
    told = {"agents": sorted(found.agents), "teams": sorted(found.teams), "warnings": found.warnings}
    show(told, f"ok: {count(len(found.agents), 'agent')}, {count(len(found.teams), 'team')}")


@command(group=list_agents)
@click.argument("path", metavar="FILE|FOLDER", type=click.Path(path_type=Path))
def convert(path: Path) -> None:
    """Print specs of any accepted spelling in Alcove's own form.

    \b
    Needs no store. Fields for other programs are left out, each with a warning.
    Example:  alcove agents convert theirs.yaml > agents.yaml
    """
    from alcove.agents.specs import loading  # noqa: PLC0415  loads YAML, which few calls need

    specs = loading.read_valid_specs(path)
    for warning in specs.warnings:
        click.echo(f"warning: {plain(warning)}", err=True)
    show(loading.to_own_form(specs), loading.to_yaml(specs).rstrip("\n"))


def _rooms(memory: Any) -> str:
    blocks = [name for name in ("private", "facts", "long_term") if getattr(memory, name).enabled]
    pools = [count(len(memory.pools), "pool")] if memory.pools else []
    return ", ".join([*blocks[:1], *pools, *memory.scratch, *blocks[1:]])


@command("agent")
@click.argument("what", type=click.Choice(["spec", "tools", "memory", "calls", "usage"]), default="spec")
@click.option("--format", type=click.Choice(["openai", "responses", "anthropic", "mcp"]), default="openai",
              help="Of tools with --json.")  # fmt: skip
def show_agent(
    agents: AgentsHandle, agent: str, what: str, format: str, team: str | None, limit: int
) -> None:
    """Show an agent: its spec, tools, rooms, calls, or the tokens it took.

    \b
    Examples:
      alcove agent researcher tools --json --format anthropic
      alcove agent researcher memory --as-user alice
    """
    match what:
        case "spec":
            spec = agents.spec(agent)
            show(spec, plain(compact(spec)))
        case "tools":
            show_table(agents.tools(agent, format if as_json() else "mcp", team),
                      "tool=name, arguments, about=description", empty="no tools",
                      arguments=lambda tool: _signature(tool["inputSchema"]))  # fmt: skip
        case "memory":
            show_table(agents.rooms(agent), "room, namespace, memories", empty="no rooms")
        case "usage":
            columns = "day, user, turns, prompt=prompt_tokens, answers=completion_tokens"
            show_table(agents.usage(agent), columns, empty="no turns")
        case _:
            columns = "when=at, user, tool, outcome, ms:.1f, session"
            show_table(agents.calls_of(agent, limit), columns, empty="no calls")


def _signature(schema: Mapping[str, Any]) -> str:
    return ", ".join(name if name in schema["required"] else f"[{name}]" for name in schema["properties"])


@command("runs")
def list_runs(agents: AgentsHandle) -> None:
    """List the workflows, swarms and debates you own or are in.

    \b
    Example:  alcove runs
    """
    runs = by_offset(agents.list_runs, limit=sys.maxsize, most=_MOST_RUNS)
    show_table(runs, "kind, id, owner, members", empty="no runs")


run = click.Group("run", help="Open a workflow, swarm or debate, say who is in it, and close it.")


@command("open", group=run, make=True)
def open_run(agents: AgentsHandle, kind: str, members: Sequence[str], id: str | None = None) -> None:
    """Open a run for several users.

    \b
    KIND is workflow, swarm or debate. Without an ID it gets one that nobody guesses.
    Example:  alcove run open workflow --member bob
    """
    _tell(agents.open_run(kind, id, members))


@command("change", group=run)
def change_run(agents: AgentsHandle, kind: str, id: str, members: Sequence[str]) -> None:
    """Say who is in a run; only its owner may.

    \b
    Who is not named is let out, but for the owner.
    Example:  alcove run change workflow w1 --member bob --member carol
    """
    _tell(agents.change_run(kind, id, members))


def _tell(run: Run) -> None:
    show(run, f"{run.kind} {plain(run.id)}: {plain(', '.join(run.members))}")


@command("close", group=run)
def close_run(agents: AgentsHandle, kind: str, id: str, *, yes: bool) -> None:
    """Close a run and take its rooms away; only its owner may.

    \b
    Example:  alcove run close workflow w1 --yes
    """
    confirm(f"Close the {kind} {plain(id)} and take its rooms away, for good?", yes=yes)
    agents.close_run(kind, id)
    show({"closed": id}, f"closed {kind} {plain(id)}")


room = click.Group("room", help="Show how a scratch room is used, watch it, or empty it.")


@command("stats", group=room)
def room_stats(agents: AgentsHandle, agent: str, kind: str, instance: str | None) -> None:
    """Show how much a room holds, and how it was used in the last thirty days.

    \b
    KIND is global, workflow, swarm, debate, session or agent, and INSTANCE the id of the run or session.
    Example:  alcove room stats researcher workflow w1
    """
    show(agents.room_stats(agent, kind, instance))


@command("watch", group=room)
def watch_room(agents: AgentsHandle, agent: str, kind: str, instance: str | None) -> None:
    """Print what happens in a room, until interrupted or let out.

    \b
    Example:  alcove room watch researcher workflow w1
    """
    show_coming(agents.watch_room(agent, kind, instance))


@command("reset", group=room)
def reset_room(agents: AgentsHandle, agent: str, kind: str, instance: str | None, *, yes: bool) -> None:
    """Empty a room; its versions start at 1 again.

    \b
    A run's only for its owner, global only for an admin.
    Example:  alcove room reset researcher workflow w1 --yes
    """
    named = plain(f"{kind} {instance or ''}".rstrip())
    confirm(f"Empty the room {named}, for good?", yes=yes)
    agents.reset_room(agent, kind, instance)
    show({"reset": named}, f"emptied {named}")


@command(make=True)
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE|JSON|-]...")
@click.option("--session", help="In this session.")
@click.option("--instance", "runs", multiple=True, metavar="KIND=ID",
              help="In this workflow, swarm or debate.")  # fmt: skip
def call(
    agents: AgentsHandle, agent: str, tool: str, arguments: tuple[str, ...], session: str | None,
    team: str | None, runs: tuple[str, ...],
) -> None:  # fmt: skip
    """Call a tool of an agent.

    \b
    Examples:
      alcove call researcher remember key=tea content="green tea" --as-user alice
      alcove call fighter shared_memory_read namespace=workflow key=log --instance workflow=w1
    """
    schemas = {each["name"]: each["inputSchema"] for each in agents.tools(agent, "mcp", team)}
    instances = dict(pair(word, "--instance") for word in runs)
    properties = schemas.get(tool, {}).get("properties", {})
    texts = {name for name, schema in properties.items() if schema.get("type") == "string"}
    said = given(arguments, "ARGUMENTS", texts)  # where the tool wants a text, `key=7` is one
    answer = agents.call_with(agent, tool, said, session_id=session, team=team, instances=instances)
    show(answer._asdict(), plain(answer.text, keep="\n"))


COMMANDS: list[click.Command] = [list_agents, show_agent, call, room, list_runs, run]
