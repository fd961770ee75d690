"""A model that is still writing a summary while others come in between: what was taken away stays away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from alcove import Alcove
from alcove.client.store import AgentsHandle
from tests.support.summary_model import (
    BY_MODEL,
    Scribe,
    a_store,
    conversation,
    prose,
    say,
    sent,
    settled,
    sources,
)
from tests.support.waiting import until

SISTER = "My sister Quetzal lives in Porto."
BOAT = "My boat Kestrel lies in Kiel."
LONG = [SISTER, *(f"House {n} of Quetzal has {n} windows to the sea." for n in range(7))]
OTHER = [f"Boat {n} of Kestrel has {n} sails for the storm." for n in range(8)]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Alcove]:
    with a_store(tmp_path) as memory:
        yield memory


@pytest.fixture
def scribe() -> Scribe:
    return Scribe()


@pytest.fixture
def agents(memory: Alcove, tmp_path: Path, scribe: Scribe) -> AgentsHandle:
    return memory.agents(tmp_path / "agents.yaml", llm=scribe)


@pytest.fixture
def alice(agents: AgentsHandle) -> AgentsHandle:
    return agents.as_user("alice")


# The summary of all conversations


def test_a_summary_that_is_forgotten_while_it_is_written_stays_forgotten(
    scribe: Scribe, agents: AgentsHandle, alice: AgentsHandle
) -> None:
    with scribe.held():
        conversation(alice, "rolling", "s", SISTER)
        until(lambda: scribe.waiting)
        alice.forget_summary("rolling")
    settled(agents)
    summary = alice.summary("rolling")
    assert (summary.prose, summary.points, summary.trouble) == (None, [], "")


def test_nor_does_it_come_back_in_the_summary_that_is_begun_then(
    scribe: Scribe, agents: AgentsHandle, alice: AgentsHandle
) -> None:
    with scribe.held():
        conversation(alice, "rolling", "s", SISTER)
        until(lambda: scribe.waiting)
        alice.forget_summary("rolling")
        conversation(alice, "rolling", "t", BOAT)
    until(lambda: "Kestrel" in prose(alice, "rolling"))
    settled(agents)
    assert "Quetzal" not in str(alice.summary("rolling"))
    assert not [asked for asked in scribe.asked if "Quetzal" in asked and "Kestrel" in asked]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("agent", ["rolling", "running"])
def test_what_is_written_of_a_user_who_is_wiped_meanwhile_is_dropped(
    memory: Alcove, scribe: Scribe, agents: AgentsHandle, agent: str, back: bool
) -> None:
    alice = agents.as_user("alice")
    with scribe.held():
        say(alice, agent, "s", *LONG)
        if agent == "rolling":
            alice.end_session(agent, "s")
        until(lambda: scribe.waiting)
        memory.wipe("alice")
        if back:  # and talks anew
            say(alice, agent, "s", *OTHER)
            if agent == "rolling":
                alice.end_session(agent, "s")
    settled(agents)
    context = alice.context(agent, "s" if agent == "running" else "next", "So?")
    assert "Quetzal" not in sent(context) + str(alice.summary(agent))
    assert ("Kestrel" in sent(context)) == back
    assert memory.admin.held("alice").memories == 0 or back


def test_a_conversation_that_ends_while_another_is_summed_up_is_not_lost(
    scribe: Scribe, agents: AgentsHandle, alice: AgentsHandle
) -> None:
    with scribe.held():
        conversation(alice, "rolling", "s", SISTER)
        until(lambda: scribe.waiting)
        conversation(alice, "rolling", "t", BOAT)
    settled(agents)
    context = sent(alice.context("rolling", "next", "So?"))
    assert "Quetzal" in context
    assert "Kestrel" in context
    assert alice.summary("rolling").conversations == 2
    until(lambda: "Quetzal" in prose(alice, "rolling") and "Kestrel" in prose(alice, "rolling"))


def test_conversations_that_end_together_all_come_to_be_in_the_models_words(
    scribe: Scribe, alice: AgentsHandle
) -> None:
    with scribe.held():
        for n in range(6):
            conversation(alice, "rolling", f"s{n}", f"Friend Anna{n} lives in Town{n}.")
    until(lambda: all(f"Anna{n}" in prose(alice, "rolling") for n in range(6)))


# The summary of a conversation's beginning


def test_a_session_that_is_deleted_while_it_is_summed_up_leaves_nothing(
    scribe: Scribe, agents: AgentsHandle, alice: AgentsHandle
) -> None:
    with scribe.held():
        say(alice, "running", "s", *LONG)
        until(lambda: scribe.waiting)
        alice.delete_session("running", "s")
    settled(agents)
    assert alice.sessions("running") == []
    assert "Quetzal" not in sent(alice.context("running", "s", "So?"))


def test_nor_does_it_come_back_in_a_session_of_the_same_name(
    scribe: Scribe, agents: AgentsHandle, alice: AgentsHandle
) -> None:
    with scribe.held():
        say(alice, "running", "s", *LONG)
        until(lambda: scribe.waiting)
        alice.delete_session("running", "s")
        say(alice, "running", "s", *OTHER)
    settled(agents)
    context = alice.context("running", "s", "So?")
    assert "Quetzal" not in sent(context)
    assert "Kestrel" in sent(context)


def test_turns_that_are_added_while_the_beginning_is_summed_up_are_not_lost(
    scribe: Scribe, agents: AgentsHandle, alice: AgentsHandle
) -> None:
    with scribe.held():
        for n in range(6):
            say(alice, "running", "s", f"Friend Anna{n} lives in Town{n}.")
        until(lambda: scribe.waiting)
        for n in range(6, 16):
            say(alice, "running", "s", f"Friend Anna{n} lives in Town{n}.")
    settled(agents)
    until(lambda: BY_MODEL in sources(alice.context("running", "s", "So?"), "running"))
    assert alice.session("running", "s").messages == 16
    context = sent(alice.context("running", "s", "So?"))
    assert not [n for n in range(16) if f"Anna{n} " not in context]


def test_an_end_that_comes_while_the_beginning_is_summed_up_is_kept(
    scribe: Scribe, agents: AgentsHandle, alice: AgentsHandle
) -> None:
    with scribe.held():
        for said in LONG:
            say(alice, "both", "s", said)
        until(lambda: scribe.waiting)
        alice.end_session("both", "s")
        until(lambda: not alice.summary("both").pending)
    settled(agents)
    assert alice.session("both", "s").ended
    assert alice.summary("both").conversations == 1
    until(lambda: BY_MODEL in sources(alice.context("both", "s", "So?"), "running"))
