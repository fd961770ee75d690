"""An agent's memory for programs that speak the Model Context Protocol over stdin and stdout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from alcove.cli.store import command, pair

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from alcove.api.operation import Operation
    from alcove.client.store import AgentsHandle, Transport
    from alcove.core.principal import Principal
    from alcove.integrations.mcp import Connected

_FILE_SECONDS, _SERVER_SECONDS = 1.0, 5.0
"""Between looks whether an agent's tools have changed; each is a request, where a server has them."""


@command("mcp", make=True, needs_specs=False)
@click.option("--agent", required=True, metavar="NAME", help="The agent whose memory it is.")
@click.option("--session", help="In this session.")
@click.option("--instance", "runs", multiple=True, metavar="KIND=ID",
              help="In this workflow, swarm or debate; may be repeated.")  # fmt: skip
def mcp(
    agents: AgentsHandle, agent: str, session: str | None, team: str | None, runs: tuple[str, ...]
) -> None:
    """Serve an agent's memory to an MCP client, over stdin and stdout.

    \b
    The client starts it: put the command into its configuration (docs/mcp.md).
    Without --agents, an agent of any name has memory_remember, memory_recall and
    memory_forget.
    Examples:
      alcove mcp --agent helper --at memory.db --as-user alice
      alcove mcp --agent researcher --at memory.db --agents agents.yaml --as-user alice
      alcove mcp --agent researcher --at http://127.0.0.1:8080 --token …
    """
    from alcove.client.embedded import LocalTransport  # noqa: PLC0415  --help does without
    from alcove.integrations.mcp import Connected, Memory, make_server  # noqa: PLC0415

    server, transport = make_server(), agents.transport
    agents.tools(agent, "mcp", team)  # refuses an agent or a team that is not there
    direct = transport.services["Agents"].direct if isinstance(transport, LocalTransport) else None
    at = Connected(
        Memory(InThreads(transport, direct)),
        agent,
        session,
        team,
        dict(pair(word, "--instance") for word in runs),
        look_seconds=_FILE_SECONDS if direct else _SERVER_SECONDS,
    )
    asyncio.run(_serve(server, at))


class InThreads:
    """The operations of a handle that blocks, each call in a thread so that it can be awaited."""

    def __init__(self, transport: Transport, direct: Callable[[Principal], Principal] | None) -> None:
        """`direct`: gives a principal who may also read pools and teams, where no server does that."""
        self._transport, self._direct = transport, direct

    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]:
        transport = self._transport
        if self._direct:
            transport = transport.as_principal(self._direct(transport.principal))
        return partial(asyncio.to_thread, transport.bound(operation))


async def _serve(server: Server[Connected], at: Connected) -> None:
    """Answers until stdin ends; whatever else is printed meanwhile goes to stderr."""
    from mcp.server.lowlevel import NotificationOptions  # noqa: PLC0415
    from mcp.server.stdio import stdio_server  # noqa: PLC0415

    @asynccontextmanager
    async def connected(_: object) -> AsyncIterator[Connected]:
        yield at

    server.lifespan = connected
    options = server.create_initialization_options(
        NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
    )
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, options)
