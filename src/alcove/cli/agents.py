"""Commands for agents: their specs, tools and rooms, calls of tools, and runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from alcove.cli.command import by_offset, command, parse_object, parse_pair
from alcove.cli.memories import follow_events
from alcove.cli.output import as_json, confirm, count, escape, show, show_table, to_json
from alcove.core.settings import Settings

if TYPE_CHECKING:
    from alcove.agents.runs import Run
    from alcove.client.store import AgentsHandle

_MAX_RUNS = 100


@command("agents", cls=click.Group, invoke_without_command=True)
@click.option("--teams", is_flag=True, help="List the teams instead.")
def list_agents(agents: AgentsHandle, *, teams: bool) -> None:
    """List the agents or teams you may use, or check and convert specs.

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
              tools=lambda agent: len(agents.tools(agent.name)),
              rooms=lambda agent: _list_rooms(agent.memory))  # fmt: skip


def _list_rooms(memory: Any) -> str:
    blocks = [name for name in ("private", "facts", "long_term") if getattr(memory, name).enabled]
    pools = [count(len(memory.pools), "pool")] if memory.pools else []
    return ", ".join([*blocks[:1], *pools, *memory.scratch, *blocks[1:]])


assert isinstance(list_agents, click.Group)


@command(group=list_agents)
@click.argument("path", metavar="FILE|FOLDER")
@click.option("--max-depth", envvar="ALCOVE_MAX_DEPTH", default=Settings().max_depth,
              help="Maximum segments of a namespace.")  # fmt: skip
def check(path: str, max_depth: int) -> None:
    """Check specs, without a store.

    \b
    Lists all problems at once; the exit code is then 2.
    Example:  alcove agents check agents.yaml
    """
    from alcove.agents.specs.loading import load  # noqa: PLC0415  loads YAML, which few commands need

    specs = load(path, max_depth=max_depth)
    _show_warnings(specs.warnings)
    names = {"agents": sorted(specs.agents), "teams": sorted(specs.teams), "warnings": specs.warnings}
    show(names, f"ok: {count(len(specs.agents), 'agent')}, {count(len(specs.teams), 'team')}")


@command(group=list_agents)
@click.argument("path", metavar="FILE|FOLDER", type=click.Path(path_type=Path))
def convert(path: Path) -> None:
    """Print specs of any accepted form in Alcove's own form.

    \b
    Needs no store. Fields for other programs are left out, each with a warning.
    Example:  alcove agents convert theirs.yaml > agents.yaml
    """
    from alcove.agents.specs import loading  # noqa: PLC0415  loads YAML, which few commands need

    specs = loading.read_valid_specs(path)
    _show_warnings(specs.warnings)
    show(loading.to_own_form(specs), loading.to_yaml(specs).rstrip("\n"))


def _show_warnings(warnings: Sequence[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {escape(warning)}", err=True)


@command("agent")
@click.argument("view", type=click.Choice(["spec", "tools", "memory", "calls", "usage"]), default="spec")
@click.option("--format", type=click.Choice(["openai", "responses", "anthropic", "mcp"]), default="openai",
              help="The form of tools with --json.")  # fmt: skip
def show_agent(
    agents: AgentsHandle, agent: str, view: str, format: str, team: str | None, limit: int
) -> None:
    """Show an agent's spec, tools, rooms, calls, or token usage.

    \b
    Examples:
      alcove agent researcher tools --json --format anthropic
      alcove agent researcher memory --as-user alice
    """

    def signature(tool: Any) -> str:
        schema = tool["inputSchema"]
        names = schema["properties"]
        return ", ".join(name if name in schema["required"] else f"[{name}]" for name in names)

    match view:
        case "spec":
            spec = agents.spec(agent)
            show(spec, escape(to_json(spec)))
        case "tools":
            tools = agents.tools(agent, format if as_json() else "mcp", team)
            columns = "tool=name, arguments, about=description"
            show_table(tools, columns, arguments=signature, empty="no tools")
        case "memory":
            show_table(agents.rooms(agent), "room, namespace, memories", empty="no rooms")
        case "usage":
            columns = "day, user, turns, prompt=prompt_tokens, answers=completion_tokens"
            show_table(agents.usage(agent), columns, empty="no turns")
        case _:
            columns = "when=at, user, tool, outcome, ms:.1f, session"
            show_table(agents.calls_of(agent, limit), columns, empty="no calls")


@command("runs")
def list_runs(agents: AgentsHandle) -> None:
    """List the workflows, swarms and debates you own or are a member of.

    \b
    Example:  alcove runs
    """
    runs = by_offset(agents.list_runs, limit=sys.maxsize, page_size=_MAX_RUNS)
    show_table(runs, "kind, id, owner, members", empty="no runs")


run = click.Group("run", help="Open a workflow, swarm or debate, change its members, and close it.")


@command("open", group=run, creates=True)
def open_run(agents: AgentsHandle, kind: str, members: Sequence[str], id: str | None = None) -> None:
    """Open a run, for several users.

    \b
    KIND is workflow, swarm or debate. Without an ID, the run gets a random one.
    Example:  alcove run open workflow --member bob
    """
    _show_run(agents.open_run(kind, id, members))


@command("change", group=run)
def change_run(agents: AgentsHandle, kind: str, id: str, members: Sequence[str]) -> None:
    """Set the members of a run; only its owner may.

    \b
    Members that you do not name lose access, except for the owner.
    Example:  alcove run change workflow w1 --member bob --member carol
    """
    _show_run(agents.change_run(kind, id, members))


def _show_run(run: Run) -> None:
    show(run, f"{run.kind} {escape(run.id)}: {escape(', '.join(run.members))}")


@command("close", group=run)
def close_run(agents: AgentsHandle, kind: str, id: str, *, yes: bool) -> None:
    """Close a run and delete its rooms; only its owner may.

    \b
    Example:  alcove run close workflow w1 --yes
    """
    confirm(f"Close the {kind} {escape(id)} and delete its rooms for good?", yes=yes)
    agents.close_run(kind, id)
    show({"closed": id}, f"closed {kind} {escape(id)}")


room = click.Group("room", help="Show how a scratch room is used, watch it, or empty it.")


@command("stats", group=room)
def room_stats(agents: AgentsHandle, agent: str, kind: str, instance: str | None) -> None:
    """Count what is in a room, and its use in the last thirty days.

    \b
    KIND is global, workflow, swarm, debate, session or agent, and INSTANCE the id of the run or session.
    Example:  alcove room stats researcher workflow w1
    """
    show(agents.room_stats(agent, kind, instance))


@command("watch", group=room)
def watch_room(agents: AgentsHandle, agent: str, kind: str, instance: str | None) -> None:
    """Print what happens in a room, until you interrupt it or lose access.

    \b
    Example:  alcove room watch researcher workflow w1
    """
    follow_events(agents.watch_room(agent, kind, instance))


@command("reset", group=room)
def reset_room(agents: AgentsHandle, agent: str, kind: str, instance: str | None, *, yes: bool) -> None:
    """Empty a room; its versions start at 1 again.

    \b
    Only the owner of a run may empty its room, and only an admin the global one.
    Example:  alcove room reset researcher workflow w1 --yes
    """
    name = escape(f"{kind} {instance or ''}".rstrip())
    confirm(f"Empty the room {name} for good?", yes=yes)
    agents.reset_room(agent, kind, instance)
    show({"reset": name}, f"emptied {name}")


@command(creates=True, takes="session_id, team, runs")
@click.argument("tool")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE|JSON|-]...")
def call(agents: AgentsHandle, agent: str, tool: str, arguments: Sequence[str], **location: Any) -> None:
    """Call a tool of an agent.

    \b
    Examples:
      alcove call researcher remember key=tea content="green tea" --as-user alice
      alcove call fighter shared_memory_read namespace=workflow key=log --instance workflow=w1
    """
    schemas = {each["name"]: each["inputSchema"] for each in agents.tools(agent, "mcp", location["team"])}
    location["instances"] = dict(parse_pair(word, "--instance") for word in location.pop("runs"))
    properties = schemas.get(tool, {}).get("properties", {})
    texts = {name for name, schema in properties.items() if schema.get("type") == "string"}
    values = parse_object(arguments, "ARGUMENTS", texts)  # `key=7` is a text if the tool expects one
    answer = agents.call_with(agent, tool, values, **location)
    show(answer._asdict(), escape(answer.text, keep="\n"))


COMMANDS: list[click.Command] = [list_agents, show_agent, call, room, list_runs, run]
