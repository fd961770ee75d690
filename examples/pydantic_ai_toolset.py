"""A Pydantic AI agent with memory tools of Alcove.

Run it: pip install '.[pydantic-ai]', then python examples/pydantic_ai_toolset.py

With ANTHROPIC_API_KEY it talks with Claude; without, with a stand-in that does as it is told.
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
            "on record:           ",
            [(call.tool, call.outcome) for call in alice.agents.calls_of("assistant")],
        )


def stand_in(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """A model that remembers or recalls, and repeats what the tool answered."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(str(last.content))])
    assert isinstance(last, UserPromptPart)
    asked = str(last.content)
    if asked.startswith("Remember"):
        call = ToolCallPart("memory_remember", {"content": "Drinks green tea.", "type": "preference"})
    else:
        call = ToolCallPart("memory_recall", {"query": asked})
    return ModelResponse(parts=[call])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
