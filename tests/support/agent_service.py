"""A service with agents and JWT users: who calls which tool as whom, and what they are told."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from tests.support.service import Service, assert_error
from tests.support.tokens import token

CODES = {400: "invalid_request", 403: "permission_denied", 404: "not_found", 409: "conflict"}
SPECS = """
agents:
  - name: bot
    instructions: You remember.
    memory:
      private: {namespace: "agent:{agent_name}:{session_id}"}
      pools: ["org:docs", "project:{agent_name}-shared"]
      scratch: [global, workflow, swarm, debate, session, agent]
      facts: {max_facts: 3}
      long_term: {}
  - name: bot-2
    memory:
      private: {namespace: "{session_id}:agent:{agent_name}"}
      pools: ["org:docs"]
      scratch: [workflow, session, agent]
      facts: {namespace: common}
      long_term: {}
  - name: third
    memory: {facts: {namespace: common, max_facts: 2}, private: {}}
  - name: isolated
    memory: {private: {namespace: "solo:{session_id}:{agent_name}", session_isolated: true}}
  - name: plain
    memory: {private: {}}
  - name: "odd/name:1"
    memory: {private: {}, scratch: [agent]}
  - name: fighter
    memory: {scratch: [agent, workflow]}
  - name: "wf:fighter"
    memory: {scratch: [agent, workflow]}
  - name: secret
    shared_with: [carol, "group:staff"]
    memory: {private: {}, pools: ["org:secret"]}
  - name: owned
    owner: dora
    shared_with: []
    memory: {private: {}}
teams:
  - name: crew
    workers: [bot, bot-2]
  - name: closed
    workers: [bot, secret]
    shared_with: ["group:staff"]
  - name: silent
    workers: [bot]
    shared_memory_namespace: null
"""
_numbers = itertools.count(1)


class Player:
    """A user with a token."""

    def __init__(self, service: Service, name: str, **claims: Any) -> None:
        self.service = service
        self.name = name
        self.token = token(name, **claims)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.service.call(method, path, self.token, **more)

    def see(self, path: str, **params: Any) -> Any:
        """What a GET gives."""
        answer = self.ask("GET", path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def tried(self, agent: str, tool: str, /, *, where: Any = None, **given: Any) -> Any:
        path = f"/v1/agents/{quote(agent, safe='')}/tools/{quote(tool, safe='')}"
        return self.ask("POST", path, json={"arguments": given, **(where or {})})

    def call(self, agent: str, tool: str, /, *, where: Any = None, **given: Any) -> Any:
        """The structured result of a tool call that works."""
        answer = self.tried(agent, tool, where=where, **given)
        assert answer.status_code == 200, answer.text
        assert set(answer.json()) == {"result", "text"}
        assert answer.json()["text"]
        return answer.json()["result"]

    def refused(self, status: int, agent: str, tool: str, /, *, where: Any = None, **given: Any) -> str:
        """What a model is told by a tool call that does not work: one short line."""
        answer = self.tried(agent, tool, where=where, **given)
        said = str(assert_error(answer, status, CODES[status])["error"])
        assert "\n" not in said
        assert len(said) < 400
        return said

    def keys(self, agent: str, tool: str, /, **more: Any) -> list[str]:
        """The keys that a listing tool lists."""
        return [item["key"] for item in self.call(agent, tool, **more)["items"]]

    def put(self, *segments: str, key: str, value: Any = None) -> httpx.Response:
        """A direct write, without an agent."""
        return self.service.put([*segments], key, value or {"content": key}, self.token)


class Table:
    """The service, its specs, and new players whenever a test needs some."""

    def __init__(self, service: Service, specs: Path) -> None:
        self.service = service
        self.specs = specs
        self.admin = Player(service, "the operator", roles=["admin"])

    def player(self, name: str = "player", **claims: Any) -> Player:
        """Somebody whom no other test knows."""
        return Player(self.service, f"{name}-{next(_numbers)}", **claims)

    def known(self, name: str, **claims: Any) -> Player:
        return Player(self.service, name, **claims)

    def new_id(self) -> str:
        """An id for a run or a session that no other test uses."""
        return f"id-{next(_numbers)}"

    def brought(self, namespace: list[str], key: str, content: str, author: str | None) -> None:
        """Something from before: an admin's import keeps who wrote it."""
        line = {
            "namespace": namespace,
            "key": key,
            "value": {"content": content},
            "index": {"content": content},
            "written_by": {"user": author, "client": None, "agent": "bot"},
        }
        answer = self.admin.ask(
            "POST",
            "/v1/memories/import",
            content=json.dumps(line).encode() + b"\n",
            headers={"content-type": "application/x-ndjson"},
        )
        assert answer.json()["imported"] == 1, answer.text


def write(
    player: Player, kind: str, run: str | None, key: str = "k", agent: str = "bot", **given: Any
) -> Any:
    return player.call(agent, "shared_memory_write", where=at(kind, run), namespace=kind, key=key,
                       **{"value": 1, **given})  # fmt: skip


def at(kind: str, run: str | None) -> dict[str, Any]:
    if run is None:
        return {}
    return {"session_id": run} if kind == "session" else {"instances": {kind: run}}
