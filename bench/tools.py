"""Every tool against the service calls it makes, in this process and over REST: medians, and their ratio.

    python bench/tools.py [--calls 200]

The two take turns, call by call, for one user and in one room of 100 memories, so that a noisy machine slows
both down. What a tool adds is finding the agent, its rooms and its arguments, words for the model, and a note
of the call.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from alcove import Alcove
from alcove.agents.service import Agents
from alcove.agents.specs.loading import WatchedSpecs
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.store.memories import Memories
from rest import SECRET, Server

USER, AGENT, RUN = "alice", "bot", "run"
BAR = 1.5
SPECS = """
agents:
  - name: bot
    memory: {private: {}, pools: ["org:docs"], scratch: [agent, workflow], facts: {max_facts: 100000},
             long_term: {}}
teams:
  - {name: crew, workers: [bot]}
"""
PRIVATE, POOL, TEAM = ["agent", AGENT, "u", USER], ["org", "docs"], ["team", "crew"]
ROOM, FACTS = ["agent-room", AGENT, "u", USER], ["facts", AGENT, "u", USER]
KEPT, COMMON = ["user", USER, "long-term", "agent", AGENT], ["user", USER, "long-term", "all"]
WORKFLOW, MEMBER = ["workflow", RUN], ["runs", "workflow", RUN, "u", USER]
TEXT = "Alice would rather have a pot of green tea than anything with coffee in it, number {}"
Step = tuple[str, list[str], dict[str, Any]]
"""One service call: what, where, and with what."""


@dataclass(frozen=True)
class Case:
    """A tool, its arguments for the n-th call, and the service calls it makes."""

    tool: str
    given: Callable[[int], dict[str, Any]]
    steps: Callable[[int], list[Step]]
    where: dict[str, Any] = field(default_factory=dict)
    before: Callable[[int, str], list[Step]] = lambda n, who: []
    """What has to be there, which is not measured."""
    note: str = ""


def content(n: int) -> dict[str, Any]:
    return {"value": {"content": TEXT.format(n)}, "index": {"content": TEXT.format(n)}}


def scratch(n: int) -> dict[str, Any]:
    return {"value": {"value": TEXT.format(n), "metadata": {}}}


def put(room: list[str], key: str, what: dict[str, Any], **more: Any) -> Step:
    return "put", room, {"key": key, **what, **more}


def keyed(
    tools: tuple[str, str, str, str], room: list[str], more: dict[str, Any], where: dict[str, Any]
) -> Iterator[Case]:
    write, read, search, show = tools
    yield Case(write, lambda n: {"key": f"t{n}", "content": TEXT.format(n), **more},
               lambda n: [put(room, f"s{n}", content(n))], where)  # fmt: skip
    yield Case(
        read,
        lambda n: {"key": f"k{n % 100}", **more},
        lambda n: [("get", room, {"key": f"k{n % 100}"})],
        where,
    )
    yield Case(search, lambda n: {"query": f"what to drink {n}", "limit": 5, **more},
               lambda n: [("search", room, {"query": f"what to drink {n}", "limit": 5})], where)  # fmt: skip
    yield Case(show, lambda n: {"limit": 20, **more}, lambda n: [("search", room, {"limit": 20})], where)


def removing(
    tool: str, room: list[str], name: str, what: Callable[[int], dict[str, Any]], **more: Any
) -> Case:
    """A tool that deletes; what it deletes is put there first."""
    prefix = "agent-" if name == "memory_id" else ""
    return Case(tool, lambda n: {name: f"{prefix}tool{n}", **more},
                lambda n: [("delete", room, {"key": f"{prefix}step{n}"})],
                before=lambda n, who: [put(room, f"{prefix}{who}{n}", what(n))])  # fmt: skip


def scratched(kind: str, room: list[str], where: dict[str, Any], first: list[Step]) -> Iterator[Case]:
    """Writing and reading; the room of a run is for its members, which is a call of its own."""
    named = {"namespace": kind}
    yield Case("shared_memory_write", lambda n: {"key": f"t{n}", "value": TEXT.format(n), **named},
               lambda n: [*first, put(room, f"s{n}", scratch(n))], where, note=kind)  # fmt: skip
    yield Case("shared_memory_read", lambda n: {"key": f"k{n % 100}", **named},
               lambda n: [*first, ("get", room, {"key": f"k{n % 100}"})], where, note=kind)  # fmt: skip


def asked(n: int) -> dict[str, Any]:
    return {"query": f"what to drink {n}", "limit": 5}


def kept(n: int) -> list[Step]:
    """Is it known, keep it, and what is it like?"""
    text = f"Alice owns ship number {n}"
    what = {"value": {"content": text, "tags": []}, "index": {"content": text}}
    return [
        ("get", KEPT, {"key": f"s{n}"}),
        put(KEPT, f"s{n}", what, wait_for_index=True),
        ("search", KEPT, {"query": text, "limit": 4}),
    ]


def cases() -> Iterator[Case]:
    crew, run = {"team": "crew"}, {"instances": {"workflow": RUN}}
    yield from keyed(("remember", "recall", "search_memory", "list_memories"), PRIVATE, {}, {})
    yield removing("forget", PRIVATE, "key", content)
    yield from keyed(
        ("share_to", "read_from_pool", "search_pool", "list_pool"), POOL, {"pool": "org:docs"}, {}
    )
    yield from keyed(("share_finding", "read_shared", "search_shared", "list_shared"), TEAM, {}, crew)
    yield from scratched("agent", ROOM, {}, [])
    yield from scratched("workflow", WORKFLOW, run, [("get", MEMBER, {"key": "membership"})])
    yield Case("shared_memory_list", lambda n: {"namespace": "agent", "pattern": "k*"},
               lambda n: [("export", ROOM, {})])  # fmt: skip
    yield removing("shared_memory_delete", ROOM, "key", scratch, namespace="agent")
    yield Case(
        "learn_fact",
        lambda n: {"content": TEXT.format(n)},
        lambda n: [
            ("search", FACTS, {"filter": {"content": TEXT.format(n)}, "limit": 1}),
            ("count", FACTS, {}),
            put(FACTS, f"s{n}", content(n)),
        ],
    )
    yield Case("recall_facts", lambda n: {"query": f"what to drink {n}", "limit": 5},
               lambda n: [("search", FACTS, {"query": f"what to drink {n}", "limit": 5})])  # fmt: skip
    yield removing("forget_fact", FACTS, "key", content)
    yield Case("memory_remember", lambda n: {"content": f"Alice owns boat number {n}"}, kept)
    yield Case("memory_recall", asked, lambda n: [("search", room, asked(n)) for room in (COMMON, KEPT)])
    yield removing("memory_forget", KEPT, "memory_id", content)


class Here:
    """In this process: `service.Agents` against `service.Memories`, with the agent's own principal."""

    def __init__(self, memories: Memories, agents: Agents) -> None:
        self._memories = memories
        self._agents = agents
        self._who = Principal(USER, claims={"sub": USER})
        self._within: dict[tuple[str, ...], Principal] = {}

    def tool(self, case: Case, given: dict[str, Any]) -> None:
        self._agents.call(self._who, AGENT, case.tool, given, **case.where)

    def step(self, step: Step) -> None:
        what, room, more = step
        key = tuple(room)
        if key not in self._within:
            agent = "alcove" if room[0] == "runs" else AGENT
            self._within[key] = Principal(
                USER, claims={"sub": USER}, agent=agent, grants=(Grant(Namespace(room)),)
            )
        who = self._within[key]
        match what:
            case "put":
                waiting = more.get("wait_for_index", False)
                fields = {name: value for name, value in more.items() if name != "wait_for_index"}
                self._memories.writer.put(who, room, **fields, wait_for_index=waiting)
            case "get":
                self._memories.reader.get(who, room, more["key"])
            case "delete":
                self._memories.writer.delete(who, room, more["key"])
            case "count":
                self._memories.reader.count(who, room)
            case "export":
                [*self._memories.reader.export(who, room)]
            case _:
                self._memories.searcher.search(who, room, **more)


class Rest:
    """Over REST: the tool's resource against those of memories, on one connection."""

    def __init__(self, url: str, token: str) -> None:
        self._client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60)

    def tool(self, case: Case, given: dict[str, Any]) -> None:
        self._ask("POST", f"/v1/agents/{AGENT}/tools/{case.tool}", {"arguments": given, **case.where})

    def step(self, step: Step) -> None:
        what, room, more = step
        match what:
            case "put":
                self._ask("PUT", "/v1/memories", {"namespace": room, **more})
            case "get" | "delete":
                self._ask(what.upper(), "/v1/memories", params={"ns": room, "key": more["key"]})
            case "count":  # there is no such call over REST
                pass
            case "export":
                self._ask("GET", "/v1/memories/export", params={"ns": room})
            case _:
                self._ask("POST", "/v1/memories/search", {"namespace_prefix": room, **more})

    def _ask(self, method: str, path: str, body: Any = None, **more: Any) -> None:
        answer = self._client.request(method, path, json=body, **more)
        if answer.status_code >= 400 and not (method == "GET" and answer.status_code == 404):
            raise SystemExit(f"{method} {path} {body}: {answer.text}")


def prepared(do: Here | Rest) -> None:
    """A hundred memories in every room."""
    for room, what in (
        (PRIVATE, content),
        (FACTS, content),
        (KEPT, content),
        (COMMON, content),
        (ROOM, scratch),
    ):
        for n in range(100):
            do.step(put(room, f"k{n}", what(n)))
    shared = Case("share_to", lambda n: {}, lambda n: [])
    team = Case("share_finding", lambda n: {}, lambda n: [], {"team": "crew"})
    run = Case("shared_memory_write", lambda n: {}, lambda n: [], {"instances": {"workflow": RUN}})
    for n in range(100):
        do.tool(shared, {"pool": "org:docs", "key": f"k{n}", "content": TEXT.format(n)})
        do.tool(team, {"key": f"k{n}", "content": TEXT.format(n)})
        do.tool(run, {"namespace": "workflow", "key": f"k{n}", "value": TEXT.format(n)})


def measured(do: Here | Rest, case: Case, calls: int, *, alone: bool) -> tuple[float, float] | None:
    """The medians of the tool and of its service calls, in milliseconds."""
    what, room, _ = case.steps(0)[-1]
    if alone and (room == WORKFLOW or (what == "put" and room in (POOL, TEAM))):
        return None  # a call without an agent may not go there, so there is nothing to compare with
    theirs, ours = [], []
    for n in range(-10, calls):
        for who in ("tool", "step"):
            for step in case.before(n, who):
                do.step(step)
        started = time.perf_counter()
        for step in case.steps(n):
            do.step(step)
        between = time.perf_counter()
        do.tool(case, case.given(n))
        if n >= 0:
            theirs.append(between - started)
            ours.append(time.perf_counter() - between)
    return statistics.median(ours) * 1000, statistics.median(theirs) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--only", help="Tools with this in their name.")
    parser.add_argument("--dir", type=Path, default=Path.cwd())
    options = parser.parse_args()
    chosen = [case for case in cases() if not options.only or options.only in case.tool]
    with tempfile.TemporaryDirectory(dir=options.dir, prefix=".bench-") as name:
        folder = Path(name)
        (specs := folder / "agents.yaml").write_text(SPECS)
        found: dict[str, list[tuple[float, float] | None]] = {}
        with Alcove(folder / "here.db") as memory:
            agents = Agents(memory.memories, WatchedSpecs(specs), authentication=False)
            here = Here(memory.memories, agents)
            prepared(here)
            for case in chosen:
                found[f"{case.tool} {case.note}".strip()] = [measured(here, case, options.calls, alone=False)]
            agents.close()
        command = [sys.executable, "-c", "from alcove.cli import main; main()"]
        env = {**os.environ, "ALCOVE_JWT_SECRET": SECRET}
        token = subprocess.run([*command, "token", "--user", USER], env=env, capture_output=True, text=True,
                               check=True).stdout.strip()  # fmt: skip
        flags = ["--at", "rest.db", "--auth", "jwt", "--jwt-secret", SECRET, "--agents", str(specs)]
        server = Server([*command, "serve", *flags], folder, "/readyz")
        try:
            rest = Rest(server.url, token)
            prepared(rest)
            for case in chosen:
                found[f"{case.tool} {case.note}".strip()].append(
                    measured(rest, case, options.calls, alone=True)
                )
        finally:
            server.stop()
    report(found)


def report(found: dict[str, list[tuple[float, float] | None]]) -> None:
    print("| tool | here: tool ms | calls ms | × | REST: tool ms | calls ms | × |")
    print("|---|---|---|---|---|---|---|")
    for tool, rows in found.items():
        cells = [
            f"{row[0]:.3f} | {row[1]:.3f} | {row[0] / row[1]:.2f}{'' if row[0] / row[1] <= BAR else ' !'}"
            if row
            else " | | "
            for row in rows
        ]
        print(f"| {tool} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
