"""What an agent shows a user as theirs in rooms from before users had their own goes when they are wiped."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from alcove import Alcove, NotFound
from tests.support.clock import ManualClock
from tests.support.concurrent_workers import QUIET
from tests.support.restore_steps import bring_back
from tests.support.store_inspection import assert_sound, raw_bytes

SPECS = """
agents:
  - {name: bot, memory: {private: {namespace: "agent:{agent_name}:{session_id}"}, pools: ["org:docs"]}}
  - {name: own, memory: {private: {namespace: "own:{user_id}:{session_id}"}}}
  - {name: apart, memory: {private: {namespace: "apart:{session_id}", session_isolated: true}}}
"""


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    (file := tmp_path / "agents.yaml").write_text(SPECS)
    return file


def line(room: str, key: str, author: str | None) -> bytes:
    brought = {"namespace": room.split(":"), "key": key, "value": {"content": f"of {author}"},
               "index": {"text": f"SECRET-{author}"}, "written_by": {"user": author}}  # fmt: skip
    return json.dumps(brought).encode()


BROUGHT = [
    line("agent:bot:s1", "key-of-alice", "alice"),
    line("agent:bot:s1", "of both", "alice"),
    line("agent:bot:s1", "of both", "bob"),
    line("agent:bot:s2", "of both", "bob"),
    line("agent:bot:s2", "of both", "alice"),
    line("agent:bot:s2", "key-of-bob", "bob"),
    line("agent:bot:s2", "of nobody", None),
    line("own:alice:s1", "key-of-alice", "alice"),
    line("org:docs", "shared", "alice"),
    line("agent:bot-2:s1", "elsewhere", "alice"),
]


def fill(memory: Alcove) -> None:
    for each in BROUGHT:  # one by one: two lines of one bundle that have the same key are one version
        assert memory.import_memories([each]).imported == 1


def left(memory: Alcove) -> list[tuple[str, str, str | None]]:
    return [(str(each.namespace), each.key, each.written_by.user) for each in memory.export_memories()]


KEPT = [
    ("agent:bot:s1", "of both", "bob"),
    ("agent:bot:s2", "key-of-bob", "bob"),
    ("agent:bot:s2", "of nobody", None),
    ("agent:bot-2:s1", "elsewhere", None),
    ("org:docs", "shared", None),
]


@pytest.mark.parametrize("knows_specs", [True, False])
def test_what_the_fallback_shows_is_held_exported_and_wiped(
    path: Path, specs: Path, *, knows_specs: bool
) -> None:
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        fill(memory)
        memory.agents(specs)
        if knows_specs:
            agents = memory.agents(specs).as_user("alice")
            assert agents.call("bot", "recall", key="key-of-alice").result["content"] == "of alice"
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        if knows_specs:
            memory.agents(specs)
        held = memory.admin.held("alice")
        rooms = [(str(room.namespace), room.versions) for room in held.namespaces]
        assert [each for each in rooms if each[0] != "calls:bot:u:alice"] == [
            ("agent:bot:s1", 2), ("agent:bot:s2", 1), ("own:alice:s1", 1)
        ]  # fmt: skip
        assert [(str(room.namespace), room.versions) for room in held.shared_rooms] == [
            ("agent:bot-2:s1", 1), ("org:docs", 1)
        ]  # fmt: skip
        exported = [each for each in memory.admin.export("alice") if each.namespace[0] != "calls"]
        assert {each.written_by.user for each in exported} == {"alice"}
        assert len(exported) == 6
        receipt = memory.wipe("alice")
        assert [str(room.namespace) for room in receipt.shared_left] == ["agent:bot-2:s1", "org:docs"]
        assert left(memory) == KEPT
        assert b"key-of-alice" not in raw_bytes(path)
        assert b"own\0alice" not in raw_bytes(path)
        assert_sound(memory)
        memory.wipe("alice", shared="remove")
        assert b"SECRET-alice" not in raw_bytes(path)


def test_a_restore_takes_it_again_though_the_backup_knew_no_specs(path: Path, to: Path, specs: Path) -> None:
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        fill(memory)
        [*memory.backup(to)]
        memory.agents(specs)
        memory.wipe("alice", shared="remove")
    path.unlink()
    assert bring_back(to, path).users_forgotten == 1
    assert b"key-of-alice" not in raw_bytes(path)
    assert b"SECRET-alice" not in raw_bytes(path)
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        assert left(memory) == KEPT[:3]
        assert_sound(memory)
        with pytest.raises(NotFound):
            memory.wipe("alice")


def test_a_restore_takes_rooms_that_were_empty_when_their_user_was_wiped(
    path: Path, to: Path, specs: Path, clock: ManualClock
) -> None:
    """Of a room that retention emptied the note of the wipe says nothing, and an older backup has it."""
    with Alcove(path, settings=QUIET, embedder=None, clock=clock) as memory:
        alice = memory.agents(specs).as_user("alice")
        rooms = ("agent:bot:s1", "user:alice")
        memory.import_memories([line(room, "key-of-alice", "alice") for room in rooms])
        [*memory.backup(to)]
        alice.call("bot", "forget", key="key-of-alice")
        clock.advance(400 * 86_400)
        memory.sweep()
        memory.wipe("alice")
    path.unlink()
    bring_back(to, path)
    assert b"key-of-alice" not in raw_bytes(path)
    assert b"SECRET-alice" not in raw_bytes(path)


CHILDREN = {
    "below": "agent:bot:u:alice:s1",
    "by session": "agent:bot:s1:u:alice",
    "of nobody": "agent:bot:s1",
    "several levels below": "agent:bot:u:alice:s1:deep",
}
"""Where the fallback reads, by kind of child namespace."""
DEEP = dataclasses.replace(QUIET, max_depth=6)
OTHERS = ["agent:bot:u:bob:s1", "agent:bot:s1:u:bob", "agent:bot:u:alice2:s1", "agent:bot-2:u:bob:s1"]


def fill_children(memory: Alcove) -> None:
    lines = [line(room, f"key-of-alice {kind}", "alice") for kind, room in CHILDREN.items()]
    lines += [
        line("agent:bot:u:alice:s1", "key-of-alice unsigned", None),
        line("agent:bot:s1", "key-of-bob", "bob"),
    ]
    lines += [line(room, "key-of-bob", "bob") for room in OTHERS]
    assert memory.import_memories(lines).imported == len(lines)


def of_alice(memory: Alcove) -> list[str]:
    """The keys of alice's memories that are in the store at all."""
    return [key for _, key, _ in left(memory) if key.startswith("key-of-alice")]


@pytest.mark.parametrize("knows_specs", [True, False])
def test_every_child_namespace_is_held_exported_and_wiped(
    path: Path, specs: Path, *, knows_specs: bool
) -> None:
    with Alcove(path, settings=DEEP, embedder=None) as memory:
        fill_children(memory)
        shown = memory.agents(specs).as_user("alice").call("bot", "list_memories").result["items"]
        assert sorted(each["key"] for each in shown) == sorted(of_alice(memory))
    with Alcove(path, settings=DEEP, embedder=None) as memory:
        if knows_specs:
            memory.agents(specs)
        held = [str(room.namespace) for room in memory.admin.held("alice").namespaces]
        assert [each for each in held if each != "calls:bot:u:alice"] == sorted(CHILDREN.values())
        exported = [each.key for each in memory.admin.export("alice") if each.namespace[0] != "calls"]
        assert sorted(exported) == sorted(of_alice(memory))
        reviewed = [
            each.key for each in memory.admin.memories_of("alice").items if each.namespace[0] != "calls"
        ]
        assert sorted(reviewed) == sorted(of_alice(memory))
        assert memory.wipe("alice").shared_left == []
        assert len(left(memory)) == 1 + len(OTHERS)
        assert of_alice(memory) == []
        assert b"key-of-alice" not in raw_bytes(path)
        assert b"SECRET-alice" not in raw_bytes(path)
        agents = memory.agents(specs)
        assert agents.as_user("alice").call("bot", "list_memories").result["items"] == []
        assert len(agents.as_user("bob").call("bot", "list_memories").result["items"]) == 1
        assert_sound(memory)


@pytest.mark.parametrize("forgets_first", [True, False])
def test_a_restored_backup_forgets_every_child_namespace_again(
    path: Path, to: Path, specs: Path, *, forgets_first: bool
) -> None:
    with Alcove(path, settings=DEEP, embedder=None) as memory:
        fill_children(memory)
        [*memory.backup(to)]
        alice = memory.agents(specs).as_user("alice")
        for key in of_alice(memory) if forgets_first else ():
            alice.call("bot", "forget", key=key)
        memory.wipe("alice")
    path.unlink()
    assert bring_back(to, path).users_forgotten == 1
    assert b"key-of-alice" not in raw_bytes(path)
    assert b"SECRET-alice" not in raw_bytes(path)
    with Alcove(path, settings=DEEP, embedder=None) as memory:
        assert len(left(memory)) == 1 + len(OTHERS)
        assert memory.agents(specs).as_user("alice").call("bot", "list_memories").result["items"] == []
        assert_sound(memory)


def test_the_newest_of_a_key_is_found_among_hundreds_of_older_ones(path: Path, specs: Path) -> None:
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        texts = [{"content": "weekly report"}] * 250 + [{"content": "weekly report, and much else besides"}]
        brought = [{"namespace": ["agent", "bot", f"s{n}"], "key": "status", "value": text, "index": text,
                    "written_by": {"user": "alice"}} for n, text in enumerate(texts)]  # fmt: skip
        memory.import_memories([json.dumps(each).encode() for each in brought])
        alice = memory.agents(specs).as_user("alice")
        (found,) = alice.call("bot", "search_memory", query="weekly report").result["items"]
        assert found["content"] == texts[-1]["content"]


def test_what_nobody_signed_is_noops_where_the_fallback_shows_it_to_them(path: Path, specs: Path) -> None:
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        fill(memory)
        assert memory.agents(specs).call("bot", "recall", key="of nobody").result["content"] == "of None"
        receipt = memory.wipe("noop")
        assert receipt.shared_left == []
        assert "of nobody" not in [key for _, key, _ in left(memory)]
        assert b"SECRET-None" not in raw_bytes(path)
        assert_sound(memory)


def test_a_run_that_a_wiped_user_was_alone_in_does_not_come_back(
    path: Path, to: Path, tmp_path: Path
) -> None:
    (specs := tmp_path / "agents.yaml").write_text("agents: [{name: bot, memory: {scratch: [workflow]}}]")
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        alice = memory.agents(specs).as_user("alice")
        run = alice.open_run("workflow", "run-of-alice")
        alice.call("bot", "shared_memory_write", namespace="workflow", key="k", value="SECRET-text",
                   instances={"workflow": run.id})  # fmt: skip
        [*memory.backup(to)]
        dry = memory.wipe("alice", dry_run=True)
        receipt = memory.wipe("alice")
        assert (receipt.removed, receipt.shared_left) == (dry.removed, [])
        assert b"run-of-alice" not in raw_bytes(path)
    path.unlink()
    bring_back(to, path)
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        assert ("workflow", "run-of-alice") not in memory.namespaces()
        assert_sound(memory)
