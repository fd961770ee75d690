"""Adapters and what their caller may not see, or is to be forgotten."""

from __future__ import annotations

import asyncio
import random
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from alcove import Alcove, NotFound, Principal
from alcove.client.store import Store
from alcove.core.errors import InvalidRequest, PermissionDenied
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant
from alcove.core.records import Memory
from alcove.integrations.anthropic_memory import AlcoveMemoryTool
from alcove.integrations.langgraph import AlcoveStore
from alcove.integrations.langgraph_threads import AlcoveSaver
from alcove.integrations.openai_agents import AlcoveSession
from tests.acceptance.integrations.test_adapters_interrupted import disturbed
from tests.support.concurrent_workers import QUIET
from tests.support.hashed_embedder import Bag
from tests.support.langgraph_stores import OWN
from tests.support.store_inspection import raw_bytes
from tests.support.waiting import until

TEAMS = """package memories.attributes
attributes := {"namespace": input.namespace[0], "sub": input.namespace[1], "team": input.value.team}
"""
RED = """package memories.filter
namespace_prefix := input.namespace_prefix
attribute_filter := {"team": "red"}
owner := input.context.user_id
"""
LED_BACK = """package memories.filter
namespace_prefix := ["user", input.context.user_id]
attribute_filter := {}
"""


@pytest.fixture
def memory(path: Path) -> Iterator[Alcove]:
    with Alcove(path, settings=QUIET, embedder=Bag()) as memory:
        yield memory


def put(store: Store, thread: str, value: Any, *, channel: str = "x") -> Any:
    saver, checkpoint = AlcoveSaver(store), empty_checkpoint()
    versions = {channel: saver.get_next_version(None, None)}
    checkpoint["channel_values"], checkpoint["channel_versions"] = {channel: value}, versions  # type: ignore[typeddict-item]
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    return saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, versions)  # type: ignore[arg-type]


# What a policy leaves


def test_what_cannot_be_ranked_is_only_what_a_search_without_a_query_finds(memory: Alcove) -> None:
    memory.admin.put_policies({"attributes": TEAMS, "filter": RED})
    alice, chosen = memory.as_user("alice"), random.Random(7)
    for n in range(60):
        value = {"team": chosen.choice(["red", "blue"]), "n": n % 3}
        alice.put(("user", "alice", "n"), f"k{n:02}", value, index={"t": f"tea w{n}"} if n % 2 else None)
    now = alice.put(("user", "alice", "n"), "last", {"team": "blue", "n": 0}).created_at
    for filter in (None, {"$value": {"team": "blue"}}, {"$value": {"n": {"$in": [0, 1]}}}):
        moments: list[dict[str, Any]] = [{}, {"as_of": now}]
        for moment in moments:
            there = alice.search(("user", "alice"), filter=filter, limit=100, **moment)
            assert {each.value["team"] for each in there} <= {"red"}
            for mode in ("hybrid", "semantic"):
                how: dict[str, Any] = {"query": "tea w5", "mode": mode, "filter": filter, **moment}
                found: list[Memory] = []
                while page := alice.search(
                    ("user", "alice"),
                    limit=7,
                    offset=len(found),
                    unranked=True,
                    similarity=True,
                    wait_for_index=True,
                    **how,
                ):
                    found += page
                assert sorted(each.key for each in found) == [each.key for each in there]


@pytest.mark.parametrize("authors", [None, ("alice",)])
def test_rooms_of_others_inside_a_shared_one_are_no_unranked_rest(memory: Alcove, authors: Any) -> None:
    room = Namespace(("org", "docs"))
    for user in ("alice", "bob"):
        who = memory.as_principal(Principal(user, agent="x", grants=(Grant(room),)))
        for place in (room, (*room, "u", user)):
            who.put(place, f"{user}-indexed", {"by": user}, index={"t": "tea"})
            who.put(place, f"{user}-plain", {"by": user})
    reads = Grant(room, ("read",), authors)
    alice = memory.as_principal(Principal("alice", agent="x", grants=(reads,)))
    found = alice.search(room, query="tea", unranked=True, wait_for_index=True)
    assert len(found) == (4 if authors else 6)
    assert all(each.namespace.owner != "bob" for each in found)
    assert authors is None or {each.value["by"] for each in found} == {"alice"}
    bobs = alice.search(room, query="tea", unranked=True, filter={"$value": {"by": "bob"}})
    assert len(bobs) == (0 if authors else 2)


def test_where_a_policy_leads_a_list_elsewhere_a_deleted_thread_takes_nothing_else_along(
    memory: Alcove,
) -> None:
    memory.admin.put_policies({"filter": LED_BACK})
    alice = memory.as_user("alice")
    alice.put(("user", "alice", "notes"), "diary", {"text": "years of it"})
    put(alice, "old", 1)
    put(alice, "other", 2)
    AlcoveSaver(alice).delete_thread("old")
    memory.admin.put_policies({"filter": None})
    assert alice.get(("user", "alice", "notes"), "diary")
    assert AlcoveSaver(alice).get_tuple({"configurable": {"thread_id": "other"}})


@pytest.mark.parametrize("name", ["u", "user", "*", "..", "a\0b", "a:b", "ns:", "at", "parts"])
def test_a_thread_of_any_name_is_that_thread_and_of_one_user(memory: Alcove, name: str) -> None:
    alice, bob = memory.as_user("alice"), memory.as_user("bob")
    put(alice, name, "hers")
    put(alice, "another", "hers")
    put(bob, name, "his")
    AlcoveSaver(bob).delete_thread(name)
    AlcoveSaver(bob).copy_thread("another", name)
    assert [*AlcoveSaver(bob).list(None)] == []
    AlcoveSaver(alice).delete_thread("another")
    (left,) = AlcoveSaver(alice).list(None)
    assert left.config["configurable"]["thread_id"] == name
    assert left.checkpoint["channel_values"] == {"x": "hers"}


@pytest.mark.parametrize("name", ["", "x" * 1100, "\ud800"])
def test_a_thread_that_can_have_no_room_is_refused_and_nothing_is_deleted(memory: Alcove, name: str) -> None:
    put(memory, "t", 1)
    for work in (
        lambda: put(memory, name, 1),
        lambda: AlcoveSaver(memory).delete_thread(name),
        lambda: AlcoveSaver(memory).copy_thread(name, "t"),
        lambda: AlcoveSaver(memory).copy_thread("t", name),
    ):
        with pytest.raises(InvalidRequest, match=r"namespace|prefix"):
            work()
    assert len([*AlcoveSaver(memory).list(None)]) == 1


def test_an_agent_that_is_called_like_the_mark_of_an_owner_gets_no_files(memory: Alcove) -> None:
    tool = AlcoveMemoryTool(memory.as_user("alice"), "u")
    with pytest.raises(PermissionDenied):
        tool.call({"command": "create", "path": "/memories/a", "file_text": "hers"})
    assert memory.as_user("u").namespaces() == []


# Wipes


def use(memory: Alcove, marks: dict[str, str]) -> None:
    """Has a user use every adapter."""
    user, me = marks["user"], memory.as_user(marks["user"])
    store, saver = AlcoveStore(memory, index=["text"], by_user=True), AlcoveSaver(me)
    store.put((user, marks["label"]), marks["key"], {"text": marks["text"], "more": marks["value"]}, ttl=5)
    store.search((user,), query=marks["query"])
    kept = put(me, marks["thread"], marks["state"] * 40_000, channel=marks["channel"])
    saver.put_writes(kept, [("x", marks["write"])], marks["task"])
    saver.copy_thread(marks["thread"], f"copy of {marks['thread']}")
    agent = me.agent("assistant", session_id=marks["session"])
    session = AlcoveSession(agent)
    items: Any = [
        {"role": "user", "content": marks["said"]},
        {"type": "reasoning", "id": marks["reasoning"], "summary": []},
        {"role": "assistant", "content": marks["answer"]},
    ]
    asyncio.run(session.add_items([*items, {"role": "user", "content": marks["popped"]}]))
    asyncio.run(session.pop_item())
    agent.context(marks["query"])
    agent.call("memory_remember", {"content": marks["fact"], "tags": [marks["tag"]]})
    tool = AlcoveMemoryTool(me, "assistant")
    path = f"/memories/{marks['path']}.md"
    tool.call({"command": "create", "path": path, "file_text": marks["file"]})
    tool.call({"command": "rename", "old_path": path, "new_path": f"/memories/moved/{marks['path']}.md"})


MARKS = [
    *("user", "label", "key", "text", "value", "query", "thread", "channel", "state", "write", "task"),
    *("session", "said", "reasoning", "answer", "popped", "fact", "tag", "path", "file"),
]
PLAIN = {"user", "label", "key", "text", "thread", "channel", "task", "session", "said", "answer", "fact"}


def test_no_byte_is_left_of_whom_is_wiped_after_using_every_adapter(memory: Alcove, path: Path) -> None:
    def left(marks: dict[str, str]) -> set[str]:
        raw = raw_bytes(path)
        return {name for name, mark in marks.items() if mark.encode() in raw}

    alice, bob = ({name: f"{name}{secrets.token_hex(8)}" for name in MARKS} for _ in range(2))
    use(memory, alice)
    use(memory, bob)
    assert left(alice) >= PLAIN
    assert not {"value", "state", "write", "reasoning", "file"} & left(alice), "which are sealed"
    receipt = memory.admin.wipe(alice["user"])
    assert receipt.scrubbed
    assert receipt.shared_left == []
    assert left(alice) == set()
    assert left(bob) >= PLAIN
    assert memory.as_user(alice["user"]).namespaces() == []


def test_a_copy_that_was_under_way_does_not_bring_back_who_was_wiped(memory: Alcove) -> None:
    def wiped(call: int, _: Any) -> None:
        if call == 1:
            memory.admin.wipe("alice")

    alice = memory.as_user("alice")
    put(alice, "t", "what she said")
    with pytest.raises(NotFound):
        AlcoveSaver(disturbed(alice, "batch", wiped)).copy_thread("t", "copy")
    assert alice.namespaces() == []


def test_a_refresh_that_was_under_way_does_not_bring_back_who_was_wiped(memory: Alcove) -> None:
    def wiped(call: int, _: Any) -> None:
        memory.admin.wipe("alice")

    alice = memory.as_user("alice")
    AlcoveStore(alice, root=OWN).put(("n",), "k", {}, ttl=5)
    assert AlcoveStore(disturbed(alice, "batch", wiped), root=OWN).get(("n",), "k")
    assert alice.namespaces() == []


def test_a_file_that_is_moved_or_edited_during_a_wipe_is_gone(memory: Alcove) -> None:
    def wiped(_: int, __: Any) -> None:
        memory.admin.wipe("alice")

    alice = memory.as_user("alice")
    commands: list[dict[str, Any]] = [
        {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"},
        {"command": "insert", "path": "/memories/a", "insert_line": 0, "insert_text": "more"},
        {"command": "delete", "path": "/memories/a"},
    ]
    for command in commands:
        AlcoveMemoryTool(alice, "x").call({"command": "create", "path": "/memories/a", "file_text": "hers"})
        with pytest.raises(Exception, match=r"does not exist|no file"):
            AlcoveMemoryTool(disturbed(alice, "batch", wiped), "x").call(command)
        assert alice.namespaces() == []


def test_wipes_among_running_adapters_leave_nothing_of_before(memory: Alcove, path: Path) -> None:
    marks, stop, failed = [f"mark{secrets.token_hex(8)}"], threading.Event(), list[BaseException]()
    alice = memory.as_user("alice")
    store = AlcoveStore(alice, index=["text"], ttl={"default_ttl": 5, "refresh_on_read": True}, root=OWN)

    def storing(mark: str) -> None:
        store.put((mark,), mark, {"text": mark})
        store.search((), query=mark)

    def saving(mark: str) -> None:
        put(alice, mark, mark, channel=mark)

    def talking(mark: str) -> None:
        session = AlcoveSession(alice.agent("assistant", session_id=mark))
        said: Any = {"role": "user", "content": mark}
        asyncio.run(session.add_items([said, said]))
        asyncio.run(session.pop_item())

    latest = dict[Any, str]()

    def again(work: Any) -> None:
        while not stop.is_set() and not failed:
            try:
                work(mark := marks[-1])
                latest[work] = mark
            except BaseException as error:
                failed.append(error)

    def there() -> bool:
        """Whether there is something of hers to wipe again: they may all have come just before the last."""
        return memory.admin.held("alice").versions > 0

    works = (storing, saving, talking)
    workers = [threading.Thread(target=again, args=(work,)) for work in works]
    for each in workers:
        each.start()
    try:
        for _ in range(4):
            until(lambda: failed or (all(latest.get(work) == marks[-1] for work in works) and there()))
            marks.append(f"mark{secrets.token_hex(8)}")
            memory.admin.wipe("alice", wait=False)  # what had begun before may still come after this one
            until(lambda: failed or (all(latest.get(work) == marks[-1] for work in works) and there()))
            memory.admin.wipe("alice")
            raw = raw_bytes(path)
            assert not any(mark.encode() in raw for mark in marks[:-1])
    finally:
        stop.set()
        for each in workers:
            each.join()
    assert failed == []
