"""A service whose agents talk with a scripted model, and users who talk with them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from msgspec import structs

from tests.support.conversation_service import Salon, Talker, at
from tests.support.llm_server import LLMServer, Play
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS
from tests.support.waiting import until

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

    def asking(self, number: int = 1) -> None:
        """Waits until the model is being asked by so many."""
        until(lambda: self.llm.waiting == number)

    def release(self, *answers: Play) -> None:
        """Cuts off whoever waits for the model: they ask again, and are told these."""
        self.llm.reset()
        self.llm.play(*answers)


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


# Several at once


def at_once(call: Any, *given: Any, **more: Any) -> Future[Any]:
    """Begins a call in a thread of its own."""
    threads = ThreadPoolExecutor(1)
    try:
        return threads.submit(call, *given, **more)
    finally:
        threads.shutdown(wait=False)


@contextmanager
def asked(who: Chatter, path: str, body: Any) -> Iterator[None]:
    """A request whose client goes away at the end of the `with`, without having read its answer."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {who.token}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", who.service.port)) as connection:
        connection.sendall(head.encode() + content)
        yield


class Tried:
    """What came of one message to a model that answers it in one way, however often it is asked."""

    def __init__(self, who: Chatter, message: str) -> None:
        self.who, self.message, self.asked = who, message, 0
        self.answer = httpx.Response(0)

    def tries(self, **more: Any) -> None:
        with suppress(httpx.TimeoutException):
            self.answer = self.who.tries("bot", "s", self.message, **more)

    @property
    def failed(self) -> str:
        """The code of its error, which may come after a part of the answer."""
        if self.answer.status_code == 200:
            return str(dict(events(self.answer.text))["error"]["code"])
        return str(self.answer.json()["code"]) if self.answer.status_code else "it did not end"


def all_tried(parlour: Parlour, plays: Mapping[str, Play], **more: Any) -> dict[str, Tried]:
    """A turn for each answer, all at once, each by a user of its own."""
    tried = {name: Tried(parlour.chatter(), f"case {n:03d}, please") for n, name in enumerate(plays)}
    scripted = (structs.replace(plays[name], when=each.message, always=True) for name, each in tried.items())
    parlour.llm.play(*scripted)
    with ThreadPoolExecutor(len(plays)) as threads:
        for done in [threads.submit(each.tries, **more) for each in tried.values()]:
            done.result()
    requests = [told(request.messages) for request in parlour.llm.requests]
    for each in tried.values():
        each.asked = sum(each.message in request for request in requests)
    return tried


def nothing_is_kept_until_it_works(parlour: Parlour, tried: Mapping[str, Tried]) -> None:
    """Whoever was not answered says the same again, and it is kept once."""
    for each in tried.values():
        assert each.who.kept("bot", "s") == []
        assert each.who.see("/v1/agents/bot/sessions")["sessions"] == []
    parlour.llm.reset()
    for each in tried.values():
        each.who.chat("bot", "s", each.message)
        assert each.who.kept("bot", "s") == [("user", each.message), ("assistant", "Hello.")]
