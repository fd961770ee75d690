"""Anthropic's memory tool with its files in Alcove.

Run it: pip install '.[anthropic]', then python examples/anthropic_memory_tool.py

With ANTHROPIC_API_KEY set it talks with Claude, otherwise with a stand-in that writes and reads notes.
"""

from __future__ import annotations

import json
import os
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
from anthropic import Anthropic

from alcove import Alcove
from alcove.integrations.anthropic_memory import AlcoveMemoryTool


def main(folder: Path) -> None:
    with Alcove(folder / "memory.db") as memory, client() as claude:
        alice, bob = memory.as_user("alice"), memory.as_user("bob")
        for message in ("I drink green tea. Note that.", "What do I drink?"):
            runner = claude.beta.messages.tool_runner(
                model="claude-sonnet-5-5",
                max_tokens=1000,
                messages=[{"role": "user", "content": message}],
                tools=[AlcoveMemoryTool(alice, "assistant")],
            )
            answer = runner.until_done().content[-1]
            print(f"{message:<30}", answer.text if answer.type == "text" else answer.type)

        for file in alice.search("agent:assistant:u:alice:memories"):
            print("alice's file:        ", file.key, json.dumps(file.value["content"]))
        print("bob's files:         ", bob.search("agent:assistant:u:bob:memories") or "none")


def client() -> Anthropic:
    """Claude if there is an API key, otherwise a stand-in with scripted answers."""
    if os.environ.get("ANTHROPIC_API_KEY"):
        return Anthropic()
    script: list[dict[str, Any]] = [
        use(command="view", path="/memories"),
        use(command="create", path="/memories/tea.md", file_text="Drinks tea.\n"),
        use(command="str_replace", path="/memories/tea.md", old_str="tea", new_str="green tea"),
        {"type": "text", "text": "I have noted that."},
        use(command="view", path="/memories/tea.md"),
        {"type": "text", "text": "My notes say that you drink green tea."},
    ]

    def answer(request: httpx2.Request) -> httpx2.Response:
        block = script.pop(0)
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "stand-in", "content": [block],
            "stop_reason": "tool_use" if block["type"] == "tool_use" else "end_turn", "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }  # fmt: skip
        return httpx2.Response(200, json=message)

    return Anthropic(api_key="none", http_client=httpx2.Client(transport=httpx2.MockTransport(answer)))


NUMBERS = count(1)


def use(**command: str) -> dict[str, Any]:
    """A call of the memory tool in the form that Claude sends."""
    return {"type": "tool_use", "id": f"toolu_{next(NUMBERS)}", "name": "memory", "input": command}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
