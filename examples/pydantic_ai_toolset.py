"""A Pydantic AI agent with Alcove's memory tools.

Run it: pip install '.[pydantic-ai]', then python examples/pydantic_ai_toolset.py

With ANTHROPIC_API_KEY set it talks with Claude, otherwise with a stand-in that calls the right tool.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from alcove import Alcove
from alcove.integrations.pydantic_ai import AlcoveToolset


def main(folder: Path) -> None:
    model = "anthropic:claude-sonnet-5-5" if os.environ.get("ANTHROPIC_API_KEY") else FunctionModel(stand_in)
    with Alcove(folder / "memory.db") as memory:
        alice, bob = (memory.as_user(user).agent("assistant") for user in ("alice", "bob"))

        agent = Agent(model, toolsets=[AlcoveToolset(alice)])
        print("alice tells:         ", agent.run_sync("Remember that I drink green tea.").output)
        print("alice recalls:       ", agent.run_sync("What do I drink?").output)
        agent = Agent(model, toolsets=[AlcoveToolset(bob)])
        print("bob recalls:         ", agent.run_sync("What do I drink?").output)

        print("tools:               ", [tool["name"] for tool in alice.tools("mcp")])
        print(
            "recorded calls:      ",
            [(call.tool, call.outcome) for call in alice.agents.calls_of("assistant")],
        )


def stand_in(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """A model that calls `memory_remember` or `memory_recall`, and repeats the tool's answer."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(str(last.content))])
    assert isinstance(last, UserPromptPart)
    message = str(last.content)
    if message.startswith("Remember"):
        call = ToolCallPart("memory_remember", {"content": "Drinks green tea.", "type": "preference"})
    else:
        call = ToolCallPart("memory_recall", {"query": message})
    return ModelResponse(parts=[call])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
