"""What docs/mcp.md shows works as it stands there: each configuration connects, each command runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.support.mcp_clients import run
from tests.support.service import COMMAND, Service, environment, serving
from tests.support.tokens import FLAGS, token

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
SPECS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
SECTIONS = re.split(r"\n\*\*(Claude Code|Claude Desktop|Cursor|VS Code)\*\*", PAGE)[1:]
CONFIGURATIONS = [
    (client, json.loads(text))
    for client, section in zip(SECTIONS[::2], SECTIONS[1::2], strict=True)
    for text in re.findall(r"```json\n(.*?)```", section, re.DOTALL)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page says `/path/to`."""
    folder = tmp_path_factory.mktemp("mcp-page")
    (folder / "agents.yaml").write_text(SPECS)
    (folder / "bin").mkdir()
    (alcove := folder / "bin" / "alcove").write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    alcove.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    at = tmp_path_factory.mktemp("mcp-page-served")
    with serving(at, *FLAGS, "--agents", folder / "agents.yaml", "--embedder", "none") as running:
        yield running


def here(shown: Any, folder: Path, service: Service) -> Any:
    """An example with the paths, the address and the token that a test has."""
    text = shown if isinstance(shown, str) else json.dumps(shown)
    for there, ours in (
        ("/path/to", str(folder)),
        ("http://127.0.0.1:8080", service.url),
        ("localhost:8080", service.url),
        ("${input:alcove-token}", token("alice")),
        ("TOKEN", token("alice")),
    ):
        text = re.sub(rf"(?<![\w]){re.escape(there)}(?!\w)", lambda _, ours=ours: ours, text)  # type: ignore[misc]
    return text if isinstance(shown, str) else json.loads(text)


def test_every_client_has_a_configuration_for_a_file_and_one_for_a_server() -> None:
    kinds = {(client, "8080" in json.dumps(each)) for client, each in CONFIGURATIONS}
    names = ("Claude Code", "Claude Desktop", "Cursor", "VS Code")
    assert kinds == {(name, served) for name in names for served in (True, False)}


def test_each_configuration_leads_to_the_tools_of_the_agent(folder: Path, service: Service) -> None:
    path = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "ALCOVE_EMBEDDER": "none"}
    tried = []
    for client, configuration in CONFIGURATIONS:
        assert ("servers" if client == "VS Code" else "mcpServers") in configuration
        ((_, server),) = (configuration.get("servers") or configuration["mcpServers"]).items()
        server.pop("type", None)
        if server in tried:
            continue  # clients have it in common
        tried.append(server)
        ours = here(server, folder, service)
        assert "remember" in run(_tools(ours, environment(**path)))
    assert len(tried) == 4


async def _tools(server: dict[str, Any], env: dict[str, str]) -> list[str]:
    """What a client finds that is configured like this."""
    if "url" in server:
        async with (
            httpx2.AsyncClient(headers=server["headers"], trust_env=False) as http,
            Client(streamable_http_client(server["url"], http_client=http)) as client,
        ):
            return [tool.name for tool in (await client.list_tools()).tools]
    parameters = StdioServerParameters(
        command=server["command"], args=server["args"], env={**env, **server.get("env", {})}
    )
    with Path(os.devnull).open("w") as nowhere:
        async with Client(stdio_client(parameters, errlog=nowhere)) as client:
            return [tool.name for tool in (await client.list_tools()).tools]


def test_the_commands_of_the_page_do_what_it_says(folder: Path, service: Service) -> None:
    kinds = [line.split()[0:2] for line in COMMANDS]
    assert [" ".join(each) for each in kinds] == [
        "alcove mcp", "alcove serve", "curl -s", "claude mcp", "claude mcp",
    ]  # fmt: skip
    first, _, curl, stdio, http = COMMANDS
    done = subprocess.run(
        [*COMMAND, *first.split()[1:]], cwd=folder, env=environment(ALCOVE_EMBEDDER="none"), check=True,
        capture_output=True, text=True,
        input='{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n',
    )  # fmt: skip
    assert json.loads(done.stdout)["id"] == 1
    asked = here(curl, folder, service) + f" -H 'Authorization: Bearer {token('alice')}'"
    answer = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True).stdout
    assert [each["name"] for each in json.loads(answer)["result"]["tools"]][:1] == ["remember"]
    files = [each for _, each in CONFIGURATIONS]
    server = files[0]["mcpServers"]["alcove"]
    assert shlex.split(stdio)[5:] == [server["command"], *server["args"]]
    served = files[1]["mcpServers"]["alcove"]
    header = "Authorization: " + served["headers"]["Authorization"]
    assert shlex.split(http)[3:] == ["--transport", "http", "alcove", served["url"], "--header", header]


def test_the_example_runs() -> None:
    script = ROOT / "examples" / "mcp_client.py"
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True,
        env=environment(ALCOVE_EMBEDDER="none"),
    )  # fmt: skip
    assert "memory:   alcove://agent/researcher/u/alice/tea" in done.stdout
    assert "wrong:    True error: there is nothing under 'coffee'" in done.stdout
    assert 'tea: "Alice drinks green tea"' in done.stdout
