"""What the fallback to child namespaces costs: it follows what is the user's, not what is everybody's.

The work is counted in steps of SQLite's virtual machine, so a busy machine changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from alcove import Alcove, NotFound
from tests.support.concurrent_workers import QUIET

pytestmark = pytest.mark.of_the_file("its steps are counted")
SPECS = {"agents": [{"name": "x", "memory": {"private": {}}}]}
FEW, MANY = 20, 1_000
"""Other users of the agent, each with a room of every kind."""
SLACK = 1.25
"""An index with fifty times as many entries is a little deeper."""


@contextmanager
def counted() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Yields a function that counts the steps that a call takes, of all statements of new connections."""
    steps = 0

    def note(event: dict[str, Any]) -> None:
        nonlocal steps
        steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def hook(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)

    def count(call: Callable[[], object]) -> int:
        call()  # what is only made once is there now
        before = steps
        call()
        return steps - before

    apsw.connection_hooks.append(hook)
    try:
        yield count
    finally:
        apsw.connection_hooks.remove(hook)


def fill(memory: Alcove, others: int) -> None:
    def line(namespace: str, author: str) -> bytes:
        content = {"content": f"tea of {author}"}
        return json.dumps({"namespace": namespace.split(":"), "key": "drink", "value": content,
                           "index": content, "written_by": {"user": author}}).encode()  # fmt: skip

    def rooms(user: str, session: str) -> list[bytes]:
        own = (f"agent:x:u:{user}:{session}", f"agent:x:{session}:u:{user}", f"agent:x:{session}")
        return [line(namespace, user) for namespace in own]

    lines = [each for n in range(others) for each in (line(f"agent:x:u:user{n}", f"user{n}"),
                                                      *rooms(f"user{n}", f"s{n}"))]  # fmt: skip
    lines += [each for n in range(3) for each in rooms("alice", f"a{n}")]
    lines += [line("agent:x:u:carol", "carol"), *rooms("carol", "c1")]
    assert memory.import_memories(lines).imported == len(lines)


def work(path: Path, others: int) -> dict[str, int]:
    """The steps of each reader, for alice, whose private namespace is empty, and carol, whose is not."""
    with counted() as count, Alcove(path, settings=QUIET, embedder=None) as memory:
        fill(memory, others)
        agents = {user: memory.agents(SPECS).as_user(user) for user in ("alice", "carol")}

        def forget(user: str) -> None:
            with pytest.raises(NotFound):
                agents[user].call("x", "forget", key="absent")

        def readers(user: str) -> dict[str, Callable[[], object]]:
            its = agents[user]
            return {
                "recall": lambda: its.call("x", "recall", key="drink"),
                "list": lambda: its.call("x", "list_memories"),
                "search": lambda: its.call("x", "search_memory", query="tea"),
                "preamble": lambda: its.context("x", "new", "Hello"),
                "rooms": lambda: its.rooms("x"),
                "forget": lambda: forget(user),
            }

        return {f"{user} {name}": count(call) for user in agents for name, call in readers(user).items()}


def test_the_cost_of_the_fallback_does_not_grow_with_rooms_of_others(tmp_path: Path) -> None:
    few, many = work(tmp_path / "few.db", FEW), work(tmp_path / "many.db", MANY)
    assert all(few.values())
    grown = {name: (steps, many[name]) for name, steps in few.items() if many[name] > SLACK * steps}
    assert not grown, grown
