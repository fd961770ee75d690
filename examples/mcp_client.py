"""An agent's memory through the Model Context Protocol.

Run it: pip install '.[mcp]', then python examples/mcp_client.py
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import ContentBlock, TextContent

SPECS = "agents: [{name: researcher, instructions: You help with research., memory: {private: {}}}]"


async def main(folder: Path) -> None:
    (folder / "agents.yaml").write_text(SPECS)
    options = ["--at", "memory.db", "--agents", "agents.yaml", "--as-user", "alice"]
    arguments = ["-m", "alcove", "mcp", "--agent", "researcher", *options]
    server = StdioServerParameters(command=sys.executable, args=arguments, cwd=folder)

    async with Client(stdio_client(server)) as client:
        print("tools:   ", [tool.name for tool in (await client.list_tools()).tools])

        stored = await client.call_tool("remember", {"key": "tea", "content": "Alice drinks green tea"})
        print("stored:  ", text(stored.content[0]))
        wrong = await client.call_tool("recall", {"key": "coffee"})
        print("wrong:   ", wrong.is_error, text(wrong.content[0]))

        for memory in (await client.list_resources()).resources:
            print("memory:  ", memory.uri)

        prompt = await client.get_prompt("context", {"message": "What shall I pour?"})
        print("prompt:  ", *(text(message.content) for message in prompt.messages), sep="\n  ")


def text(content: ContentBlock) -> str:
    assert isinstance(content, TextContent)
    return content.text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
