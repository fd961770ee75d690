"""Who merges conversations that have ended: one at a time, and no request for longer than a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from alcove import Alcove, Settings
from alcove.agents import summaries
from alcove.agents.summaries import MAX_INLINE_MESSAGES, Summaries
from alcove.client.store import AgentsHandle
from tests.support.waiting import until

SPECS = "agents: [{name: bot, memory: {session_memory: {idle_seconds: 3600}}}]"
OSLO = "Anna lives in Oslo since May 2020."


@pytest.fixture
def alice(tmp_path: Path) -> Iterator[AgentsHandle]:
    (tmp_path / "agents.yaml").write_text(SPECS)
    with Alcove(tmp_path / "memory.db", settings=Settings(sweep_interval=0), embedder=None) as memory:
        yield memory.agents(tmp_path / "agents.yaml").as_user("alice")


class SlowMerges:
    """Merges that wait until they are let go, and how many were begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.threads, self.go_on = 0, list[str](), threading.Event()
        merge = Summaries.merge

        def slow(merging: Summaries, *which: object) -> int:
            self.begun += 1
            self.threads.append(threading.current_thread().name)
            self.go_on.wait(60)
            return merge(merging, *which)  # type: ignore[arg-type]

        monkeypatch.setattr(Summaries, "merge", slow)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowMerges]:
    merges = SlowMerges(monkeypatch)
    yield merges
    merges.go_on.set()


def end(alice: AgentsHandle, messages: int = 1) -> None:
    for _ in range(messages):
        alice.add_turns("bot", "s", [{"role": "user", "content": OSLO}])
    alice.end_session("bot", "s")


def test_a_conversation_is_merged_once_however_many_ask_for_it(alice: AgentsHandle, slow: SlowMerges) -> None:
    end(alice)
    until(lambda: slow.begun)
    with ThreadPoolExecutor(8) as threads:
        begun = time.monotonic()
        contexts = [threads.submit(alice.context, "bot", f"t{n}", "Hello") for n in range(8)]
        assert all("Oslo" not in str(each.result().messages) for each in contexts)
        assert time.monotonic() - begun < 10 * summaries.WAIT_SECONDS
    assert slow.begun == 1
    slow.go_on.set()
    until(lambda: "Oslo" in str(alice.context("bot", "later", "Hello").messages))
    assert alice.summary("bot").conversations == 1


def test_a_request_waits_a_moment_for_who_merges(alice: AgentsHandle, slow: SlowMerges) -> None:
    end(alice)
    until(lambda: slow.begun)
    with ThreadPoolExecutor(1) as threads:
        context = threads.submit(alice.context, "bot", "t", "Hello")
        time.sleep(0.1)
        slow.go_on.set()
        assert "Oslo" in str(context.result().messages)


def test_a_large_conversation_is_merged_in_the_background_only(alice: AgentsHandle, slow: SlowMerges) -> None:
    end(alice, MAX_INLINE_MESSAGES + 1)
    assert "Oslo" not in str(alice.context("bot", "t", "Hello").messages)
    slow.go_on.set()
    until(lambda: "Oslo" in str(alice.context("bot", "later", "Hello").messages))
    assert set(slow.threads) == {"alcove-summaries"}
