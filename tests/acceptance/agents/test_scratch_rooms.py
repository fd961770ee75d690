"""Scratch rooms and runs over REST: bound to an instance, opened by a write, shut to everybody else."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.agent_service import Player, Table, at, write
from tests.support.service import assert_error

RUNS = ("workflow", "swarm", "debate")


@pytest.mark.parametrize("kind", [*RUNS, "session"])
def test_a_room_of_an_instance_needs_one(table: Table, kind: str) -> None:
    alice = table.player("alice")
    for tool, given in (
        ("shared_memory_write", {"key": "k", "value": 1}),
        ("shared_memory_read", {"key": "k"}),
        ("shared_memory_list", {}),
        ("shared_memory_delete", {"key": "k"}),
    ):
        field = "session_id" if kind == "session" else f"instances.{kind}"
        assert field in alice.refused(400, "bot", tool, namespace=kind, **given)
        for wrong in ("", "u"):
            alice.refused(400, "bot", tool, where=at(kind, wrong), namespace=kind, **given)
    assert_error(alice.ask("GET", f"/v1/agents/bot/rooms/{kind}"), 400, "invalid_request")


@pytest.mark.parametrize("kind", RUNS)
def test_the_first_write_opens_a_run_and_a_read_does_not(table: Table, kind: str) -> None:
    alice, bob, run = table.player("alice"), table.player("bob"), table.new_id()
    for tool, given in (("read", {"key": "k"}), ("list", {}), ("delete", {"key": "k"})):
        alice.refused(404, "bot", f"shared_memory_{tool}", where=at(kind, run), namespace=kind, **given)
    assert_error(alice.ask("GET", f"/v1/agents/bot/rooms/{kind}", params={"instance": run}), 404, "not_found")
    assert write(bob, kind, run)["version"] == 1
    more: dict[str, Any]
    for tool, more in (
        ("write", {"key": "k", "value": 2}),
        ("read", {"key": "k"}),
        ("list", {}),
        ("delete", {"key": "k"}),
    ):
        alice.refused(404, "bot", f"shared_memory_{tool}", where=at(kind, run), namespace=kind, **more)
    for method, body in (("PATCH", {"members": []}), ("DELETE", None)):
        assert_error(alice.ask(method, f"/v1/runs/{kind}/{run}", json=body), 404, "not_found")
    assert_error(alice.ask("POST", "/v1/runs", json={"kind": kind, "id": run}), 404, "not_found")
    assert_error(bob.ask("POST", "/v1/runs", json={"kind": kind, "id": run}), 409, "conflict")
    assert bob.call("bot", "shared_memory_read", where=at(kind, run), namespace=kind, key="k")["value"] == 1


def test_a_run_for_several_is_theirs_until_they_are_let_go(table: Table) -> None:
    alice, bob, carol = table.player("alice"), table.player("bob"), table.player("carol")
    opened = alice.ask("POST", "/v1/runs", json={"kind": "workflow", "members": [bob.name]}).json()
    run = opened["id"]
    assert opened == {"kind": "workflow", "id": run, "owner": alice.name, "members": sorted(
        [alice.name, bob.name])}  # fmt: skip
    write(bob, "workflow", run, value={"by": "bob"})
    read = alice.call("bot", "shared_memory_read", where=at("workflow", run), namespace="workflow", key="k")
    assert (read["value"], read["written_by"]) == ({"by": "bob"}, {"user": bob.name, "agent": "bot"})
    carol.refused(404, "bot", "shared_memory_read", where=at("workflow", run), namespace="workflow", key="k")
    assert_error(bob.ask("PATCH", f"/v1/runs/workflow/{run}", json={"members": []}), 403, "permission_denied")
    assert_error(bob.ask("DELETE", f"/v1/runs/workflow/{run}"), 403, "permission_denied")
    reset = f"/v1/agents/bot/rooms/workflow?instance={run}"
    assert_error(bob.ask("DELETE", reset), 403, "permission_denied")
    assert_error(carol.ask("DELETE", reset), 404, "not_found")
    changed = alice.ask("PATCH", f"/v1/runs/workflow/{run}", json={"members": [carol.name]}).json()
    assert changed["members"] == sorted([alice.name, carol.name])
    bob.refused(404, "bot", "shared_memory_read", where=at("workflow", run), namespace="workflow", key="k")
    assert carol.call("bot", "shared_memory_read", where=at("workflow", run), namespace="workflow", key="k")
    for wrong in ({"kind": "agent"}, {"kind": "workflow", "id": ""}, {"kind": "swarm", "id": "u"},
                  {"kind": "debate", "members": [""]},
                  {"kind": "debate", "members": ["m"] * 1001}):  # fmt: skip
        assert_error(alice.ask("POST", "/v1/runs", json=wrong), 400, "invalid_request")


def test_closing_a_run_takes_its_room_and_its_players_rooms_and_nothing_else(table: Table) -> None:
    alice, bob, run, other = table.player("alice"), table.player("bob"), table.new_id(), table.new_id()
    alice.ask("POST", "/v1/runs", json={"kind": "workflow", "id": run, "members": [bob.name]})
    for player in (alice, bob):
        write(player, "workflow", run, key=player.name)
        for each in (run, other):
            where = {"instances": {"workflow": each}}
            player.call("bot", "shared_memory_write", where=where, namespace="agent", key="own", value=each)
    write(alice, "workflow", other)
    assert alice.ask("DELETE", f"/v1/runs/workflow/{run}").status_code == 204
    left = table.admin.see("/v1/memories/namespaces", prefix=["agent-room", "bot"])["namespaces"]
    assert sorted(room[3:] for room in left if room[3] in (alice.name, bob.name)) == sorted(
        [[alice.name, other], [bob.name, other]]
    )
    alice.refused(404, "bot", "shared_memory_list", where=at("workflow", run), namespace="workflow")
    assert write(bob, "workflow", run)["version"] == 1
    assert bob.keys("bot", "shared_memory_list", where=at("workflow", run), namespace="workflow") == ["k"]
    alice.refused(404, "bot", "shared_memory_list", where=at("workflow", run), namespace="workflow")
    assert alice.keys("bot", "shared_memory_list", where=at("workflow", other), namespace="workflow") == ["k"]


def test_a_reset_starts_versions_at_1_in_that_run_only(table: Table) -> None:
    alice, run, other = table.player("alice"), table.new_id(), table.new_id()
    for each in (run, other):
        for value in range(3):
            write(alice, "workflow", each, value=value)
    assert alice.ask("DELETE", f"/v1/agents/bot/rooms/workflow?instance={run}").status_code == 204
    assert alice.keys("bot", "shared_memory_list", where=at("workflow", run), namespace="workflow") == []
    assert write(alice, "workflow", run)["version"] == 1
    assert write(alice, "workflow", other)["version"] == 4
    for kind in ("session", "agent"):
        instance = {"instance": run} if kind == "session" else {}
        write(alice, kind, run if kind == "session" else None)
        assert alice.ask("DELETE", f"/v1/agents/bot/rooms/{kind}", params=instance).status_code == 204
        assert write(alice, kind, run if kind == "session" else None)["version"] == 1
    assert_error(alice.ask("DELETE", "/v1/agents/bot/rooms/global"), 403, "permission_denied")
    assert_error(alice.ask("DELETE", "/v1/agents/bot/rooms/nosuch"), 400, "invalid_request")


def test_versions_agree_or_conflict(table: Table) -> None:
    alice, run = table.player("alice"), table.new_id()
    assert write(alice, "swarm", run, expected_version=0)["version"] == 1
    wrong: dict[str, Any] = {"where": at("swarm", run), "namespace": "swarm", "key": "k", "value": 2}
    for version in (0, 2, 99):
        said = alice.refused(409, "bot", "shared_memory_write", expected_version=version, **wrong)
        assert run not in said
    assert write(alice, "swarm", run, expected_version=1, metadata={"why": "better"})["version"] == 2
    read = alice.call("bot", "shared_memory_read", where=at("swarm", run), namespace="swarm", key="k")
    assert (read["metadata"], read["version"]) == ({"why": "better"}, 2)
    alice.refused(400, "bot", "shared_memory_write", expected_version=-1, **wrong)
    stats = alice.see("/v1/agents/bot/rooms/swarm", instance=run)
    assert {name: stats[name] for name in ("keys", "reads", "writes", "conflicts")} == {
        "keys": 1, "reads": 1, "writes": 2, "conflicts": 3}  # fmt: skip
    assert stats["bytes"] > 0


def test_session_and_agent_rooms_coexist_and_are_each_users_own(table: Table) -> None:
    alice, bob, session = table.player("alice"), table.player("bob"), table.new_id()
    for player in (alice, bob):
        for agent in ("bot", "bot-2"):
            for kind in ("session", "agent"):
                write(
                    player,
                    kind,
                    session if kind == "session" else None,
                    agent=agent,
                    value=[player.name, agent],
                )
    for player in (alice, bob):
        for agent in ("bot", "bot-2"):
            where = {"session_id": session}
            read = {
                kind: player.call(agent, "shared_memory_read", where=where, namespace=kind, key="k")
                for kind in ("session", "agent")
            }
            assert (read["session"]["value"], read["session"]["version"]) == ([player.name, "bot-2"], 2)
            assert (read["agent"]["value"], read["agent"]["version"]) == ([player.name, agent], 1)


def test_no_spelling_of_a_key_or_an_agent_reaches_another_room(table: Table) -> None:
    alice, where = table.player("alice"), {"instances": {"workflow": "wf"}}
    places = [
        ("fighter", {}, "sheet"),
        ("fighter", where, "sheet"),
        ("wf:fighter", {}, "sheet"),
        ("wf:fighter", where, "sheet"),
        ("fighter", where, "fighter:sheet"),
        ("wf:fighter", {}, "fighter:sheet"),
        ("fighter", {"instances": {"workflow": "wf:fighter"}}, "sheet"),
        ("fighter", {"instances": {"workflow": "u"}}, "sheet"),
        ("fighter", {}, "wf:sheet"),
        ("fighter", {}, "../wf:fighter/sheet"),
        ("odd/name:1", {}, "sheet"),
    ]
    for number, (agent, instance, key) in enumerate(places):
        written = alice.call(
            agent, "shared_memory_write", where=instance, namespace="agent", key=key, value=number
        )
        assert written["version"] == 1, (agent, instance, key)
    for number, (agent, instance, key) in enumerate(places):
        read = alice.call(agent, "shared_memory_read", where=instance, namespace="agent", key=key)
        assert (read["value"], read["version"]) == (number, 1)
        listed = alice.keys(agent, "shared_memory_list", where=instance, namespace="agent")
        assert sorted(listed) == sorted(k for a, i, k in places if (a, i) == (agent, instance))


def test_the_global_room_is_the_default_where_it_is_declared_and_the_kind_is_required_elsewhere(
    table: Table,
) -> None:
    alice, bob, key = table.player("alice"), table.player("bob"), table.new_id()
    alice.call("bot", "shared_memory_write", key=f"plan_{key}", value="open to all")
    assert bob.call("bot", "shared_memory_read", key=f"plan_{key}")["written_by"]["user"] == alice.name
    assert bob.keys("bot", "shared_memory_list", pattern=f"p*_{key}") == [f"plan_{key}"]
    assert bob.keys("bot", "shared_memory_list", pattern="no such *") == []
    assert "pattern" in bob.refused(400, "bot", "shared_memory_list", pattern="[" * 100_000)
    said = bob.refused(400, "bot-2", "shared_memory_read", key=key)
    assert "workflow, session, agent" in said
    bob.refused(400, "bot-2", "shared_memory_read", namespace="global", key=key)
    bob.refused(400, "bot", "shared_memory_read", namespace="team", key=key)
    bob.refused(404, "plain", "shared_memory_list")
    bob.call("bot", "shared_memory_delete", key=f"plan_{key}")
    assert "shared_memory_list" in alice.refused(404, "bot", "shared_memory_delete", key=f"plan_{key}")


def enter(player: Player, run: str, gate: threading.Barrier, statuses: dict[str, int]) -> None:
    gate.wait()
    given = {"namespace": "workflow", "key": player.name, "value": 1}
    answer = player.tried("bot", "shared_memory_write", where=at("workflow", run), **given)
    statuses[player.name] = answer.status_code


def test_of_many_who_open_a_run_at_once_one_owns_it(table: Table) -> None:
    for _ in range(3):
        players, run = [table.player() for _ in range(6)], table.new_id()
        statuses: dict[str, int] = {}
        gate = threading.Barrier(len(players))

        threads = [threading.Thread(target=enter, args=(each, run, gate, statuses)) for each in players]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses.values()) == [200] + [404] * 5, statuses
        (owner,) = [player for player in players if statuses[player.name] == 200]
        listed = owner.keys("bot", "shared_memory_list", where=at("workflow", run), namespace="workflow")
        assert listed == [owner.name]
