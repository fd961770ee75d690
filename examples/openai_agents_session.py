"""OpenAI's Agents SDK with sessions in Alcove.

Run it: pip install '.[openai-agents]', then python examples/openai_agents_session.py

With OPENAI_API_KEY set it talks with OpenAI, otherwise with a stand-in that knows only what it is sent.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from agents import Agent, Runner, set_tracing_disabled
from agents.models.interface import Model
from agents.testing import ModelStep, ScriptedModel, assistant_message
from agents.testing.model import ModelCall

from alcove import Alcove
from alcove.integrations.openai_agents import AlcoveSession


def main(folder: Path) -> None:
    set_tracing_disabled(True)  # otherwise the SDK sends the conversation to OpenAI
    agent = Agent(name="assistant", model=None if os.environ.get("OPENAI_API_KEY") else stand_in())
    with Alcove(folder / "memory.db") as memory:
        alice = memory.as_user("alice").agent("assistant", session_id="monday")
        bob = memory.as_user("bob").agent("assistant", session_id="monday")

        first = Runner.run_sync(agent, "I drink green tea.", session=AlcoveSession(alice))
        print("alice's first turn:  ", first.final_output)
        second = Runner.run_sync(agent, "What do I drink?", session=AlcoveSession(alice))
        print("alice's second turn: ", second.final_output)
        other = Runner.run_sync(agent, "What do I drink?", session=AlcoveSession(bob))
        print("bob's first turn:    ", other.final_output)

        print(
            "what Alcove stores:  ",
            [message.content for message in alice.agents.session("assistant", "monday").said],
        )
        memory.wipe("alice")
        print("alice, after a wipe: ", alice.agents.sessions("assistant"))


def stand_in() -> Model:
    """A model that repeats the earlier messages of the user."""

    def answer(call: ModelCall) -> ModelStep:
        earlier = [item["content"] for item in call.input[:-1] if item.get("role") == "user"]
        text = f"You told me: {' '.join(earlier)}" if earlier else "Hello. I know nothing of you yet."
        return ModelStep(output=[assistant_message(text)])

    return ScriptedModel([ModelStep.respond(answer)] * 3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
