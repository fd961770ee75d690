"""Summaries that a model writes in the background: beside the conversation's own sentences, never instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from alcove.agents import summaries
from alcove.client.store import AgentsHandle
from alcove.llm import model
from alcove.llm.model import ProviderError
from tests.support.chat_service import chatting
from tests.support.conversation_service import text as told
from tests.support.llm_server import LLMServer, fails, llm, silent, text  # noqa: F401
from tests.support.summary_model import (
    BY_MODEL,
    NONSENSE,
    SPECS,
    SUMS_UP,
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

OSLO = "We fly to Oslo on 3 December 2026."
HOTEL = "The Grand Hotel costs 620 euros."
BOAT = "My boat Kestrel lies in Kiel."
SISTER = "My sister Quetzal lives in Porto."
FAULTS = {
    "down": (ProviderError("no", status=None), "cannot be reached"),
    "slow": (ProviderError("no", timeout=True), "did not answer in time"),
    "refused": (ProviderError("no", status=401), "refused the request"),
    "nonsense": (None, "no summary of what was said"),
}


@pytest.fixture
def scribe(monkeypatch: pytest.MonkeyPatch) -> Scribe:
    monkeypatch.setattr(model, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(summaries, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(summaries, "_MAX_RETRIES", 50)
    return Scribe()


@pytest.fixture
def agents(tmp_path: Path, scribe: Scribe) -> Iterator[AgentsHandle]:
    with a_store(tmp_path) as memory:
        yield memory.agents(tmp_path / "agents.yaml", llm=scribe)


@pytest.fixture
def alice(agents: AgentsHandle) -> AgentsHandle:
    return agents.as_user("alice")


def ails(scribe: Scribe, fault: str | None) -> None:
    """Has a model fail in some way, or work again."""
    scribe.trouble, scribe.nonsense = FAULTS[fault][0] if fault else None, fault == "nonsense"


# What it writes


def test_conversations_that_ended_are_summed_up_in_the_models_words(alice: AgentsHandle) -> None:
    conversation(alice, "rolling", "monday", OSLO, HOTEL)
    until(lambda: prose(alice, "rolling"))
    context = alice.context("rolling", "friday", "When do we fly?")
    assert sources(context, "summary") == [BY_MODEL]
    assert f"In short, {OSLO}" in sent(context)
    assert context.receipt.degraded is None
    assert alice.summary("rolling").points  # its own sentences are still there


def test_what_was_said_since_stands_beside_it(scribe: Scribe, alice: AgentsHandle) -> None:
    conversation(alice, "rolling", "monday", OSLO)
    until(lambda: prose(alice, "rolling"))
    with scribe.held():
        conversation(alice, "rolling", "tuesday", BOAT)
        context = alice.context("rolling", "friday", "So?")
        assert sources(context, "summary") == [BY_MODEL, "summary"]
        assert f"In short, {OSLO}" in sent(context)
        assert f'"{BOAT}"' in sent(context)
        assert sent(context).count("Oslo") == 1
        until(lambda: scribe.waiting)
    until(lambda: "Kiel" in prose(alice, "rolling"))
    context = alice.context("rolling", "saturday", "So?")
    assert sources(context, "summary") == [BY_MODEL]
    assert f"In short, {OSLO}" in sent(context)
    assert f"In short, {BOAT}" in sent(context)


def test_the_beginning_of_a_conversation_is_summed_up_too(scribe: Scribe, alice: AgentsHandle) -> None:
    for said in (OSLO, HOTEL, BOAT, SISTER, "One.", "Two.", "Three.", "Four."):
        say(alice, "running", "s", said)
    until(lambda: f"In short, {HOTEL}" in sent(alice.context("running", "s", "So?")))
    with scribe.held():
        say(alice, "running", "s", "Anna is allergic to nuts.", "She eats no fish on Fridays.", *["Hm."] * 4)
        context = alice.context("running", "s", "So?")
        assert sources(context, "running") == [BY_MODEL, "summary"]
        assert f"In short, {OSLO}" in sent(context)
        assert "allergic to nuts" in sent(context)
    say(alice, "running", "s", "Well.", "Yes.")  # enough for another summary, if that one began too early
    until(lambda: sources(alice.context("running", "s", "So?"), "running") == [BY_MODEL])


def test_nobody_waits_for_it(scribe: Scribe, alice: AgentsHandle) -> None:
    with scribe.held():
        for n in range(6):
            for said in (OSLO, HOTEL, BOAT):
                reply = alice.chat("both", f"s{n}", said)
                assert (reply.text, reply.stored) == ("Noted.", True)
            alice.end_session("both", f"s{n}")
        until(lambda: not alice.summary("both").pending)
        until(lambda: scribe.waiting)
        context = alice.context("both", "next", "So?")
        assert sources(context, "summary") == ["summary"]
        assert "Oslo" in sent(context)
    until(lambda: "Oslo" in prose(alice, "both"))


def test_it_is_told_of_one_user_with_one_agent_only(scribe: Scribe, agents: AgentsHandle) -> None:
    secrets = dict[tuple[str, str], str]()
    for n, (user, agent) in enumerate(
        (u, a) for u in ("alice", "bob") for a in ("rolling", "another", "running")
    ):
        secrets[user, agent] = f"Codeword{n}"
        who, code = agents.as_user(user), f"The door of house {n} opens with Codeword{n}."
        say(who, agent, "s", code, *(f"Room {m} of Codeword{n} has {m} windows." for m in range(6)))
        if agent != "running":
            who.end_session(agent, "s")
    until(lambda: len(scribe.asked) >= 6)
    settled(agents)
    for asked in scribe.asked:
        found = {code for code in secrets.values() if code in asked}
        assert len(found) == 1 or "Bergen" in asked, asked
    assert all(any(code in asked for asked in scribe.asked) for code in secrets.values())


# When it fails


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_fails_leaves_the_sentences_and_says_why(
    scribe: Scribe, alice: AgentsHandle, fault: str
) -> None:
    ails(scribe, fault)
    conversation(alice, "rolling", "monday", OSLO, HOTEL)
    until(lambda: alice.summary("rolling").trouble)
    context = alice.context("rolling", "friday", "When do we fly?")
    assert sources(context, "summary") == ["summary"]
    assert OSLO in sent(context)
    assert FAULTS[fault][1] in str(context.receipt.degraded)
    assert NONSENSE not in sent(context)
    ails(scribe, None)  # it is tried again
    until(lambda: prose(alice, "rolling"))
    context = alice.context("rolling", "friday", "When do we fly?")
    assert (sources(context, "summary"), context.receipt.degraded) == ([BY_MODEL], None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_fails_later_takes_nothing_away(scribe: Scribe, alice: AgentsHandle, fault: str) -> None:
    conversation(alice, "rolling", "monday", OSLO)
    until(lambda: prose(alice, "rolling"))
    ails(scribe, fault)
    conversation(alice, "rolling", "tuesday", BOAT)
    until(lambda: alice.summary("rolling").trouble)
    context = alice.context("rolling", "friday", "So?")
    assert sources(context, "summary") == [BY_MODEL, "summary"]
    assert f"In short, {OSLO}" in sent(context)
    assert BOAT in sent(context)
    assert FAULTS[fault][1] in str(context.receipt.degraded)


@pytest.mark.parametrize("fault", FAULTS)
def test_turns_are_stored_whatever_becomes_of_the_model(
    scribe: Scribe, alice: AgentsHandle, fault: str
) -> None:
    ails(scribe, fault)
    for n in range(12):
        assert alice.chat("both", "s", f"Friend Anna{n} lives in Town{n}.").stored
    assert alice.session("both", "s").messages == 24
    until(lambda: alice.context("both", "s", "So?").receipt.degraded)
    assert "Town0" in sent(alice.context("both", "s", "So?"))
    alice.end_session("both", "s")
    until(lambda: not alice.summary("both").pending)


def test_a_model_that_failed_is_left_alone_for_a_while(
    scribe: Scribe, agents: AgentsHandle, alice: AgentsHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "_RETRY_SECONDS", 3600.0)
    ails(scribe, "refused")
    for n in range(20):
        say(alice, "running", "s", f"Friend Anna{n} lives in Town{n}.")
        until(lambda: n < 6 or alice.context("running", "s", "So?").receipt.degraded)  # noqa: B023
    ails(scribe, None)
    settled(agents)
    assert len([asked for asked in scribe.asked if "Anna" in asked]) == 1


# What it speaks for


def test_a_conversation_that_began_before_another_ended_is_not_forgotten(alice: AgentsHandle) -> None:
    say(alice, "rolling", "first", SISTER)
    conversation(alice, "rolling", "second", BOAT)
    until(lambda: prose(alice, "rolling"))
    alice.end_session("rolling", "first")
    until(lambda: not alice.summary("rolling").pending)
    assert "Quetzal" in sent(alice.context("rolling", "next", "So?"))
    until(lambda: "Quetzal" in prose(alice, "rolling"))


@pytest.mark.parametrize("at", ["1999-01-01T00:00:00Z", "2099-01-01T00:00:00Z"])
def test_a_conversation_of_another_time_hides_no_other(alice: AgentsHandle, at: str) -> None:
    conversation(alice, "rolling", "now", BOAT)
    until(lambda: prose(alice, "rolling"))
    conversation(alice, "rolling", "then", SISTER, at=at)
    assert "Quetzal" in sent(alice.context("rolling", "next", "So?"))
    until(lambda: "Quetzal" in prose(alice, "rolling"))
    conversation(alice, "rolling", "later", OSLO)
    assert "Oslo" in sent(alice.context("rolling", "next", "So?"))


def test_messages_that_were_stored_together_are_all_in_it(alice: AgentsHandle) -> None:
    say(alice, "running", "s", *(f"Friend Anna{n} lives in Town{n}." for n in range(8)))
    until(lambda: BY_MODEL in sources(alice.context("running", "s", "So?"), "running"))
    say(alice, "running", "s", *(f"Friend Bert{n} lives in Port{n}." for n in range(4)))
    context = sent(alice.context("running", "s", "So?"))
    missing = [n for n in range(8) if f"Anna{n}" not in context]
    assert not missing


# Over REST


def test_a_service_has_summaries_written_while_it_chats(llm: LLMServer, tmp_path: Path) -> None:  # noqa: F811
    llm.reset()
    with chatting(tmp_path, llm, "--llm-timeout", "60", specs=SPECS) as parlour:
        alice = parlour.chatter()
        llm.play(silent(when=SUMS_UP), text("Noted.", always=True))
        for n in range(3):
            alice.chat("both", "monday", f"Friend Anna{n} lives in Town{n} since 2020.")
        alice.end("both", "monday")
        until(lambda: [each for each in llm.requests if SUMS_UP in each.messages[0]["content"]])
        assert alice.chat("both", "tuesday", "Who lives in Town1?")["stored"]
        context = alice.context("both", "friday", "So?")
        assert "Anna1" in told(context)
        llm.reset()  # whoever waits is cut off, and asks again
        llm.play(text("Anna0, Anna1 and Anna2 live in Town0, Town1 and Town2.", when=SUMS_UP, always=True))
        until(lambda: "by scripted" in str(alice.context("both", "friday", "So?")["receipt"]))
        assert "Anna0, Anna1 and Anna2 live" in told(alice.context("both", "friday", "So?"))
        summary = alice.see("/v1/agents/both/summary")
        assert (summary["prose"]["model"], summary["trouble"]) == ("scripted", "")


def test_a_service_whose_model_fails_says_so_and_goes_on(llm: LLMServer, tmp_path: Path) -> None:  # noqa: F811
    llm.reset()
    with chatting(tmp_path, llm, specs=SPECS) as parlour:
        alice = parlour.chatter()
        llm.play(fails(401, when=SUMS_UP, always=True), text("Noted.", always=True))
        alice.chat("rolling", "monday", OSLO)
        alice.end("rolling", "monday")
        until(lambda: alice.context("rolling", "next", "So?")["receipt"]["degraded"])
        context = alice.context("rolling", "next", "So?")
        assert "refused the request (401)" in context["receipt"]["degraded"]
        assert OSLO in told(context)
