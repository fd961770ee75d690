"""A service whose agents talk with a scripted model, and users who talk with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from tests.support.conversing import Salon, Talker, at
from tests.support.llm_server import LLMServer
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS

KEY = "sk-upstream-4f1d0c9ab7-nobody-should-see-this"
SPECS = """
agents:
  - name: bare
    instructions: You have no memory.
  - name: auto
    auto_memory: true
  - name: talk
    instructions: You talk.
    memory: {conversation: {window_size: 6}}
  - name: bot
    instructions: You remember.
    memory: &memory
      private: {}
      pools: ["org:open"]
      scratch: [global, workflow, session, agent]
      conversation: {}
      facts: {}
      long_term: {}
  - name: scout
    memory: {private: {}, conversation: {}}
  - name: secret
    shared_with: [carol, "group:staff"]
    memory: {conversation: {}}
teams:
  - {name: crew, workers: [talk, scout, bot]}
  - {name: rowers, workers: [talk, scout, bot], mode: parallel}
  - {name: mixed, workers: [talk, secret, scout]}
  - {name: closed, workers: [talk], shared_with: ["group:staff"]}
"""


class Chatter(Talker):
    """A user who talks with agents that a model speaks for."""

    def tries(self, agent: str, session: str, message: str, **more: Any) -> httpx.Response:
        """What is answered to a message, whatever that is."""
        asked = {name: more.pop(name) for name in ("headers", "timeout") if name in more}
        body = {"session_id": session, "message": message, **more}
        return self.ask("POST", f"/v1/agents/{quote(agent, safe='')}/chat", json=body, **asked)

    def chat(self, agent: str, session: str, message: str, **more: Any) -> Any:
        """The reply to a message."""
        answer = self.tries(agent, session, message, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def hears(self, agent: str, session: str, message: str, **more: Any) -> list[tuple[str, Any]]:
        """The events of a turn."""
        answer = self.tries(agent, session, message, **{"stream": True, **more})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/event-stream"
        return events(answer.text)

    def runs(self, team: str, task: str, **more: Any) -> Any:
        """What a team makes of a task."""
        answer = self.ask("POST", f"/v1/teams/{team}/run", json={"task": task, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def kept(self, agent: str, session: str) -> list[tuple[str, str | None]]:
        """What is kept of a session: who said what."""
        answer = self.ask("GET", at(agent, session))
        assert answer.status_code in (200, 404), answer.text
        said = answer.json()["said"] if answer.status_code == 200 else []
        return [(each["role"], each.get("content")) for each in said]


class Parlour(Salon):
    """A table at which chatters sit, and the model that speaks to them."""

    def __init__(self, service: Service, specs: Path, llm: LLMServer) -> None:
        super().__init__(service, specs)
        self.llm = llm

    def chatter(self, name: str = "chatter", **claims: Any) -> Chatter:
        return Chatter(self.service, f"{name}-{self.new_id()}", **claims)


@contextmanager
def chatting(folder: Path, llm: LLMServer, *flags: object, specs: str = SPECS) -> Iterator[Parlour]:
    """A service with agents that this model speaks for, as OpenAI's does unless the flags say otherwise."""
    (path := folder / "agents.yaml").write_text(specs)
    reached = [] if "--llm-url" in flags else ["--llm-url", llm.url]
    own = [*reached, "--llm-key", KEY, "--llm-model", "scripted", "--embedder", "none"]
    with serving(folder, *FLAGS, "--agents", path, *own, *flags) as service:
        yield Parlour(service, path, llm)


def events(text: str) -> list[tuple[str, Any]]:
    """Server-sent events: the name of each, or what its data is of, and the data."""
    found = []
    for event in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.splitlines())
        if "data" in fields:
            data = json.loads(fields["data"])
            (kind,) = [fields["event"]] if "event" in fields else data.keys()
            found.append((kind, data if "event" in fields else data[kind]))
    return found


def told(messages: list[dict[str, Any]]) -> str:
    """All that a model was sent."""
    return json.dumps(messages, ensure_ascii=False)
