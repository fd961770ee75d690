"""An agent's memory for programs that speak the Model Context Protocol over stdin and stdout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from alcove.cli.command import command, parse_pair

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from alcove.api.operation import Operation
    from alcove.client.store import AgentsHandle, Transport
    from alcove.core.principal import Principal
    from alcove.integrations.mcp import McpAgent

_FILE_POLL_SECONDS, _SERVER_POLL_SECONDS = 1.0, 5.0
"""How often to check whether an agent's tools have changed; with a server, each check is a request."""


@command("mcp", creates=True, needs_specs=False)
@click.option("--agent", required=True, metavar="NAME", help="The agent whose memory to serve.")
def mcp(
    agents: AgentsHandle, agent: str, session_id: str | None, team: str | None, runs: tuple[str, ...]
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
    from alcove.client.embedded import LocalTransport  # noqa: PLC0415  not needed for --help
    from alcove.integrations.mcp import McpAgent, McpOperations, make_server  # noqa: PLC0415

    server, transport = make_server(), agents.transport
    agents.tools(agent, "mcp", team)  # refuses an unknown agent or team
    grant = transport.services["Agents"].direct if isinstance(transport, LocalTransport) else None
    connection = McpAgent(
        McpOperations(ThreadedTransport(transport, grant)),
        agent,
        session_id,
        team,
        dict(parse_pair(word, "--instance") for word in runs),
        poll_seconds=_FILE_POLL_SECONDS if grant else _SERVER_POLL_SECONDS,
    )
    asyncio.run(_serve(server, connection))


class ThreadedTransport:
    """Runs the operations of a blocking transport in threads, so that they can be awaited."""

    def __init__(self, transport: Transport, grant: Callable[[Principal], Principal] | None) -> None:
        """`grant` lets a principal read pools and teams, too; a server does that itself."""
        self._transport, self._grant = transport, grant

    def bound(self, operation: Operation[..., Any]) -> Callable[..., Any]:
        transport = self._transport
        if self._grant:
            transport = transport.as_principal(self._grant(transport.principal))
        return partial(asyncio.to_thread, transport.bound(operation))


async def _serve(server: Server[McpAgent], connection: McpAgent) -> None:
    """Answers until stdin ends; anything else that is printed goes to stderr."""
    from mcp.server.lowlevel import NotificationOptions  # noqa: PLC0415
    from mcp.server.stdio import stdio_server  # noqa: PLC0415

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[McpAgent]:
        yield connection

    server.lifespan = lifespan
    options = server.create_initialization_options(
        NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
    )
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, options)
