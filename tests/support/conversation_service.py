"""A service whose agents have every combination of tiers, and players who talk with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.agent_service import Player, Table

SPECS = """
knowledge:
  - {name: manuals, path: manuals, writers: [writer, "group:authors"]}
  - {name: secrets, path: secrets}
agents:
  - name: none
    instructions: You have no memory.
  - name: talk
    instructions: You talk.
    memory: {conversation: {window_size: 4, max_tokens: 500}}
  - name: running
    memory: {conversation: {window_size: 4, summarize: true}}
  - name: rolling
    memory: {session_memory: {idle_seconds: 1}}
  - name: notes
    memory: {private: {}}
  - name: facts
    memory: {facts: {}}
  - name: known
    memory: {long_term: {recall_budget: 3}}
  - name: reader
    memory: {knowledge: {sources: [manuals]}}
  - name: all
    instructions: You are a helpful assistant.
    auto_memory: true
    memory:
      private: {}
      conversation: {window_size: 6, summarize: true}
      session_memory: {idle_seconds: 3600}
      knowledge: {sources: [manuals]}
      facts: {}
      long_term: {}
"""
MANUAL = """# Espresso machine

## Descaling

Descale the machine every two months. Fill the tank with one litre of water and the sachet of citric acid,
press the steam button for five seconds, and let it run until the tank is empty.

## Warranty

The warranty lasts three years from the day of purchase and covers the pump and the boiler, not the seals.
"""


def written(folder: Path) -> Path:
    """The specs and the documents of their sources, in a folder."""
    for name, text in (
        ("manuals/espresso.md", MANUAL),
        ("secrets/codes.md", "# Codes\n\nThe door code is 4711.\n"),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (specs := folder / "agents.yaml").write_text(SPECS)
    return specs


class Talker(Player):
    """A user who talks with agents."""

    def say(self, agent: str, session: str, *said: str) -> Any:
        """Adds messages to a session: the user's and the assistant's in turn."""
        roles = ("user", "assistant")
        messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
        return self.add(agent, session, *messages)

    def add(self, agent: str, session: str, *messages: dict[str, Any]) -> Any:
        answer = self.ask("POST", f"{at(agent, session)}/turns", json={"messages": [*messages]})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def context(self, agent: str, session: str, message: str, **more: Any) -> Any:
        body = {"session_id": session, "message": message, **more}
        answer = self.ask("POST", f"/v1/agents/{agent}/context", json=body)
        assert answer.status_code == 200, answer.text
        checked(answer.json(), message)
        return answer.json()

    def end(self, agent: str, session: str) -> Any:
        answer = self.ask("POST", f"{at(agent, session)}/end")
        assert answer.status_code == 200, answer.text
        return answer.json()


class Salon(Table):
    """A table at which talkers sit."""

    def talker(self, name: str = "talker", **claims: Any) -> Talker:
        return Talker(self.service, f"{name}-{self.new_id()}", **claims)


def at(agent: str, session: str) -> str:
    return f"/v1/agents/{agent}/sessions/{quote(session, safe='')}"


def text(context: Any) -> str:
    """All that a model is sent."""
    return "\n".join(message.get("content") or "" for message in context["messages"])


def checked(context: Any, message: str) -> None:
    """What holds for every context: numbers that add up, the message last, and nothing recalled in system."""
    receipt, messages = context["receipt"], context["messages"]
    tiers = receipt["tiers"]
    for tier in tiers.values():
        assert tier["tokens"] == tier["frame"] + sum(item["tokens"] for item in tier["items"])
    assert (
        receipt["total_tokens"] == sum(tier["tokens"] for tier in tiers.values()) <= receipt["budget_tokens"]
    )
    assert messages[0]["role"] == "system"
    assert {each["role"] for each in messages[1:]} <= {"user", "assistant", "tool"}
    assert messages[-1] == {"role": "user", "content": message}
    assert "<recalled from=" not in messages[0]["content"]
    assert sum(each["content"].count("</recalled>") for each in messages[1:] if each.get("content")) == sum(
        name in tiers for name in ("summary", "preamble", "running", "knowledge", "facts", "long_term")
    )
