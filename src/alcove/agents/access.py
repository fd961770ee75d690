"""Who may use an agent or work in a team; it changes nothing about whose memory is whose."""

from __future__ import annotations

from alcove.agents.rooms import pools, short, team_room
from alcove.agents.specs import SYSTEM, Agent, Catalogue, Team
from alcove.core.errors import NotFound
from alcove.core.principal import Grant, Principal

EVERYBODY = "*"
GROUP = "group:"


def admitted(spec: Agent | Team) -> frozenset[str] | None:
    """The users and groups that `shared_with` admits, and the owner; None for everybody."""
    if spec.shared_with is None or EVERYBODY in spec.shared_with:
        return None
    return frozenset(spec.shared_with) | ({spec.owner} - {SYSTEM})


def may_use(spec: Agent | Team, principal: Principal) -> bool:
    """Whether `shared_with` admits this caller; the owner is always admitted."""
    if spec.shared_with is None or EVERYBODY in spec.shared_with:
        return True
    if principal.user_id == spec.owner != SYSTEM:
        return True
    groups = _groups(principal)
    return any(
        each.removeprefix(GROUP) in groups if each.startswith(GROUP) else each == principal.user_id
        for each in spec.shared_with
    )


def agent_for(catalogue: Catalogue, name: str, principal: Principal) -> Agent:
    """The agent; one that this caller may not use is as one that does not exist."""
    agent = catalogue.agents.get(name)
    if agent is None or not may_use(agent, principal):
        raise NotFound(f"there is no agent {short(name)}")
    return agent


def team_for(catalogue: Catalogue, name: str, agent: Agent, principal: Principal) -> Team:
    """The team, if the agent is its worker and it admits this caller; otherwise as if there were none."""
    team = catalogue.teams.get(name)
    if team is None or agent.name not in team.workers or not may_use(team, principal):
        raise NotFound(f"there is no team {short(name)} with the worker {agent.name!r}")
    return team


def direct_grants(catalogue: Catalogue, principal: Principal) -> tuple[Grant, ...]:
    """What a call without an agent may read: pools and teams of the agents its caller may use."""
    usable = [agent for agent in catalogue.agents.values() if may_use(agent, principal)]
    names = {agent.name for agent in usable}
    rooms = [room for agent in usable for room in pools(agent).values()]
    for team in catalogue.teams.values():
        if may_use(team, principal) and not names.isdisjoint(team.workers):
            rooms += [room for room in (team_room(team),) if room is not None]
    return tuple(Grant(room, ("read",)) for room in dict.fromkeys(rooms))


def _groups(principal: Principal) -> frozenset[str]:
    """Groups count only as a list of strings."""
    claim = principal.claims.get("groups")
    if not isinstance(claim, list):
        return frozenset()
    names = [each for each in claim if isinstance(each, str)]
    return frozenset(names) if len(names) == len(claim) else frozenset()
