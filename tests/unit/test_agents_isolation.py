"""Whatever specs load together, no room of one agent reaches the private rooms of another."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from alcove import InvalidRequest, Namespace
from alcove.agents.rooms import Rooms
from alcove.agents.specs.loading import load
from alcove.agents.specs.reader import InvalidSpecs
from alcove.agents.specs.records import Agent, AgentMemory, Private
from alcove.agents.specs.templates import private_template
from tests.support.waiting import LONG

WORDS = st.sampled_from(["a", "b", "x", "agent", "%25user", "{agent_name}", "{session_id}", "{user_id}", "-"])
TEMPLATES = st.lists(st.lists(WORDS, min_size=1, max_size=2).map("".join), min_size=1, max_size=3).map(
    ":".join
)
SHARED = st.lists(st.sampled_from(["a", "b", "x", "agent"]), min_size=1, max_size=3).map(":".join)
IDS = st.sampled_from(["a", "b", "x", "agent", "u", "user", "r", "a-b", "-"])


@given(
    st.tuples(TEMPLATES, TEMPLATES, TEMPLATES),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.lists(SHARED, max_size=2, unique=True),
    st.lists(st.tuples(IDS, IDS), min_size=3, max_size=3),
)
@settings(
    max_examples=3000 if LONG else 300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
def test_in_specs_that_load_no_room_reaches_private_rooms_of_another(
    tmp_path: Path,
    written: tuple[str, ...],
    isolated: tuple[bool, ...],
    pools: list[str],
    calls: list[tuple[str, str]],
) -> None:
    agents = [
        {"name": name, "memory": {"private": {"namespace": t, "session_isolated": i}, "pools": pools}}
        for name, t, i in zip("abc", written, isolated, strict=True)
    ]
    file = tmp_path / "agents.yaml"
    file.write_text(yaml.safe_dump({"agents": agents}))
    try:
        found = load(file, max_depth=6)
    except InvalidSpecs:
        return
    rooms: list[tuple[Rooms, Namespace]] = []
    for spec, (user, session) in zip(found.agents.values(), calls, strict=True):
        call = Rooms(spec, user, session_id=session)
        try:
            room = call.private
        except InvalidRequest:  # a session id that means something in namespaces
            continue
        assert room is not None
        assert room.owner == user
        rooms.append((call, room))
    for one, private in rooms:
        for other, own in rooms:
            reach = [*other.pools.values(), *([] if other is one else [own])]
            assert not any(private[: len(room)] == room for room in reach)
            if other is not one and (fallback := other.fallback) is not None and other.user == one.user:
                assert private[: len(fallback.namespace)] != fallback.namespace


PIECES = st.sampled_from(
    ["", "a", "b", "-", "_", ".", "u", "user", "{session_id}", "{session_id}", "{agent_name}"]
)
SHAPES = st.lists(st.lists(PIECES, max_size=4).map("".join), min_size=1, max_size=4).map(":".join)


@given(SHAPES)
@example("u-{session_id}")
@example("{session_id}:user")
@settings(max_examples=1500 if LONG else 200, deadline=None)
def test_no_template_leaves_a_trace_of_the_session_or_says_whose_a_room_is(text: str) -> None:
    try:
        template = private_template(Agent(name="bot", memory=AgentMemory(private=Private(namespace=text))))
    except InvalidRequest:
        return
    segments = template.fill({"user_id": "alice"})
    assert segments
    assert all(segments)
    assert not {"u", "user"} & set(segments)
    assert not template.needs("session_id")
