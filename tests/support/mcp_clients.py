"""MCP's official client, connected to a server at a URL or to `alcove mcp`; and plain JSON-RPC."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.session import MessageHandlerFnT
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.support.service import COMMAND, Service, environment
from tests.support.waiting import PATIENCE

MODES = ("legacy", "auto")
"""The protocols until 2025-11-25, whose clients say hello first; and the one since 2026-07-28."""
TAKES = {"accept": "application/json, text/event-stream"}


@asynccontextmanager
async def at_url(
    url: str, token: str | None = None, *, mode: str = "auto", heard: MessageHandlerFnT | None = None
) -> AsyncIterator[Client]:
    """A client of `/mcp/{agent}`; `heard` is told of each notification."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE, trust_env=False) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode, message_handler=heard) as client:
            yield client


@asynccontextmanager
async def at_stdio(
    folder: Path, *words: object, mode: str = "auto", heard: MessageHandlerFnT | None = None
) -> AsyncIterator[Client]:
    """A client of `alcove mcp`, which is started in this folder with these words."""
    program, *first = COMMAND
    assert program == sys.executable
    parameters = StdioServerParameters(
        command=program,
        args=[*first, "mcp", *map(str, words)],
        cwd=folder,
        env=environment(ALCOVE_EMBEDDER="none"),
    )
    with (folder / "stderr").open("a") as complaints:
        transport = stdio_client(parameters, errlog=complaints)
        async with Client(transport, mode=mode, message_handler=heard) as client:
            yield client


async def tool_names(client: Client) -> list[str]:
    return [each.name for each in (await client.list_tools()).tools]


async def called(client: Client, tool: str, /, **arguments: Any) -> str:
    """What a tool says that works."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer
    return text_of(answer)


async def failed(client: Client, tool: str, /, **arguments: Any) -> str:
    """What a tool says that does not: one short line."""
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error, answer
    said = text_of(answer)
    assert said.startswith("error: ")
    assert "\n" not in said
    return said


def text_of(answer: Any) -> str:
    (content,) = answer.content
    return str(content.text)


def rpc(service: Service, path: str, method: str, token: str | None = None, **more: Any) -> httpx.Response:
    """One request of JSON-RPC, with parameters and headers if some are given."""
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": more.pop("params", {})}
    headers = {**TAKES, **more.pop("headers", {})}
    return service.call("POST", path, token, json=body, headers=headers, **more)


def refused(work: Any) -> str:
    """Why something fails that a client does."""
    with pytest.raises((MCPError, ExceptionGroup)) as failure:
        run(work)
    return _words(failure.value)


def _words(error: BaseException) -> str:
    """What an error says, and those that it is a group of."""
    return " ".join([str(error), *map(_words, getattr(error, "exceptions", ()))])


def run(work: Any) -> Any:
    """What a coroutine gives, unless it never does."""

    async def in_time() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await work

    return asyncio.run(in_time())
