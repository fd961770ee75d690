"""Rooms of agents: their exact namespaces, how they keep apart, and the grants that open them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from alcove import Grant, InvalidRequest, Namespace
from alcove.agents.rooms import Rooms
from alcove.agents.specs.records import Agent, Team
from alcove.core.room_template import OWNERS, RESERVED
from tests.support.waiting import LONG

EXAMPLES = settings(max_examples=1500 if LONG else 200, deadline=None)
IDS = st.sampled_from(
    [
        "alice",
        "alice:admin",
        "a/b",
        "%",
        "u",
        "user",
        "facts",
        "session",
        "é",
        "%3A",
        "..",
        "\0",
        "noop",
        "a",
        "b",
    ]
) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
KINDS = ("global", "workflow", "swarm", "debate", "session", "agent")


def agent(name: str = "bot", **memory: Any) -> Agent:
    return msgspec.convert({"name": name, "memory": memory}, Agent)


def private(
    template: str, *, isolated: bool = False, name: str = "bot", user: str = "alice", **given: Any
) -> str:
    spec = agent(name, private={"namespace": template, "session_isolated": isolated})
    return str(Rooms(spec, user, **given).private)


EVERYTHING: dict[str, Any] = {
    "private": {}, "pools": ["org:docs"], "scratch": KINDS, "facts": {}, "long_term": {}
}  # fmt: skip


@pytest.mark.parametrize(
    ("template", "room"),
    [
        ("agent:{agent_name}", "agent:bot"),
        ("agent:{agent_name}:{session_id}", "agent:bot"),
        ("{session_id}:agent:{agent_name}", "agent:bot"),
        ("agent:{session_id}:{agent_name}", "agent:bot"),
        ("agent:{agent_name}-{session_id}", "agent:bot"),
        ("agent:{session_id}_{agent_name}", "agent:bot"),
        ("agent:{agent_name}.{session_id}", "agent:bot"),
        ("agent:{agent_name}{session_id}", "agent:bot"),
        ("agent:{agent_name}-{session_id}-v2", "agent:bot-v2"),
        ("agent:{agent_name}{session_id}.v2", "agent:bot.v2"),
        ("agent:{session_id}-{session_id}:{agent_name}", "agent:bot"),
        ("agent:-{session_id}_:{agent_name}", "agent:bot"),
        ("a:{agent_name}--{session_id}", "a:bot"),
        ("agent:{user_id}:{agent_name}", "agent:alice:bot"),
        ("agent:100%25:{agent_name}", "agent:100%25:bot"),
    ],
)
def test_a_session_is_removed_cleanly_wherever_it_stands(template: str, room: str) -> None:
    assert private(template) == f"{room}:u:alice"
    assert private(template, session_id="s1") == f"{room}:u:alice"


@pytest.mark.parametrize(
    ("template", "room"),
    [
        ("agent:{agent_name}:{session_id}", "agent:bot:s%3A1"),
        ("{session_id}:{agent_name}", "s%3A1:bot"),
        ("agent:{agent_name}-{session_id}-v2", "agent:bot-s%3A1-v2"),
    ],
)
def test_an_isolated_session_stays_in_its_place(template: str, room: str) -> None:
    assert private(template, isolated=True, session_id="s:1") == f"{room}:u:alice"


def test_an_isolated_room_needs_a_session_and_has_no_fallback() -> None:
    spec = agent(private={"namespace": "a:{session_id}", "session_isolated": True}, pools=["org"])
    with pytest.raises(InvalidRequest) as caught:
        _ = Rooms(spec, "alice").private
    assert caught.value.field == "session_id"
    assert Rooms(spec, "alice", session_id="s").fallback is None


def test_names_are_filled_in_once_so_that_a_name_is_never_a_placeholder() -> None:
    assert private("agent:{agent_name}", name="{session_id}", session_id="s") == "agent:{session_id}:u:alice"
    assert private("agent:{agent_name}", name="-a:b-") == "agent:-a%3Ab-:u:alice"


@pytest.mark.parametrize(
    "user", ["alice", "alice:admin", "a/b", "%", "u", "user", "Ünïcode 😀", "facts", "noop"]
)
def test_every_room_has_exactly_the_segments_of_the_contract(user: str) -> None:
    rooms = Rooms(agent(**EVERYTHING), user, session_id="s", instances={"workflow": "w", "swarm": "x"})
    assert rooms.private == ("agent", "bot", "u", user)
    assert rooms.fallback == Grant(Namespace(("agent", "bot")), ("read",), (user,))
    assert rooms.pools == {"org:docs": ("org", "docs")}
    assert rooms.facts == ("facts", "bot", "u", user)
    assert rooms.long_term == {
        "all": ("user", user, "long-term", "all"),
        "agent": ("user", user, "long-term", "agent", "bot"),
    }
    assert rooms.scratch("global") == ("global",)
    assert rooms.scratch("workflow") == ("workflow", "w")
    assert rooms.scratch("swarm") == ("swarm", "x")
    assert rooms.scratch("session") == ("session", "s", "u", user)
    assert rooms.scratch("agent") == ("agent-room", "bot", "u", user, "w")
    assert Rooms(agent(**EVERYTHING), user).scratch("agent") == ("agent-room", "bot", "u", user)


def test_a_block_that_is_left_out_has_no_room() -> None:
    rooms = Rooms(agent(), "alice", session_id="s")
    assert (rooms.private, rooms.fallback, rooms.facts, rooms.team) == (None, None, None, None)
    assert (dict(rooms.pools), dict(rooms.long_term)) == ({}, {})
    with pytest.raises(InvalidRequest):
        rooms.scratch("global")


@pytest.mark.parametrize("kind", ["workflow", "swarm", "debate"])
def test_a_run_that_is_not_named_is_an_error_and_never_a_shared_default(kind: str) -> None:
    rooms = Rooms(agent(scratch=[kind]), "alice", session_id="s")
    with pytest.raises(InvalidRequest) as caught:
        rooms.scratch(kind)
    assert caught.value.field == f"instances.{kind}"


@pytest.mark.parametrize("bad", ["", 7, ["w"]])
def test_an_instance_id_is_text(bad: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"instances\.workflow"):
        Rooms(agent(scratch=["workflow"]), "alice", instances={"workflow": bad}).scratch("workflow")
    with pytest.raises(InvalidRequest, match="session_id"):
        Rooms(agent(scratch=["session"]), "alice", session_id=bad).scratch("session")


def test_what_is_no_kind_of_instance_or_room_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"instances\.session.*workflow, swarm, debate"):
        Rooms(agent(), "alice", instances={"session": "s"})
    with pytest.raises(InvalidRequest, match="one of agent, global"):
        Rooms(agent(scratch=["agent", "global"]), "alice", session_id="s").scratch("session")
    with pytest.raises(InvalidRequest, match="session_id"):
        Rooms(agent(scratch=["session"]), "alice").scratch("session")


def test_a_grant_opens_one_room_and_a_shared_one_without_delete() -> None:
    rooms = Rooms(agent(**EVERYTHING), "alice", session_id="s", team_spec=TEAM,
                    instances=dict.fromkeys(("workflow", "swarm", "debate"), "w"))  # fmt: skip
    for (kind, *_), room in _all(rooms).items():
        kept = ("read", "write") if kind in ("pool", "team") else ("read", "write", "delete")
        assert rooms.grant(room) == Grant(room, kept)


def test_a_team_that_shares_nothing_has_no_room() -> None:
    team = Team(name="crew", workers=("bot",), shared_memory_namespace=None)
    assert Rooms(agent(), "alice", team_spec=team).team is None


def test_rows_without_an_author_count_only_with_authentication_off() -> None:
    fallback = Rooms(agent(private={}), "noop", authentication=False).fallback
    assert fallback == Grant(Namespace(("agent", "bot")), ("read",), ("noop", None))


@pytest.mark.parametrize("session", ["u", "user", "facts", "session"])
def test_a_session_id_never_spells_an_owner_or_another_kind_of_room(session: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        private("{session_id}:{agent_name}", isolated=True, session_id=session)
    assert caught.value.field == "session_id"
    with pytest.raises(InvalidRequest):
        private("agent:{session_id}:x", isolated=True, session_id="u")
    with pytest.raises(InvalidRequest):
        Rooms(agent(scratch=["session"]), "alice", session_id="u").scratch("session")


@pytest.mark.parametrize("user", ["u", "user", "facts", "agent-room"])
def test_a_user_id_in_a_template_never_makes_the_room_somebody_elses(user: str) -> None:
    for template in ("{user_id}:{agent_name}", "agent:{user_id}:{agent_name}"):
        room = Namespace.parse(private(template, user=user))
        assert room.owner == user
        assert room[0] not in RESERVED | OWNERS


def test_an_id_too_long_for_a_namespace_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"user_id.*1024"):
        private("agent:{agent_name}", user="x" * 1100)


def _all(rooms: Rooms) -> dict[tuple[Any, ...], Namespace]:
    """Every room of a call by what must tell it from all others."""
    name, user, session = rooms.agent.name, rooms.user, rooms.session_id
    found: dict[tuple[Any, ...], Namespace | None] = {
        (
            "private",
            name,
            user,
            session if rooms.agent.memory.private.session_isolated else None,
        ): rooms.private,
        ("facts", name, user): rooms.facts,
        ("long-term", user): rooms.long_term["all"],
        ("long-term", name, user): rooms.long_term["agent"],
        ("team",): rooms.team,
        ("pool",): rooms.pools["org:docs"],
        ("global",): rooms.scratch("global"),
        ("session", session, user): rooms.scratch("session"),
        ("agent", name, user, rooms.instances["workflow"]): rooms.scratch("agent"),
    }
    for kind in ("workflow", "swarm", "debate"):
        found[kind, rooms.instances[kind]] = rooms.scratch(kind)
    return {key: room for key, room in found.items() if room is not None}


TEAM = Team(name="crew", workers=("bot",))
TEMPLATES = st.sampled_from(
    ["agent:{agent_name}:{session_id}", "agent:{session_id}:{agent_name}", "{session_id}-x:{agent_name}"]
)
CALLS = st.tuples(IDS, IDS, IDS, IDS)


@given(CALLS, CALLS, TEMPLATES, st.booleans())
@example(
    ("wf", "x", "s", "fighter:sheet"),
    ("wf:fighter", "x", "s", "sheet"),
    "agent:{agent_name}:{session_id}",
    False,
)
@EXAMPLES
def test_two_different_rooms_never_have_the_same_namespace(
    one: tuple[str, ...], other: tuple[str, ...], template: str, isolated: bool
) -> None:
    found: dict[Namespace, tuple[Any, ...]] = {}
    for name, user, session, instance in (one, other):
        assume(name not in ("u", "user") and session not in ("u", "user"))
        memory = EVERYTHING | {"private": {"namespace": template, "session_isolated": isolated}}
        instances = dict.fromkeys(("workflow", "swarm", "debate"), instance)
        rooms = Rooms(agent(name, **memory), user, session_id=session, team_spec=TEAM, instances=instances)
        for key, room in _all(rooms).items():
            assert found.setdefault(room, key) == key
            owned = key[0] not in ("team", "pool", "global", "workflow", "swarm", "debate")
            assert room.owner == (user if owned else None)


@given(CALLS, CALLS, TEMPLATES, st.booleans())
@EXAMPLES
def test_no_grant_of_one_user_reaches_what_another_user_owns(
    one: tuple[str, ...], other: tuple[str, ...], template: str, isolated: bool
) -> None:
    assume(one[1] != other[1] and {one[0], one[2], other[0], other[2]}.isdisjoint(("u", "user")))
    memory = EVERYTHING | {"private": {"namespace": template, "session_isolated": isolated}}
    calls = [
        Rooms(agent(name, **memory), user, session_id=session, team_spec=TEAM,
                instances=dict.fromkeys(("workflow", "swarm", "debate"), run))
        for name, user, session, run in (one, other)
    ]  # fmt: skip
    for room in _all(calls[1]).values():
        if room.owner is not None:
            assert not any(room[: len(open)] == open for open in _all(calls[0]).values())
