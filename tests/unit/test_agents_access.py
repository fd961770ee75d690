"""Who may use an agent, and who may work in a team."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from alcove.agents.rooms import direct_grants
from alcove.agents.specs.loading import load
from alcove.agents.specs.records import Agent, Catalogue, may_use
from alcove.core.errors import NotFound
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal

ALICE = Principal("alice", claims={"groups": ["staff", "eu"]})


@pytest.mark.parametrize(
    ("shared_with", "admitted"),
    [
        (None, True),
        ((), False),
        (("*",), True),
        (("bob", "alice"), True),
        (("bob",), False),
        (("group:staff",), True),
        (("group:us",), False),
        (("staff",), False),
        (("group:alice",), False),
        (("group:*",), False),
    ],
)
def test_shared_with_says_who_may_use_an_agent(shared_with: tuple[str, ...] | None, admitted: bool) -> None:
    assert may_use(Agent(name="a", shared_with=shared_with), ALICE) is admitted


def test_an_empty_list_admits_the_owner_alone() -> None:
    mine = Agent(name="a", owner="alice", shared_with=())
    assert may_use(mine, ALICE)
    assert not may_use(mine, Principal("bob"))
    assert not may_use(Agent(name="a", shared_with=()), Principal("system")), "the operator is no user"


@pytest.mark.parametrize("claim", ["staff", {"staff": 1}, ["staff", 1], None, 7, [["staff"]]])
def test_groups_count_only_as_a_list_of_strings(claim: Any) -> None:
    caller = Principal("alice", claims={"groups": claim})
    assert not may_use(Agent(name="a", shared_with=("group:staff",)), caller)


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    (tmp_path / "a.yaml").write_text(
        """
agents:
  - {name: open, memory: {private: {}, pools: [org, org:docs], facts: {}}}
  - {name: shut, shared_with: [bob], memory: {pools: [secret, org]}}
teams:
  - {name: crew, workers: [open, shut]}
  - {name: bobs, workers: [open], shared_with: [bob]}
  - {name: shuts, workers: [shut]}
"""
    )
    return load(tmp_path)


def test_an_agent_one_may_not_use_is_as_one_that_is_not_there(catalogue: Catalogue) -> None:
    assert catalogue.agent_for(ALICE, "open").name == "open"
    messages = []
    for name in ("shut", "none"):
        with pytest.raises(NotFound) as caught:
            catalogue.agent_for(ALICE, name)
        messages.append(caught.value.message.replace(name, "…"))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("team", ["bobs", "shuts", "none"])
def test_a_team_takes_its_workers_and_whom_it_is_shared_with(catalogue: Catalogue, team: str) -> None:
    agent = catalogue.agents["open"]
    assert catalogue.team_for(ALICE, "crew", agent).name == "crew"
    with pytest.raises(NotFound):
        catalogue.team_for(ALICE, team, agent)


def test_a_direct_call_reads_pools_and_teams_of_the_agents_its_caller_may_use(catalogue: Catalogue) -> None:
    rooms = [("org",), ("org", "docs"), ("team", "crew")]
    assert direct_grants(catalogue, ALICE) == tuple(Grant(Namespace(room), ("read",)) for room in rooms)
    assert {str(grant.namespace) for grant in direct_grants(catalogue, Principal("bob"))} == {
        "org", "org:docs", "secret", "team:crew", "team:bobs", "team:shuts"
    }  # fmt: skip
