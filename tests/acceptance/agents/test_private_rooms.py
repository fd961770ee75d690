"""Private rooms over REST: an agent and a user each, across sessions, and what lies there from before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.agent_service import SPECS, Player, Table
from tests.support.service import serving


def test_each_agent_remembers_each_user_apart(table: Table) -> None:
    alice, bob = table.player("alice"), table.player("bob")
    for user in (alice, bob):
        for agent in ("bot", "bot-2"):
            user.call(agent, "remember", key="name", content=f"{user.name} at {agent}")
    for user in (alice, bob):
        for agent in ("bot", "bot-2"):
            assert user.call(agent, "recall", key="name")["content"] == f"{user.name} at {agent}"
            assert user.call(agent, "recall", key="name")["version"] == 1
            assert user.keys(agent, "list_memories") == ["name"]
            found = user.call(agent, "search_memory", query="whose name is it", min_score=0)["items"]
            assert [item["content"] for item in found] == [f"{user.name} at {agent}"]
    alice.call("bot", "forget", key="name")
    assert "list_memories" in alice.refused(404, "bot", "recall", key="name")
    alice.refused(404, "bot", "forget", key="name")
    assert alice.call("bot-2", "recall", key="name")
    assert bob.call("bot", "recall", key="name")


def test_private_memory_lies_at_the_template_without_the_session_and_persists(table: Table) -> None:
    alice = table.player("alice")
    alice.call("bot", "remember", where={"session_id": "monday"}, key="tea", content="green")
    assert alice.call("bot", "recall", where={"session_id": "tuesday"}, key="tea")["content"] == "green"
    assert alice.call("bot", "recall", key="tea")["content"] == "green"
    alice.call("bot-2", "remember", where={"session_id": "monday"}, key="tea", content="black")
    spaces = table.admin.see("/v1/memories/namespaces", suffix=["u", alice.name])["namespaces"]
    rooms = [room for room in spaces if room[0] != "calls"]
    assert rooms == [["agent", "bot", "u", alice.name], ["agent", "bot-2", "u", alice.name]]


@pytest.mark.parametrize("name", ["alice:admin", "a/b", "%", "%3A", "u", "user", "Ünïcödé ☃", "..", "a b"])
def test_any_user_id_is_a_room_of_its_own(table: Table, name: str) -> None:
    somebody, other = table.known(name), table.player()
    somebody.call("bot", "remember", key="mine", content=name)
    assert somebody.call("bot", "recall", key="mine")["content"] == name
    other.refused(404, "bot", "recall", key="mine")
    held = table.admin.see("/v1/memories/namespaces", prefix=["agent", "bot"], suffix=["u", name])
    assert held["namespaces"] == [["agent", "bot", "u", name]]


def test_an_isolated_session_remembers_only_itself(table: Table) -> None:
    alice = table.player("alice")
    monday, tuesday = {"session_id": "monday"}, {"session_id": "tuesday"}
    alice.call("isolated", "remember", where=monday, key="tea", content="green")
    assert alice.call("isolated", "recall", where=monday, key="tea")["content"] == "green"
    alice.refused(404, "isolated", "recall", where=tuesday, key="tea")
    assert alice.keys("isolated", "list_memories", where=tuesday) == []
    assert "session_id" in alice.refused(400, "isolated", "recall", key="tea")
    for session in ("u", "user"):
        alice.refused(400, "isolated", "remember", where={"session_id": session}, key="k", content="c")
    rooms = alice.see("/v1/agents/isolated/memory")["rooms"]
    assert [(room["room"], room["namespace"][1], room["memories"]) for room in rooms] == [
        ("private", "monday", 1)
    ]


def test_what_was_left_in_sessions_is_found_by_who_wrote_it_and_ends_with_the_first_remember(
    table: Table,
) -> None:
    alice, bob, carol = table.player("alice"), table.player("bob"), table.player("carol")
    room = table.new_id()
    table.brought(["agent", "bot", f"{room}-1"], "tea", "green tea of Alice", alice.name)
    table.brought(["agent", "bot", f"{room}-2"], "tea", "mint tea of Alice", alice.name)
    table.brought(["agent", "bot", f"{room}-2"], "hat", "a hat of Alice", alice.name)
    table.brought(["agent", "bot", f"{room}-2"], "tea of bob", "black tea of Bob", bob.name)
    table.brought(["agent", "bot", f"{room}-2"], "nobody", "tea of nobody", None)
    table.brought(["agent", "bot-2", room], "wrong", "tea elsewhere", alice.name)
    table.brought(["agent", "bot-2x", room], "wrong", "tea elsewhere", alice.name)
    assert alice.call("bot", "recall", key="tea")["content"] == "mint tea of Alice"
    assert sorted(alice.keys("bot", "list_memories")) == ["hat", "tea"]
    found = alice.call("bot", "search_memory", query="tea")["items"]
    assert [item["content"] for item in found if item["key"] == "tea"] == ["mint tea of Alice"]
    assert {item["key"] for item in found} <= {"tea", "hat"}
    older = [each for each in alice.see("/v1/agents/bot/memory")["rooms"] if each["room"] == "private, older"]
    assert sorted(each["memories"] for each in older) == [1, 2]
    assert bob.keys("bot", "list_memories") == ["tea of bob"]
    for user, key in ((bob, "tea"), (carol, "tea"), (bob, "nobody"), (alice, "nobody"), (alice, "wrong")):
        user.refused(404, "bot", "recall", key=key)
    assert carol.keys("bot", "list_memories") == []
    assert carol.call("bot", "search_memory", query="tea")["items"] == []
    assert alice.keys("bot-2", "list_memories") == ["wrong"]
    alice.call("bot", "remember", key="new", content="from now on")
    assert alice.keys("bot", "list_memories") == ["new"]
    alice.refused(404, "bot", "recall", key="tea")
    assert alice.call("bot", "search_memory", query="tea", min_score=0)["items"][0]["key"] == "new"
    assert bob.keys("bot", "list_memories") == ["tea of bob"]
    receipt = table.admin.ask("POST", f"/v1/admin/users/{alice.name}/wipe", json={}).json()
    assert [left["namespace"] for left in receipt["shared_left"]] == [["agent", "bot-2x", room]]
    assert alice.keys("bot-2", "list_memories") == []
    assert bob.keys("bot", "list_memories") == ["tea of bob"]


def test_what_is_forgotten_is_forgotten_in_older_rooms_too_and_nothing_comes_back(table: Table) -> None:
    alice, bob, room = table.player("alice"), table.player("bob"), table.new_id()
    for session, content in (("1", "green tea"), ("2", "mint tea")):
        table.brought(["agent", "bot", f"{room}-{session}"], "tea", content, alice.name)
    for key in ("hat", "coat"):
        table.brought(["agent", "bot", f"{room}-2"], key, f"a {key} of Alice", alice.name)
    table.brought(["agent", "bot", f"{room}-3"], "tea", "black tea", bob.name)
    assert alice.call("bot", "forget", key="tea") == {"key": "tea", "forgotten": True}
    assert_gone(alice, "tea", ["coat", "hat"])
    alice.call("bot", "remember", key="hat", content="a new hat")
    alice.call("bot", "forget", key="hat")
    assert_gone(alice, "hat", ["coat"])
    for key in ("coat", "shoe"):
        alice.call("bot", "remember", key=key, content=f"a new {key}")
    for key in ("coat", "shoe"):
        alice.call("bot", "forget", key=key)
        assert_gone(alice, key, ["shoe"] if key == "coat" else [])
    rooms = alice.see("/v1/agents/bot/memory")["rooms"]
    assert not [each for each in rooms if each["room"] == "private, older"]
    assert bob.call("bot", "recall", key="tea")["content"] == "black tea"


def assert_gone(player: Player, key: str, left: list[str]) -> None:
    player.refused(404, "bot", "recall", key=key)
    player.refused(404, "bot", "forget", key=key)
    assert sorted(player.keys("bot", "list_memories")) == left
    assert sorted(player.keys("bot", "search_memory", query=f"{key} of Alice", min_score=0)) == left


def test_child_namespaces_of_every_kind_are_read_listed_and_forgotten(table: Table) -> None:
    alice, bob, room = table.player("alice"), table.player("bob"), table.new_id()
    own = {
        "below": ["agent", "bot", "u", alice.name, room],
        "by session": ["agent", "bot", room, "u", alice.name],
        "of nobody": ["agent", "bot", room],
    }
    for kind, namespace in own.items():
        table.brought(namespace, kind, f"green tea {kind}", alice.name)
        table.brought(namespace, "drink", f"black tea {kind}", alice.name)
    table.brought(["agent", "bot", "u", bob.name, room], "drink", "tea of Bob", bob.name)
    table.brought(["agent", "bot", room, "u", bob.name], "hat", "hat of Bob", bob.name)
    table.brought(["agent", "bot-2", room, "u", alice.name], "elsewhere", "tea elsewhere", alice.name)
    assert alice.keys("bot", "list_memories") == ["drink", "of nobody", "by session", "below"]
    assert sorted(alice.keys("bot", "search_memory", query="tea")) == sorted([*own, "drink"])
    assert alice.call("bot", "recall", key="drink")["content"] == "black tea of nobody"
    told = alice.ask("POST", "/v1/agents/bot/context", json={"session_id": room, "message": "Hello"}).json()
    assert all(kind in str(told["messages"]) for kind in own)
    assert "Bob" not in str(told["messages"])
    rooms = alice.see("/v1/agents/bot/memory")["rooms"]
    children = {(*each["namespace"],): each["memories"] for each in rooms if each["room"] == "private, older"}
    assert children == {(*namespace,): 2 for namespace in own.values()}
    alice.call("bot", "forget", key="drink")
    assert sorted(alice.keys("bot", "list_memories")) == sorted(own)
    assert sorted(bob.keys("bot", "list_memories")) == ["drink", "hat"]
    alice.call("bot", "remember", key="new", content="from now on")
    assert alice.keys("bot", "list_memories") == ["new"]


def test_older_memories_are_listed_page_by_page(table: Table) -> None:
    alice, room = table.player("alice"), table.new_id()
    for number in range(5):
        table.brought(["agent", "bot", f"{room}-{number}"], f"k{number}", "c", alice.name)
    first = alice.call("bot", "list_memories", limit=2)
    assert ([item["key"] for item in first["items"]], first["next_offset"]) == (["k4", "k3"], 2)
    last = alice.call("bot", "list_memories", limit=2, offset=4)
    assert ([item["key"] for item in last["items"]], "next_offset" in last) == (["k0"], False)


def test_what_lies_below_a_room_is_not_in_it_and_is_read_while_a_private_room_is_empty(table: Table) -> None:
    alice, room = table.player("alice"), table.new_id()
    own = ("u", alice.name)
    for place in (("agent", "bot", *own), ("facts", "bot", *own), ("user", alice.name, "long-term", "all")):
        body = {"namespace": [*place, "below"], "key": "child", "value": {"content": "tea"},
                "index": {"content": "tea"}}  # fmt: skip
        assert alice.ask("PUT", "/v1/memories", json=body).status_code == 200
    table.brought(["agent", "bot", room], "old", "tea", alice.name)
    for expected in (["old", "child"], ["new"]):
        assert alice.keys("bot", "list_memories") == expected
        assert sorted(alice.keys("bot", "search_memory", query="tea")) == sorted(expected)
        for key in {"old", "child", "new"}.difference(expected):
            alice.refused(404, "bot", "recall", key=key)
        for key in expected:
            assert alice.call("bot", "recall", key=key)
        alice.call("bot", "remember", key="new", content="tea")
    assert alice.call("bot", "recall_facts", query="tea")["items"] == []
    assert alice.call("bot", "memory_recall", query="tea")["items"] == []
    for number in range(3):
        assert alice.call("bot", "learn_fact", content=f"tea {number}")["evicted"] == []
    shown = alice.see("/v1/agents/bot/memory")["rooms"]
    counts = [each["memories"] for each in shown if each["room"] in ("private", "facts", "long-term")]
    assert counts == [1, 3, 0, 0]
    children = [(each["namespace"], each["memories"]) for each in shown if each["room"] == "private, older"]
    assert children == [(["agent", "bot", room], 1), (["agent", "bot", *own, "below"], 1)]


def test_only_without_authentication_is_found_what_nobody_wrote(tmp_path: Path) -> None:
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    with serving(tmp_path, "--agents", specs) as service:
        line = '{"namespace":["agent","bot","s"],"key":"%s","value":{"content":"c"},"written_by":%s}\n'
        authors = {"nobody": '{"user":null}', "noop": '{"user":"noop"}', "alice": '{"user":"alice"}'}
        content = "".join(line % (key, author) for key, author in authors.items()).encode()
        headers = {"content-type": "application/x-ndjson"}
        brought = service.call("POST", "/v1/memories/import", content=content, headers=headers)
        assert brought.json()["failed"] == [], brought.text
        listed = service.call("POST", "/v1/agents/bot/tools/list_memories", json={})
        assert {item["key"] for item in listed.json()["result"]["items"]} == {"nobody", "noop"}
        kept = {"arguments": {"key": "k", "content": "c"}}
        assert service.call("POST", "/v1/agents/bot/tools/remember", json=kept).status_code == 200
        assert service.get(["agent", "bot", "u", "noop"], "k").status_code == 200


def test_a_room_shows_what_a_user_wrote_there_without_an_agent(table: Table) -> None:
    alice = table.player("alice")
    odd = {"key": "forged", "version": 99, "written_by": {"user": "bob"}, "more": [1]}
    assert alice.put("agent", "bot", "u", alice.name, key="odd", value=odd).status_code == 200
    shown = alice.call("bot", "recall", key="odd")
    assert (shown["key"], shown["version"], shown["more"]) == ("odd", 1, [1])
    assert shown["written_by"] == {"user": alice.name, "agent": None}
    assert alice.keys("bot", "list_memories") == ["odd"]
