"""Runs: whose they are, who lists and closes them, and what is said of wrong names, ids and members."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.agent_service import Table, at, write
from tests.support.service import assert_error


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("GET", "/v1/agents/bot/rooms/attic", None, "kind"),
        ("GET", "/v1/agents/bot/rooms/attic?instance=x", None, "kind"),
        ("GET", "/v1/agents/plain/rooms/workflow?instance=w", None, "kind"),
        ("GET", "/v1/agents/bot/rooms/global?instance=x", None, "instance"),
        *(
            (method, f"/v1/agents/bot/rooms/{kind}{tail}{query}", None, "instance")
            for method, tail in (("GET", ""), ("DELETE", ""), ("GET", "/events"))
            for kind in ("workflow", "session", "agent")
            for query in ("", "?instance=", "?instance=u", f"?instance={'x' * 513}")
            if (kind, query) not in (("agent", ""), ("agent", "?instance=u"))
        ),
        ("GET", "/v1/agents/bot/rooms/workflow?instances=w", None, "instances"),
        ("POST", "/v1/runs", {}, "kind"),
        ("POST", "/v1/runs", {"kind": "agent"}, "kind"),
        ("POST", "/v1/runs", {"kind": "workflow", "id": ""}, "id"),
        ("POST", "/v1/runs", {"kind": "workflow", "id": "u", "members": ["bob"]}, "id"),
        ("POST", "/v1/runs", {"kind": "workflow", "id": "x" * 513, "members": ["bob"]}, "id"),
        ("POST", "/v1/runs", {"kind": "workflow", "members": [7]}, "members[0]"),
        ("POST", "/v1/runs", {"kind": "workflow", "members": [""]}, "members"),
        ("PATCH", "/v1/runs/workflow/w", {}, "members"),
        ("PATCH", "/v1/runs/agent/w", {"members": []}, "kind"),
        ("PATCH", "/v1/runs/workflow/u", {"members": []}, "id"),
        ("DELETE", "/v1/runs/agent/w", None, "kind"),
        ("DELETE", "/v1/runs/workflow/" + "x" * 513, None, "id"),
        ("GET", "/v1/runs?limit=0", None, "limit"),
        ("GET", "/v1/runs?limit=101", None, "limit"),
        ("GET", "/v1/runs?offset=-1", None, "offset"),
        ("GET", f"/v1/runs?offset={10**30}", None, "offset"),
        ("GET", "/v1/runs?kind=workflow", None, "kind"),
    ],
)
def test_what_is_wrong_with_a_room_or_a_run_is_named_as_the_caller_named_it(
    table: Table, method: str, path: str, body: Any, field: str
) -> None:
    answer = table.player("alice").ask(method, path, json=body)
    assert assert_error(answer, 400, "invalid_request")["details"]["field"] == field


@pytest.mark.parametrize("wrong", ["u", "", "x" * 513])
def test_what_is_wrong_with_the_instances_of_a_tool_call_is_named_as_the_caller_named_it(
    table: Table, wrong: str
) -> None:
    for kind in ("workflow",) if wrong == "u" else ("workflow", "agent"):
        where = {"instances": {"workflow": wrong}}
        given = {"namespace": kind, "key": "k", "value": 1}
        said = table.player("alice").refused(400, "bot", "shared_memory_write", where=where, **given)
        assert said.startswith("instances.workflow: ")
    long = table.known("y" * 900)
    said = long.refused(400, "bot", "shared_memory_list", where=at("swarm", "x" * 500), namespace="swarm")
    assert said.startswith("instances.swarm: ")


def test_everybody_lists_the_runs_they_own_and_those_they_are_in(table: Table) -> None:
    alice, bob, carol = table.player("alice"), table.player("bob"), table.player("carol")
    both, swarm = table.new_id(), table.new_id()
    opened = alice.ask(
        "POST", "/v1/runs", json={"kind": "workflow", "id": both, "members": [bob.name]}
    ).json()
    write(bob, "swarm", swarm)
    own = {"kind": "swarm", "id": swarm, "owner": bob.name, "members": [bob.name]}
    assert bob.put("runs", "workflow", table.new_id(), "u", bob.name, key="membership").status_code == 200
    assert alice.see("/v1/runs") == {"runs": [opened]}
    assert bob.see("/v1/runs") == {"runs": [own, opened]}
    assert bob.see("/v1/runs", limit=1) == {"runs": [own]}
    assert bob.see("/v1/runs", limit=1, offset=1) == {"runs": [opened]}
    assert carol.see("/v1/runs") == {"runs": []}
    alice.ask("DELETE", f"/v1/runs/workflow/{both}")
    assert alice.see("/v1/runs") == {"runs": []}
    assert bob.see("/v1/runs") == {"runs": [own]}


def test_a_run_whose_owner_was_wiped_is_closed_by_whoever_is_left_in_it(table: Table) -> None:
    alice, bob, carol, run = table.player("alice"), table.player("bob"), table.player("carol"), table.new_id()
    members = [bob.name, carol.name]
    alice.ask("POST", "/v1/runs", json={"kind": "workflow", "id": run, "members": members})
    write(alice, "workflow", run)
    assert_error(bob.ask("DELETE", f"/v1/runs/workflow/{run}"), 403, "permission_denied")
    table.admin.ask("POST", f"/v1/admin/users/{alice.name}/wipe", json={"wait": True})
    assert bob.see("/v1/runs") == {
        "runs": [{"kind": "workflow", "id": run, "owner": None, "members": members}]
    }
    assert_error(bob.ask("PATCH", f"/v1/runs/workflow/{run}", json={"members": []}), 403, "permission_denied")
    assert_error(table.player("dora").ask("DELETE", f"/v1/runs/workflow/{run}"), 404, "not_found")
    assert bob.ask("DELETE", f"/v1/runs/workflow/{run}").status_code == 204
    carol.refused(404, "bot", "shared_memory_list", where=at("workflow", run), namespace="workflow")
    assert carol.see("/v1/runs") == {"runs": []}


def test_a_member_too_long_for_a_namespace_is_refused_before_anything_is_done(table: Table) -> None:
    alice, bob, run = table.player("alice"), table.player("bob"), table.new_id()
    for id, member in ((run, "x" * 2000), (run + "x" * 500, "x" * 900)):
        body = {"kind": "workflow", "id": id, "members": [bob.name, member]}
        answer = alice.ask("POST", "/v1/runs", json=body)
        assert assert_error(answer, 400, "invalid_request")["details"]["field"] == "members"
        assert_error(alice.ask("DELETE", f"/v1/runs/workflow/{id}"), 404, "not_found")
    write(alice, "workflow", run)
    answer = alice.ask("PATCH", f"/v1/runs/workflow/{run}", json={"members": [bob.name, "x" * 2000]})
    assert assert_error(answer, 400, "invalid_request")["details"]["field"] == "members"
    bob.refused(404, "bot", "shared_memory_list", where=at("workflow", run), namespace="workflow")
