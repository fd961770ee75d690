"""A model that never answers while it should write a summary: stores are closed, and processes end.

This file is also such a program: `python -m tests.acceptance.faults.test_llm_hangs FOLDER PORT`.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from alcove.core.settings import LLMSettings
from alcove.llm.model import ModelAnswer, ModelRequest
from tests.support.chat_service import chatting
from tests.support.child_programs import say as tell
from tests.support.child_programs import started
from tests.support.llm_server import LLMServer, llm, silent, text  # noqa: F401
from tests.support.summary_model import SPECS, SUMS_UP, Scribe, a_store, conversation, say
from tests.support.waiting import PATIENCE, until

SISTER = "My sister Quetzal lives in Porto."


def test_a_store_is_closed_while_its_model_hangs(tmp_path: Path) -> None:
    scribe, done = Scribe(), threading.Event()

    def work() -> None:
        with a_store(tmp_path) as memory:
            alice = memory.agents(tmp_path / "agents.yaml", llm=scribe).as_user("alice")
            conversation(alice, "rolling", "s", SISTER)
            until(lambda: scribe.waiting)
        done.set()

    with scribe.held():
        (closing := threading.Thread(target=work)).start()
        assert done.wait(PATIENCE / 4)
        closing.join()
    assert scribe.closed.is_set()
    until(lambda: not scribe.waiting)
    with a_store(tmp_path) as memory:
        found = memory.agents(tmp_path / "agents.yaml").as_user("alice").summary("rolling")
        assert "Quetzal" in str(found.points)


def test_a_model_that_was_closed_is_asked_nothing_any_more(tmp_path: Path) -> None:
    scribes = [Scribe() for _ in range(20)]
    for n, scribe in enumerate(scribes):
        with a_store(tmp_path) as memory:
            alice = memory.agents(tmp_path / "agents.yaml", llm=scribe).as_user("alice")
            say(alice, "rolling", f"s{n}", SISTER)
            alice.end_session("rolling", f"s{n}")
    assert [scribe.asked_too_late for scribe in scribes] == [0] * 20


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

    def ask(self, asked: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        tell("asked")
        threading.Event().wait()
        yield ModelAnswer(text="")


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
