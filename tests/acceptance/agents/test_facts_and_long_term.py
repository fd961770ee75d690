"""Facts and long-term memory over REST: what is kept, what makes room, what is the same and what similar."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.agent_service import Table


def test_the_oldest_fact_makes_room_and_an_update_evicts_nothing(table: Table) -> None:
    alice, bob = table.player("alice"), table.player("bob")
    for number in range(3):
        learned = alice.call("bot", "learn_fact", key=f"f{number}", content=f"fact {number}")
        assert learned == {"key": f"f{number}", "version": 1, "evicted": []}
    assert alice.call("bot", "learn_fact", key="f2", content="fact 2, better")["evicted"] == []
    assert alice.call("bot", "learn_fact", key="f0", content="fact 0, better")["version"] == 2
    assert alice.call("bot", "learn_fact", content="a fourth")["evicted"] == ["f1"]
    alice.refused(404, "bot", "forget_fact", key="f1")
    assert bob.call("bot", "recall_facts", query="fact")["items"] == []
    bob.refused(404, "bot", "forget_fact", key="f0")
    assert alice.call("bot", "forget_fact", key="f0") == {"key": "f0", "forgotten": True}
    assert alice.call("bot", "learn_fact", content="a fifth")["evicted"] == []


def test_an_update_evicts_nothing_even_where_there_are_too_many(table: Table) -> None:
    """Two agents share a namespace, and the writer's maximum is the one that counts."""
    alice = table.player("alice")
    for number in range(4):
        assert alice.call("bot-2", "learn_fact", key=f"f{number}", content="c")["evicted"] == []
    assert alice.call("third", "learn_fact", key="f3", content="again")["evicted"] == []
    assert alice.call("third", "learn_fact", key="f4", content="new")["evicted"] == ["f0", "f1", "f2"]
    assert alice.call("bot-2", "recall_facts", query="new", limit=100)["items"]
    assert alice.call("bot", "recall_facts", query="new")["items"] == []


def test_facts_are_recalled_by_meaning(table: Table) -> None:
    alice = table.player("alice")
    alice.call("bot", "learn_fact", key="x1", content="She plays the violin in an orchestra.")
    alice.call("bot", "learn_fact", key="x2", content="Her car needs new tyres.")
    found = alice.call("bot", "recall_facts", query="which musical instrument?", limit=1)["items"]
    assert [(fact["key"], fact["content"]) for fact in found] == [
        ("x1", "She plays the violin in an orchestra.")
    ]


def test_the_same_again_updates_and_the_merely_similar_is_added_and_told(table: Table) -> None:
    alice = table.player("alice")
    first = alice.call("bot", "memory_remember", content="Alice is allergic to nuts.", tags=["Food", "food "])
    assert (first["updated"], first["similar"]) == (False, [])
    same = alice.call(
        "bot", "memory_remember", content="  ALICE is allergic,  to nuts!", tags=["health_care"]
    )
    assert (same["memory_id"], same["updated"]) == (first["memory_id"], True)
    said = alice.tried("bot", "memory_remember", content="Alice is allergic to nuts").json()["text"]
    assert "knew that already" in said
    other = alice.call("bot", "memory_remember", content="Alice is not allergic to nuts.")
    assert (other["updated"], [each["memory_id"] for each in other["similar"]]) == (
        False, [first["memory_id"]])  # fmt: skip
    far = alice.call("bot", "memory_remember", content="The moon orbits the earth.")
    assert far["similar"] == []
    found = alice.call("bot", "memory_recall", query="nuts", tags=["FOOD"])["items"]
    assert [(each["memory_id"], each["tags"]) for each in found] == [
        (first["memory_id"], ["health-care", "food"])
    ]
    alice.call("bot", "memory_forget", memory_id=first["memory_id"])
    again = alice.call("bot", "memory_remember", content="Alice is allergic to nuts")
    assert (again["memory_id"], again["updated"]) == (first["memory_id"], False)


def test_kinds_tags_and_scopes(table: Table) -> None:
    alice, bob = table.player("alice"), table.player("bob")
    kinds = ("fact", "preference", "relationship", "instruction")
    for kind in kinds:
        alice.call("bot", "memory_remember", content=f"tea, a {kind}", type=kind, tags=[kind], scope="all")
    mine = alice.call("bot", "memory_remember", content="tea, only here")
    for kind in kinds:
        for agent in ("bot", "bot-2"):
            found = alice.call(agent, "memory_recall", query="tea", type=kind, limit=100)["items"]
            assert [each["type"] for each in found if each["scope"] == "all"] == [kind]
    tagged = alice.call("bot", "memory_recall", query="tea", tags=["fact", "preference"])["items"]
    assert {each["type"] for each in tagged} == {"fact", "preference"}
    contents = [
        each["content"] for each in alice.call("bot-2", "memory_recall", query="tea", limit=9)["items"]
    ]
    assert "tea, only here" not in contents
    assert len(alice.call("bot", "memory_recall", query="tea", limit=2)["items"]) == 2
    assert bob.call("bot", "memory_recall", query="tea")["items"] == []
    wrong: dict[str, Any]
    for wrong in ({"type": "rumour"}, {"scope": "everybody"}, {"tags": [f"t{n}" for n in range(9)]},
                  {"tags": ["x" * 41]}, {"tags": "tea"}, {"content": ""}):  # fmt: skip
        alice.refused(400, "bot", "memory_remember", **{"content": "c", **wrong})
    eight = [f"t{n}" for n in range(8)]
    assert alice.call("bot", "memory_remember", content="many", tags=[*eight, "T0"])
    assert alice.call("bot", "memory_remember", content="many", tags=["one more"])["updated"]
    (many,) = alice.call("bot", "memory_recall", query="many", tags=["one-more"])["items"]
    assert many["tags"] == ["one-more", *eight[:7]]
    lookalikes = [alice.refused(404, "bot-2", "memory_forget", memory_id=mine["memory_id"]),
                  bob.refused(404, "bot", "memory_forget", memory_id=mine["memory_id"]),
                  bob.refused(404, "bot", "memory_forget", memory_id="nonesuch"),
                  bob.refused(404, "bot", "memory_forget", memory_id="agent-nonesuch")]  # fmt: skip
    texts = {said.split("'")[0] + said.split("'")[2] for said in lookalikes}
    assert len(texts) == 1, texts
    assert alice.call("bot", "memory_forget", memory_id=mine["memory_id"])["forgotten"]


@pytest.mark.parametrize(
    "value", [{}, {"content": 7}, {"tags": "x", "type": None}, {"content": "c", "tags": [1]}]
)
def test_what_a_user_wrote_there_themselves_breaks_no_tool(table: Table, value: dict[str, object]) -> None:
    alice = table.player("alice")
    known = alice.call("bot", "memory_remember", content="tea", scope="all")["memory_id"]
    room = ("user", alice.name, "long-term", "all")
    body = {"namespace": room, "key": known, "value": value, "index": {"content": "tea"}}
    assert alice.ask("PUT", "/v1/memories", json=body).status_code == 200
    assert alice.call("bot", "memory_recall", query="tea")["items"][0]["memory_id"] == known
    assert alice.call("bot", "memory_remember", content="tea", scope="all")["updated"]
    for own, tool in ((("facts", "bot"), "recall_facts"), (("agent", "bot"), "search_memory")):
        body = {"namespace": [*own, "u", alice.name], "key": "k", "value": value, "index": {"content": "tea"}}
        assert alice.ask("PUT", "/v1/memories", json=body).status_code == 200
        assert alice.keys("bot", tool, query="tea") == ["k"]
    body = {"namespace": ["agent-room", "bot", "u", alice.name], "key": "k", "value": value}
    assert alice.ask("PUT", "/v1/memories", json=body).status_code == 200
    assert alice.keys("bot", "shared_memory_list", namespace="agent") == ["k"]
    assert alice.call("bot", "shared_memory_read", namespace="agent", key="k")["key"] == "k"
