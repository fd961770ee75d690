"""Pools and teams over REST: who may enter, who wrote what, and what a call without an agent may see."""

from __future__ import annotations

import pytest

from tests.support.agent_service import Table
from tests.support.service import assert_error


def test_a_pool_is_common_to_users_and_to_the_agents_that_declare_it(table: Table) -> None:
    alice, bob, key = table.player("alice"), table.player("bob"), table.new_id()
    alice.call("bot", "share_to", pool="org:docs", key=key, content=f"the handbook {key}")
    read = bob.call("bot-2", "read_from_pool", pool="org:docs", key=key)
    assert read["content"] == f"the handbook {key}"
    assert read["written_by"] == {"user": alice.name, "agent": "bot"}
    said = bob.tried("bot-2", "read_from_pool", pool="org:docs", key=key).json()["text"]
    assert f"by bot for {alice.name}" in said
    assert key in bob.keys("bot", "list_pool", pool="org:docs", limit=100)
    found = bob.call("bot", "search_pool", pool="org:docs", query=f"handbook {key}")["items"]
    assert {item["written_by"]["agent"] for item in found} == {"bot"}
    bob.call("bot-2", "share_to", pool="org:docs", key=key, content="better")
    assert alice.call("bot", "read_from_pool", pool="org:docs", key=key)["written_by"] == {
        "user": bob.name,
        "agent": "bot-2",
    }
    assert "list_pool" in bob.refused(404, "bot", "read_from_pool", pool="org:docs", key="nothing")


@pytest.mark.parametrize(
    "pool",
    ["org", "org:docs:sub", "org:secret", "team:crew", "user:alice", "agent:bot:u:alice", "", "global"],
)
def test_an_undeclared_pool_is_refused_with_the_pools_there_are(table: Table, pool: str) -> None:
    alice = table.player("alice")
    for tool, given in (
        ("share_to", {"key": "k", "content": "c"}),
        ("read_from_pool", {"key": "k"}),
        ("search_pool", {"query": "q"}),
        ("list_pool", {}),
    ):
        said = alice.refused(400, "bot", tool, pool=pool, **given)
        assert "org:docs, project:bot-shared" in said


def test_the_pools_of_one_agent_are_not_those_of_another(table: Table) -> None:
    alice = table.player("alice")
    alice.call("bot", "share_to", pool="project:bot-shared", key="k", content="c")
    alice.refused(400, "bot-2", "read_from_pool", pool="project:bot-shared", key="k")
    alice.refused(404, "plain", "read_from_pool", pool="org:docs", key="k")


def test_a_team_shares_across_users_and_its_workers_keep_their_own_rooms(table: Table) -> None:
    alice, bob, key, crew = table.player("alice"), table.player("bob"), table.new_id(), {"team": "crew"}
    alice.call("bot", "share_finding", where=crew, key=key, content=f"found {key}")
    read = bob.call("bot-2", "read_shared", where=crew, key=key)
    assert (read["content"], read["written_by"]) == (f"found {key}", {"user": alice.name, "agent": "bot"})
    assert key in bob.keys("bot-2", "list_shared", where=crew, limit=100)
    found = bob.call("bot", "search_shared", where=crew, query=f"found {key}", limit=100)["items"]
    assert key in [item["key"] for item in found]
    alice.call("bot", "remember", where=crew, key="own", content="alone")
    alice.call("bot", "share_to", where=crew, pool="org:docs", key=key, content="c")
    bob.refused(404, "bot", "recall", where=crew, key="own")
    alice.refused(404, "bot-2", "recall", where=crew, key="own")


def test_no_team_no_team_tools(table: Table) -> None:
    alice, staff = table.player("alice"), table.player("staff", groups=["staff"])
    names = {each["function"]["name"] for each in alice.see("/v1/agents/bot/tools")["tools"]}
    assert not names & {"share_finding", "read_shared", "search_shared", "list_shared"}
    within = {each["function"]["name"] for each in alice.see("/v1/agents/bot/tools", team="crew")["tools"]}
    assert within - names == {"share_finding", "read_shared", "search_shared", "list_shared"}
    alice.refused(404, "bot", "share_finding", key="k", content="c")
    alice.refused(404, "bot", "list_shared", where={"team": "silent"})
    for agent, team in (("third", "crew"), ("bot", "closed"), ("bot", "nonesuch"), ("bot", "")):
        said = alice.refused(404, agent, "list_shared", where={"team": team})
        alice.refused(404, agent, "remember", where={"team": team}, key="k", content="c")
        assert said == f"there is no team {team!r} with the worker {agent!r}"
    assert_error(alice.ask("GET", "/v1/agents/bot/tools", params={"team": "closed"}), 404, "not_found")
    assert staff.call("bot", "share_finding", where={"team": "closed"}, key="k", content="c")
    assert [team["name"] for team in alice.see("/v1/teams")["teams"]] == ["crew", "silent"]
    assert [team["name"] for team in staff.see("/v1/teams")["teams"]] == ["crew", "closed", "silent"]


def test_who_may_not_use_an_agent_cannot_tell_that_it_exists(table: Table) -> None:
    paths = ["", "/memory", "/tools", "/calls", "/rooms/global", "/rooms/global/events"]
    for name, claims in (
        ("mallory", {}),
        ("staff", {}),
        ("group:staff", {}),
        ("m", {"groups": "staff"}),
        ("m", {"groups": ["staff", 1]}),
        ("m", {"groups": ["Staff"]}),
        ("carola", {"roles": ["admin"]}),
        ("system", {}),
    ):
        stranger = table.known(name, **claims)
        assert "secret" not in [agent["name"] for agent in stranger.see("/v1/agents")["agents"]]
        for path in paths:
            there, nowhere = (stranger.ask("GET", f"/v1/agents/{who}{path}") for who in ("secret", "nosuch"))
            assert_error(there, 404, "not_found")
            assert there.json()["error"].replace("secret", "nosuch") == nowhere.json()["error"]
        stranger.refused(404, "secret", "remember", key="k", content="c")
        stranger.refused(404, "owned", "remember", key="k", content="c")
    for friend in (table.known("carol"), table.player(groups=["other", "staff"])):
        assert friend.see("/v1/agents/secret")["name"] == "secret"
        friend.call("secret", "remember", key="k", content=friend.name)
        assert friend.call("secret", "recall", key="k")["content"] == friend.name
    assert table.known("dora").call("owned", "remember", key="k", content="c")


def test_a_call_without_an_agent_reads_pools_and_teams_and_no_scratch_room(table: Table) -> None:
    alice, bob, key, run = table.player("alice"), table.player("bob"), table.new_id(), table.new_id()
    carol = table.known("carol")
    alice.call("bot", "share_to", pool="org:docs", key=key, content="shared words")
    alice.call("bot", "share_finding", where={"team": "crew"}, key=key, content="shared words")
    carol.call("secret", "share_to", pool="org:secret", key=key, content="hidden words")
    workflow = {"instances": {"workflow": run}}
    alice.call("bot", "shared_memory_write", where=workflow, namespace="workflow", key=key, value=1)
    alice.call("bot", "shared_memory_write", key=key, value=1)
    service = table.service
    for room in (["org", "docs"], ["team", "crew"]):
        assert service.get(room, key, bob.token).status_code == 200
        body = {"namespace_prefix": room, "query": "shared words", "limit": 100}
        found = bob.ask("POST", "/v1/memories/search", json=body).json()["items"]
        assert key in [item["key"] for item in found]
        assert_error(bob.put(*room, key=key), 403, "permission_denied")
        assert_error(
            bob.ask("DELETE", "/v1/memories", params={"ns": room, "key": key}), 403, "permission_denied"
        )
    assert service.get(["org", "secret"], key, carol.token).status_code == 200
    for who in (alice, bob):
        for room in (["org", "secret"], ["workflow", run], ["global"], ["org"], ["team"], ["runs"]):
            assert_error(service.get(room, key, who.token), 403, "permission_denied")
            found = who.ask("POST", "/v1/memories/search", json={"namespace_prefix": room}).json()["items"]
            assert all(item["namespace"][:2] == ["user", who.name] for item in found), found
            events = who.see("/v1/memories/events", ns=room)["events"]
            assert all(event["namespace"][:2] == ["user", who.name] for event in events)


def test_the_rooms_an_agent_has_for_a_caller_are_listed_with_counts(table: Table) -> None:
    alice, run = table.player("alice"), table.new_id()
    where = {"session_id": table.new_id(), "instances": {"workflow": run}}
    alice.call("bot", "remember", key="k", content="c")
    alice.call("bot", "learn_fact", content="f")
    alice.call("bot", "memory_remember", content="for all", scope="all")
    for kind in ("workflow", "session", "agent"):
        alice.call("bot", "shared_memory_write", where=where, namespace=kind, key="k", value=1)
    rooms = {(room["room"], *room["namespace"]): room["memories"]
             for room in alice.see("/v1/agents/bot/memory")["rooms"]}  # fmt: skip
    own = ("u", alice.name)
    expected = {
        ("private", "agent", "bot", *own): 1,
        ("facts", "facts", "bot", *own): 1,
        ("long-term", "user", alice.name, "long-term", "all"): 1,
        ("long-term", "user", alice.name, "long-term", "agent", "bot"): 0,
        ("workflow", "workflow", run): 1,
        ("session", "session", where["session_id"], *own): 1,
        ("agent", "agent-room", "bot", *own): 1,
    }
    assert expected.items() <= rooms.items()
    assert {kind for kind, *_ in set(rooms) - set(expected)} <= {"pool", "team", "global"}
    others = [room["namespace"] for room in table.player().see("/v1/agents/bot/memory")["rooms"]]
    assert ["workflow", run] not in others
    assert not [room for room in others if alice.name in room]
