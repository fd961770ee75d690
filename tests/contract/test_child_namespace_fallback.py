"""While a private namespace is empty, an agent also reads its child namespaces: which, whose, until when."""

from __future__ import annotations

import json
from typing import Any

import pytest

from alcove import Alcove, InvalidRequest, NotFound, PermissionDenied, Settings
from alcove.agents.service import Agents
from alcove.core.principal import Principal
from alcove.policy.rego import Bundle
from tests.contract.conftest import Open

SPECS: dict[str, Any] = {
    "agents": [
        {"name": "x", "memory": {"private": {"namespace": "agent:{agent_name}:{session_id}"}}},
        {"name": "x-2", "memory": {"private": {"namespace": "agent:{agent_name}:{session_id}"}}},
        {"name": "own", "memory": {"private": {"namespace": "own:{user_id}:{session_id}"}}},
        {
            "name": "apart",
            "memory": {"private": {"namespace": "apart:{session_id}", "session_isolated": True}},
        },
    ]
}
CHILDREN = {
    "below": "agent:x:u:alice:abc123",
    "by session": "agent:x:abc123:u:alice",
    "of nobody": "agent:x:abc123",
}
"""The three kinds of child namespace."""


@pytest.fixture
def store(open_store: Open) -> Alcove:
    return open_store(embedder=None, settings=Settings(sweep_interval=0, max_depth=8))


def load(store: Alcove, *lines: tuple[str, str, str | None]) -> None:
    """Imports memories in this order: the namespace, the key and the author of each."""
    for number, (namespace, key, author) in enumerate(lines):
        content = {"content": f"tea {number} of {author}"}
        line = {"namespace": namespace.split(":"), "key": key, "value": content, "index": content,
                "written_by": {"user": author}}  # fmt: skip
        assert store.import_memories([json.dumps(line).encode()]).imported == 1, line


def listed(store: Alcove, user: str = "alice", agent: str = "x") -> list[str]:
    found = store.agents(SPECS).as_user(user).call(agent, "list_memories", limit=100)
    return [each["key"] for each in found.result["items"]]


def searched(store: Alcove, user: str = "alice", agent: str = "x", **more: Any) -> list[str]:
    found = store.agents(SPECS).as_user(user).call(agent, "search_memory", query="tea", limit=100, **more)
    return [each["key"] for each in found.result["items"]]


def recalled(store: Alcove, key: str, user: str = "alice", agent: str = "x") -> str | None:
    try:
        found = store.agents(SPECS).as_user(user).call(agent, "recall", key=key)
    except NotFound:
        return None
    return str(found.result["content"])


def preamble(store: Alcove, user: str = "alice", agent: str = "x") -> str:
    context = store.agents(SPECS).as_user(user).context(agent, "new session", "Hello")
    return "\n".join(str(each.content) for each in context.messages)


@pytest.mark.parametrize("kind", CHILDREN)
def test_every_reader_reads_each_kind_of_child_namespace(store: Alcove, kind: str) -> None:
    load(store, (CHILDREN[kind], "drink", "alice"))
    assert listed(store) == ["drink"]
    assert searched(store) == ["drink"]
    assert recalled(store, "drink") == "tea 0 of alice"
    assert "tea 0 of alice" in preamble(store)


def test_several_levels_below_are_read(store: Alcove) -> None:
    load(store, ("agent:x:u:alice:a:b:c", "deep", "alice"), ("agent:x:a:b:u:alice:c", "deeper", "alice"))
    assert sorted(listed(store)) == ["deep", "deeper"]
    assert sorted(searched(store)) == ["deep", "deeper"]


@pytest.mark.parametrize("newest", CHILDREN)
def test_of_each_key_only_the_newest_is_read_whichever_namespace_has_it(store: Alcove, newest: str) -> None:
    order = [*(kind for kind in CHILDREN if kind != newest), newest]
    load(store, *((CHILDREN[kind], "drink", "alice") for kind in order))
    load(store, ("agent:x:def456", "hat", "alice"))
    assert recalled(store, "drink") == "tea 2 of alice"
    assert listed(store) == ["hat", "drink"]
    assert sorted(searched(store)) == ["drink", "hat"]
    assert preamble(store).count("drink") == 1


OTHERS = [
    "agent:x:u:bob",
    "agent:x:u:bob:abc123",
    "agent:x:u:bob:u:alice",
    "agent:x:u:alice2",
    "agent:x:u:alice2:abc123",
    "agent:x:abc123:u:bob",
    "agent:x:abc123:u:alice2",
    "agent:x-2",
    "agent:x-2:abc123",
    "agent:x-2:u:alice",
    "agent:x-2:u:alice:abc123",
    "agent:x-2:abc123:u:alice",
    "agent:x2:abc123",
    "agent",
    "user:alice",
    "user:alice:agent:x",
    "own:alice:abc123:u:alice",
]
"""Namespaces that `agent:x` must not read for alice, whoever wrote there."""


@pytest.mark.parametrize("author", ["alice", "bob", None])
def test_rooms_of_other_users_and_other_agents_are_never_read(store: Alcove, author: str | None) -> None:
    load(store, *((namespace, f"secret {n}", author) for n, namespace in enumerate(OTHERS)))
    assert (listed(store), searched(store)) == ([], [])
    assert "tea" not in preamble(store)
    assert [recalled(store, f"secret {n}") for n in range(len(OTHERS))] == [None] * len(OTHERS)
    agents = store.agents(SPECS).as_user("alice")
    for n in range(len(OTHERS)):
        with pytest.raises(NotFound):
            agents.call("x", "forget", key=f"secret {n}")
    assert [(str(each.namespace), each.memories) for each in agents.rooms("x")] == [("agent:x:u:alice", 0)]


def test_in_a_room_of_nobody_only_what_the_user_wrote_is_read(store: Alcove) -> None:
    load(store, ("agent:x:abc123", "mine", "alice"), ("agent:x:abc123", "of bob", "bob"),
         ("agent:x:abc123", "of nobody", None), ("agent:x:def456", "mine", "bob"))  # fmt: skip
    assert listed(store) == searched(store) == ["mine"]
    assert recalled(store, "mine") == "tea 0 of alice"
    assert listed(store, "bob") == ["mine", "of bob"]


def test_what_others_wrote_in_rooms_of_the_user_is_read(store: Alcove) -> None:
    """As in the private namespace itself: what an admin imported there is the user's."""
    load(store, (CHILDREN["below"], "of nobody", None), (CHILDREN["by session"], "of bob", "bob"))
    assert sorted(listed(store)) == sorted(searched(store)) == ["of bob", "of nobody"]
    assert recalled(store, "of nobody") == "tea 0 of None"
    assert recalled(store, "of bob") == "tea 1 of bob"
    assert listed(store, "bob") == []


def test_a_template_with_the_user_in_it_reads_its_own_child_namespaces(store: Alcove) -> None:
    load(store, ("own:alice:u:alice:s", "below", "alice"), ("own:alice:s:u:alice", "by session", "alice"),
         ("own:alice:s", "of nobody", "alice"), ("own:bob:s:u:alice", "elsewhere", "alice"))  # fmt: skip
    assert listed(store, agent="own") == ["of nobody", "by session", "below"]


def test_the_first_remember_ends_it_and_forgetting_that_brings_it_back(store: Alcove) -> None:
    load(store, *((namespace, kind, "alice") for kind, namespace in CHILDREN.items()))
    agents = store.agents(SPECS).as_user("alice")
    agents.call("x", "remember", key="new", content="tea from now on")
    assert listed(store) == searched(store) == ["new"]
    assert [recalled(store, kind) for kind in CHILDREN] == [None] * 3
    assert "of alice" not in preamble(store)
    agents.call("x", "forget", key="new")
    assert listed(store) == [*reversed(CHILDREN)]


def test_an_isolated_session_has_no_fallback(store: Alcove) -> None:
    load(store, ("apart:s1", "of nobody", "alice"), ("apart:s1:u:alice:deep", "below", "alice"),
         ("apart:s1:more:u:alice", "by session", "alice"))  # fmt: skip
    agents = store.agents(SPECS).as_user("alice")
    assert agents.call("apart", "list_memories", session_id="s1").result["items"] == []
    assert agents.call("apart", "search_memory", session_id="s1", query="tea").result["items"] == []
    for tool in ("recall", "forget"):
        with pytest.raises(NotFound):
            agents.call("apart", tool, session_id="s1", key="below")
    assert len([*store.export_memories("apart")]) == 3


@pytest.mark.parametrize("remembers", [False, True])
def test_forget_removes_a_key_from_every_child_namespace(store: Alcove, *, remembers: bool) -> None:
    load(store, *((namespace, "drink", "alice") for namespace in CHILDREN.values()))
    load(store, (CHILDREN["below"], "hat", "alice"), ("agent:x:def456", "drink", "bob"),
         ("agent:x:u:bob:abc123", "drink", "bob"), ("agent:x-2:abc123", "drink", "alice"))  # fmt: skip
    agents = store.agents(SPECS).as_user("alice")
    if remembers:
        agents.call("x", "remember", key="drink", content="mint tea")
    assert agents.call("x", "forget", key="drink").result == {"key": "drink", "forgotten": True}
    assert recalled(store, "drink") is None
    assert listed(store) == searched(store) == ["hat"]
    assert "drink" not in preamble(store)
    with pytest.raises(NotFound):
        agents.call("x", "forget", key="drink")
    assert (recalled(store, "drink", "bob"), listed(store, agent="x-2")) == ("tea 2 of bob", ["drink"])
    assert [str(each.namespace) for each in store.export_memories() if each.key == "drink"] == [
        "agent:x:def456", "agent:x:u:bob:abc123", "agent:x-2:abc123"
    ]  # fmt: skip


def test_a_key_is_forgotten_in_hundreds_of_namespaces(store: Alcove) -> None:
    for kind in ("agent:x:s{}", "agent:x:s{}:u:alice", "agent:x:u:alice:s{}"):
        lines = [{"namespace": kind.format(n).split(":"), "key": "drink", "value": {"content": "tea"},
                  "written_by": {"user": "alice"}} for n in range(100)]  # fmt: skip
        assert store.import_memories([json.dumps(each).encode() for each in lines]).imported == 100
    store.agents(SPECS).as_user("alice").call("x", "forget", key="drink")
    assert recalled(store, "drink") is None
    assert [*store.export_memories()] == []


def test_the_agents_memory_lists_child_namespaces_with_counts(store: Alcove) -> None:
    load(store, *((namespace, kind, "alice") for kind, namespace in CHILDREN.items()))
    load(store, (CHILDREN["of nobody"], "of bob", "bob"), (CHILDREN["below"], "second", "alice"),
         ("agent:x:u:alice:def456", "second", "alice"))  # fmt: skip
    expected = [
        ("private", "agent:x:u:alice", 0),
        ("private, older", "agent:x:abc123", 1),
        ("private, older", "agent:x:abc123:u:alice", 1),
        ("private, older", "agent:x:u:alice:abc123", 2),
        ("private, older", "agent:x:u:alice:def456", 1),
    ]
    agents = store.agents(SPECS).as_user("alice")
    shown = [(each.room, str(each.namespace), each.memories) for each in agents.rooms("x")]
    assert shown == expected
    agents.call("x", "remember", key="new", content="tea")
    shown = [(each.room, str(each.namespace), each.memories) for each in agents.rooms("x")]
    assert shown == [("private", "agent:x:u:alice", 1), *expected[1:]]


def test_the_grant_opens_what_is_read_and_nothing_else(store: Alcove) -> None:
    """Whatever an agent would ask the store with it."""
    load(store, *((namespace, kind, "alice") for kind, namespace in CHILDREN.items()))
    load(store, *((namespace, f"secret {n}", "bob") for n, namespace in enumerate(OTHERS)),
         ("agent:x:abc123", "secret", "bob"))  # fmt: skip
    agents = store.agents(SPECS).as_user("alice")
    service: Agents = agents.transport.services["Agents"]  # type: ignore[attr-defined]
    principal = Principal("alice")
    rooms = service.turn(principal, service.agent(principal, "x")).child_rooms
    assert rooms is not None
    memories = service.memories
    assert {each.key for each in memories.searcher.search(rooms.principal, rooms.namespace, limit=100)} == {
        *CHILDREN
    }
    assert {each.key for each in memories.reader.export(rooms.principal, rooms.namespace)} == {*CHILDREN}
    assert {
        each.key
        for each in memories.searcher.search(rooms.principal, rooms.namespace, query="tea", limit=100)
    } == {*CHILDREN}
    for kind, namespace in CHILDREN.items():
        with pytest.raises(PermissionDenied):
            memories.writer.put(rooms.principal, namespace, "planted", {})
        with pytest.raises(PermissionDenied):
            memories.writer.delete(rooms.principal, namespace, kind)
    for namespace in OTHERS:
        try:
            assert [*memories.reader.export(rooms.principal, namespace)] == []
        except PermissionDenied:
            continue


OLD_FILTER = Bundle.load().filter.replace("unowned_written_by :=", "written_by :=")
"""The built-in filter as it was when it knew `written_by` only."""


def test_with_an_older_copy_of_the_filter_less_is_read_and_never_more(store: Alcove) -> None:
    load(store, *((namespace, kind, "alice") for kind, namespace in CHILDREN.items()))
    load(store, (CHILDREN["below"], "of nobody else", None), ("agent:x:abc123", "of bob", "bob"))
    store.admin.put_policies({"filter": OLD_FILTER})
    assert sorted(listed(store)) == sorted(searched(store)) == sorted(CHILDREN)


def test_a_filter_that_shows_everything_does_not_widen_the_fallback(store: Alcove) -> None:
    load(store, *((namespace, kind, "alice") for kind, namespace in CHILDREN.items()))
    load(store, *((namespace, f"secret {n}", "bob") for n, namespace in enumerate(OTHERS)))
    load(store, ("agent:x:abc123", "secret", "bob"))
    careless = "package memories.filter\nnamespace_prefix := input.namespace_prefix\nattribute_filter := {}"
    store.admin.put_policies({"filter": careless})
    assert sorted(listed(store)) == sorted(searched(store)) == sorted(CHILDREN)
    assert recalled(store, "secret") is None
    assert "bob" not in preamble(store)


def test_a_filter_that_shows_less_narrows_the_fallback(store: Alcove) -> None:
    load(store, *((namespace, kind, "alice") for kind, namespace in CHILDREN.items()))
    nobody = Bundle.load().filter.replace(
        "unowned_written_by := grant.written_by", "unowned_written_by := []"
    )
    store.admin.put_policies({"filter": nobody})
    assert listed(store) == ["by session", "below"]
    assert sorted(searched(store)) == ["below", "by session"]
    agents = store.agents(SPECS).as_user("alice")
    assert "agent:x:abc123" not in [str(each.namespace) for each in agents.rooms("x")]
    with pytest.raises(NotFound):
        agents.call("x", "forget", key="of nobody")


def test_search_ranks_the_newest_of_each_key_by_meaning(open_store: Open) -> None:
    store = open_store()
    texts = {"agent:x:s1": "Her cat is called Minka", "agent:x:s2:u:alice": "The invoice is due in May",
             "agent:x:u:alice:s3": "She drinks green tea"}  # fmt: skip
    for namespace, text in texts.items():
        content = {"content": text}
        for key in ("note", namespace):
            line = {"namespace": namespace.split(":"), "key": key, "value": content, "index": content,
                    "written_by": {"user": "alice"}}  # fmt: skip
            assert store.import_memories([json.dumps(line).encode()]).imported == 1
    store.search("agent:x", query="pet", wait_for_index=True)
    agents = store.agents(SPECS).as_user("alice")
    found = agents.call("x", "search_memory", query="Which pet does she have?", limit=1)
    assert [each["key"] for each in found.result["items"]] == ["agent:x:s1"]
    assert found.result["items"][0]["relevance"] > 0
    found = agents.call("x", "search_memory", query="What does she like to drink?", limit=5)
    assert {each["key"] for each in found.result["items"][:2]} == {"note", "agent:x:u:alice:s3"}
    with pytest.raises(InvalidRequest):
        agents.call("x", "search_memory", query=" ")


def test_memories_that_are_too_large_together_are_searched_in_part_and_that_is_told(
    store: Alcove, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alcove.search import hybrid_search  # noqa: PLC0415  numpy

    load(store, *((f"agent:x:s{n}", f"key {n}", "alice") for n in range(5)))
    monkeypatch.setattr(hybrid_search, "MAX_CHOSEN_BYTES", 70)
    answer = store.agents(SPECS).as_user("alice").call("x", "search_memory", query="tea")
    assert len(answer.result["items"]) == 2
    assert "2 of 5 memories" in answer.result["degraded"]


@pytest.mark.parametrize("user", ["u", "user", "alice:u:bob", "%", "Ünï ☃", "agent"])
def test_any_user_id_has_child_namespaces_of_its_own(store: Alcove, user: str) -> None:
    places = [["agent", "x", "u", user, "s"], ["agent", "x", "s", "u", user], ["agent", "x", "s"]]
    for place in places:
        for author in (user, "bob"):
            line = {"namespace": place, "key": f"{places.index(place)} {author}", "value": {"content": "tea"},
                    "index": {"content": "tea"}, "written_by": {"user": author}}  # fmt: skip
            assert store.import_memories([json.dumps(line).encode()]).imported == 1
    own = {f"0 {user}", "0 bob", f"1 {user}", "1 bob", f"2 {user}"}
    assert {*listed(store, user)} == {*searched(store, user)} == own
    assert listed(store, "bob") == ["2 bob"]
