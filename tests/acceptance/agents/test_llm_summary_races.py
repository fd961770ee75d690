"""A model that is still writing a summary while others come in between: what was taken away stays away.

This file is also a program that ends while its model hangs: `python -m … FOLDER PORT`.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from alcove import Alcove, Settings
from alcove.client.store import AgentsHandle
from alcove.core.settings import LLMSettings
from alcove.llm.model import Answered, Asked
from tests.support.chatting import chatting
from tests.support.children import say as tell
from tests.support.children import started
from tests.support.llm_server import LLMServer, llm, silent, text  # noqa: F401
from tests.support.patience import PATIENCE, until
from tests.support.scribe import (
    BY_MODEL,
    SPECS,
    SUMS_UP,
    Scribe,
    conversation,
    prose,
    say,
    sent,
    settled,
    sources,
)

QUIET = Settings(sweep_interval=0)
SISTER = "My sister Quetzal lives in Porto."
BOAT = "My boat Kestrel lies in Kiel."
LONG = [SISTER, *(f"House {n} of Quetzal has {n} windows to the sea." for n in range(7))]
OTHER = [f"Boat {n} of Kestrel has {n} sails for the storm." for n in range(8)]


@contextmanager
def a_store(folder: Path) -> Iterator[Alcove]:
    (folder / "agents.yaml").write_text(SPECS)
    with Alcove(folder / "memory.db", settings=QUIET, embedder=None) as memory:
        yield memory


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
    until(lambda: sources(alice.context("both", "s", "So?"), "running") == [BY_MODEL])


# The end of the process


def test_a_store_is_closed_while_its_model_hangs(
    tmp_path: Path, scribe: Scribe, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def work() -> None:
        with a_store(tmp_path) as memory:
            alice = memory.agents(tmp_path / "agents.yaml", llm=scribe).as_user("alice")
            conversation(alice, "rolling", "s", SISTER)
            until(lambda: scribe.waiting)
        done.set()

    with caplog.at_level(logging.INFO, "alcove"), scribe.held():
        (closing := threading.Thread(target=work)).start()
        assert done.wait(PATIENCE / 4)
        closing.join()
    assert scribe.closed.is_set()
    until(lambda: not scribe.waiting)
    with a_store(tmp_path) as memory:
        found = memory.agents(tmp_path / "agents.yaml").as_user("alice").summary("rolling")
        assert "Quetzal" in str(found.points)


def test_a_model_that_was_closed_is_asked_nothing_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(20):
        scribe = Scribe()  # which complains of that
        with a_store(tmp_path) as memory:
            alice = memory.agents(tmp_path / "agents.yaml", llm=scribe).as_user("alice")
            say(alice, "rolling", f"s{n}", SISTER)
            alice.end_session("rolling", f"s{n}")
    assert "it was closed" not in caplog.text


def test_a_process_ends_while_its_model_hangs(tmp_path: Path) -> None:
    with started(tmp_path / "said", __name__, tmp_path, 0) as child:
        child.wait_for("asked")
        child.tell("end")
        child.wait_for("closed")
        child.finish()


def test_a_process_ends_while_a_model_at_a_url_hangs(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        started(tmp_path / "said", __name__, tmp_path, deaf.getsockname()[1]) as child,
    ):
        connected, _ = deaf.accept()
        with connected:
            assert connected.recv(1)
            child.tell("end")
            child.wait_for("closed")
            child.finish()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_ends_while_its_model_hangs(llm: LLMServer, tmp_path: Path, number: int) -> None:  # noqa: F811
    llm.reset()
    with chatting(tmp_path, llm, "--llm-timeout", "600", specs=SPECS) as parlour:
        alice = parlour.chatter()
        llm.play(silent(when=SUMS_UP, always=True), text("Noted.", always=True))
        alice.chat("rolling", "s", SISTER)
        alice.end("rolling", "s")
        until(lambda: llm.waiting)
        parlour.service.signal(number)
        parlour.service.wait()


class Deaf(Scribe):
    """Never answers."""

    async def ask(self, asked: Asked, seconds: float) -> AsyncGenerator[str | Answered, None]:
        tell("asked")
        threading.Event().wait()
        yield Answered(text="")


def end_while_it_hangs(folder: Path, port: int) -> None:
    """The program: it has a summary written, closes its store when told to, and ends."""
    logging.disable()
    at = LLMSettings(llm_url=f"http://127.0.0.1:{port}/v1", llm_timeout=600.0)
    with a_store(folder) as memory:
        alice = memory.agents(folder / "agents.yaml", llm=at if port else Deaf()).as_user("alice")
        conversation(alice, "rolling", "s", SISTER)
        sys.stdin.readline()
    tell("closed")


if __name__ == "__main__":
    end_while_it_hangs(Path(sys.argv[1]), int(sys.argv[2]))
