"""The queue of texts that wait for their vectors: whose turn it is, what a step costs, who waits and how."""

from __future__ import annotations

import pytest

from alcove import Alcove, Settings
from alcove.search.indexer import Indexer
from tests.conftest import ManualClock
from tests.contract.bag import Bag
from tests.contract.conftest import Open

HOME = ("user", "noop")
BY_HAND = Settings(sweep_interval=0, indexing_interval=0)
"""No thread indexes: the test makes every step itself."""


def indexer_of(memory: Alcove, embedder: Bag, clock: ManualClock) -> Indexer:
    return Indexer(memory.memories._engine.index, embedder, clock, interval=30, batch=100)


def test_who_waits_for_long_looks_ever_more_rarely_and_not_past_the_time_given(
    open_store: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, now = open_store(clock=clock, settings=BY_HAND), 100.0
    memory.put(HOME, "k", {}, index={"text": "tea"})
    indexer = indexer_of(memory, Bag(), clock)
    monkeypatch.setattr(indexer, "wake", lambda: None)  # no thread
    monkeypatch.setattr("alcove.search.indexer.time.monotonic", lambda: now)
    paused = []
    for pause in indexer.pauses(1, 30):
        paused.append(pause)
        now += pause
    assert sum(paused) == pytest.approx(30)
    assert len(paused) < 100
    assert paused[0] < 0.01
    indexer.step()
    assert list(indexer.pauses(1, 30)) == []
