"""A scripted model that tries everything it can think of, for two users and two agents; nothing crosses.

What lies where is read afterwards, all of it, past every tool: each memory is where its writer may write, and
no answer of any call held a word that its caller had no right to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from tests.support.agent_service import Player
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS
from tests.support.waiting import LONG, PATIENCE

SPECS = """
agents:
  - name: red
    memory: &memory
      private: {}
      pools: ["org:open"]
      scratch: [global, workflow, swarm, debate, session, agent]
      facts: {}
      long_term: {}
  - name: "blue/u:red"
    memory: *memory
teams:
  - {name: crew, workers: [red]}
  - {name: alices, workers: [red, "blue/u:red"], shared_with: [alice]}
"""
AGENTS = ("red", "blue/u:red")
USERS = ("alice", "bob")
SCRATCH = ("global", "workflow", "swarm", "debate", "session", "agent")

UNDECLARED = (
    *("user_id", "user", "agent", "agent_name", "session_id", "team", "instances", "path", "owner", "grants"),
    *("claims", "room", "tenant", "as_user", "written_by", "__class__"),
)


def names(victim: str) -> list[Any]:
    """Spellings of somebody else's rooms, keys and ids, for every argument that takes a text."""
    rooms = [
        victim,
        "u",
        "user",
        "..",
        ".",
        "*",
        "%",
        f"u:{victim}",
        f"u%3A{victim}",
        f"u%253A{victim}",
        f"u/{victim}",
        f"u\0{victim}",
        f"u\1{victim}",
        f"../u/{victim}",
        f"..%2f..%2fu%2f{victim}",
        f"agent:red:u:{victim}",
        f"agent%3Ared%3Au%3A{victim}",
        f"agent:blue/u%3Ared:u:{victim}",
        f"user:{victim}:long-term:all",
        f"facts:red:u:{victim}",
        f"runs:workflow:secret-{victim}:u:{victim}",
        f"workflow:secret-{victim}",
        f"secret-{victim}",
        f"session:secret-{victim}:u:{victim}",
        f"agent-room:red:u:{victim}",
        "org:open",
        "team:alices",
        "{user_id}",
        "{session_id}",
        "' OR 1=1 --",
        "\0",
        "\ud800",
        f"\u202e{victim}",
        victim.upper(),
        f" {victim} ",
        "x" * 1025,
        "x" * 100_000,
        "",
    ]
    return [*rooms, None, 7, True, [victim], {"user": victim}]


def arguments(tool: str, word: Any, tag: str) -> Iterator[dict[str, Any]]:
    """What the model says to a tool: the word in each place, with what else the tool needs."""
    base = {
        "key": tag, "content": tag, "value": tag, "query": tag, "pool": "org:open", "memory_id": tag,
        "namespace": "agent", "limit": 100,
    }  # fmt: skip
    extra = dict.fromkeys(UNDECLARED, word)
    yield {**base, **extra}
    for name in base:
        yield {**base, name: word}
    if tool.startswith("shared_memory"):
        for kind in SCRATCH:
            yield {**base, **extra, "namespace": kind, "key": word}


def wheres(word: Any, tag: str) -> Iterator[dict[str, Any]]:
    """What the application might pass on from a model that should not."""
    yield {}
    yield {"session_id": word}
    yield {"team": word}
    yield {"team": "alices"}
    yield {"team": "crew", "session_id": f"session-{tag}"}
    for kind in SCRATCH:
        yield {"instances": {kind: word}}
    yield {"instances": dict.fromkeys(("workflow", "swarm", "debate"), word), "session_id": word}


class Model:
    """One user's model, which remembers every answer it was given."""

    def __init__(self, player: Player, victim: str) -> None:
        self.player = player
        self.victim = victim
        self.answers: list[tuple[str, httpx.Response]] = []
        self.client = httpx.Client(
            base_url=player.service.url,
            timeout=PATIENCE,
            trust_env=False,
            headers={"authorization": f"Bearer {player.token}", "content-type": "application/json"},
        )

    def say(self, path: str, body: Any, method: str = "POST") -> httpx.Response:
        content = json.dumps(body).encode()  # with surrogates as escapes, which are JSON
        answer = self.client.request(method, path, content=content)
        assert answer.status_code in (200, 204, 400, 403, 404, 405, 409, 413), (path, body, answer.text[:300])
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert len(error) < 400 or "/tools/" not in path, (path, error[:200])
            assert "Traceback" not in error
        self.answers.append((f"{path} {str(body)[:300]}", answer))
        return answer

    def attack(self, tools: list[str]) -> None:
        me, count = self.player.name, 0
        for agent in AGENTS:
            path = f"/v1/agents/{agent.replace('/', '%2F').replace(':', '%3A')}"
            for word in names(self.victim):
                for tool in tools:
                    count += 1
                    given = [*arguments(tool, word, f"by-{me}")]
                    where = [*wheres(word, me)]
                    for number in range(max(len(given), len(where)) if LONG else 1):
                        body = {
                            "arguments": given[(number + 2 * count) % len(given)],
                            **where[(number + count) % len(where)],
                        }
                        self.say(f"{path}/tools/{tool}", body)
        self.wander()

    def wander(self) -> None:
        """Paths instead of arguments."""
        for word in names(self.victim):
            if not isinstance(word, str) or not word or len(word) > 1500 or "\ud800" in word:
                continue
            spelled = quote(word, safe="")
            for path in (f"/v1/agents/{spelled}/tools/recall", f"/v1/agents/red/tools/{spelled}",
                         f"/v1/agents/red%2F..%2F{spelled}/tools/recall"):  # fmt: skip
                self.say(path, {"arguments": {"key": "secret"}})
            for path in ("memory", "calls?limit=1000"):
                self.say(f"/v1/agents/red/{path}", None, "GET")
            for kind in (*SCRATCH, spelled):
                for method in ("GET", "DELETE"):
                    self.say(f"/v1/agents/red/rooms/{kind}?instance={spelled}", None, method)
                self.say(f"/v1/runs/{kind}/{spelled}", {"members": [self.player.name]}, "PATCH")
                self.say(f"/v1/runs/{kind}/{spelled}", None, "DELETE")
                self.say("/v1/runs", {"kind": kind, "id": word, "members": [self.player.name]})


def settle(player: Player) -> None:
    """What a user has before anybody attacks: a secret in every room that is theirs."""
    secret, name = f"SECRET-OF-{player.name.upper()}", player.name
    where = {
        "session_id": f"secret-{name}",
        "instances": dict.fromkeys(("workflow", "swarm", "debate"), f"secret-{name}"),
    }
    for agent in AGENTS:
        player.call(agent, "remember", key="secret", content=secret)
        player.call(agent, "learn_fact", key="secret", content=secret)
        for scope in ("agent", "all"):
            player.call(agent, "memory_remember", content=secret, scope=scope)
        for kind in SCRATCH[1:]:
            player.call(agent, "shared_memory_write", where=where, namespace=kind, key="secret", value=secret)
    if name == "alice":
        player.call("red", "share_finding", where={"team": "alices"}, key="secret", content=secret)


def everything(service: Service) -> list[dict[str, Any]]:
    """All memories with all that is known of them, as an admin exports them."""
    admin = Player(service, "the operator", roles=["admin"])
    lines = admin.ask("GET", "/v1/memories/export").text.splitlines()
    return [json.loads(line) for line in lines]


def owner(namespace: list[str]) -> str | None:
    if namespace[0] == "user":
        return namespace[1]
    return namespace[namespace.index("u") + 1] if "u" in namespace[:-1] else None


def test_nothing_crosses(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    with serving(tmp_path, *FLAGS, "--agents", specs, "--embedder", "none") as service:
        players = [Player(service, name) for name in USERS]
        for player in players:
            settle(player)
        before = {(tuple(each["namespace"]), each["key"]): each for each in everything(service)
                  if "SECRET" in json.dumps(each["value"])}  # fmt: skip
        tools = [each["function"]["name"] for each in players[0].see("/v1/agents/red/tools")["tools"]]
        tools += ["share_finding", "read_shared", "search_shared", "list_shared"]
        models = [Model(player, USERS[1 - number]) for number, player in enumerate(players)]
        for model in models:
            with model.client:
                model.attack(tools)
        for model in models:
            assert len(model.answers) > 1500
            secret = f"SECRET-OF-{model.victim.upper()}"
            leaks = [said for said, answer in model.answers if secret in answer.text]
            assert not leaks, leaks[:3]
        held = everything(service)
        for each in held:
            whose, by = owner(each["namespace"]), each["written_by"]["user"]
            assert whose is None or whose == by, each
            root = each["namespace"][0]
            if whose is None:
                assert root in ("global", "org", "team", "workflow", "swarm", "debate", "runs"), each
            agent = each["written_by"]["agent"]
            if root in ("agent", "agent-room", "facts"):
                assert agent == each["namespace"][1], each
            if root in ("workflow", "swarm", "debate"):
                assert {by} == {other["written_by"]["user"] for other in held
                                if other["namespace"] == each["namespace"]}, each  # fmt: skip
        left = {(tuple(each["namespace"]), each["key"]): each for each in held}
        for place, memory in before.items():
            if place[0][0] == "team" or place[0][0] in SCRATCH:  # a model may change what is its own user's
                assert place not in left or left[place]["written_by"] == memory["written_by"], place
        teams = [each for each in held if each["namespace"] == ["team", "alices"]]
        assert {each["written_by"]["user"] for each in teams} == {"alice"}
        for player in players:
            for agent in AGENTS:
                assert player.call(agent, "recall", key="secret")["content"].endswith(player.name.upper())
