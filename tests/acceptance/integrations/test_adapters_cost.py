"""What adapters and patterns cost, counted and not timed; and what they share between loops and processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.store.base import PutOp

from alcove import Alcove
from alcove.core.errors import InvalidRequest
from alcove.core.filters import MAX_NODES, Pattern
from alcove.integrations.langgraph import AlcoveStore
from alcove.integrations.langgraph_threads import AlcoveSaver
from alcove.search.embedders import EmbedderUnavailable
from alcove.vault import Vault
from tests.acceptance.integrations.test_adapters_interrupted import at, disturbed, put
from tests.support.concurrent_workers import QUIET
from tests.support.embeddings import embeddings
from tests.support.langgraph_stores import OWN
from tests.support.service import serving
from tests.support.tokens import FLAGS, token


@pytest.fixture
def memory(path: Path) -> Iterator[Alcove]:
    with Alcove(path, settings=QUIET, embedder=None) as memory:
        yield memory


class Counted(list[int]):
    """Counts how often an item is taken out of it."""

    taken = 0

    def __iter__(self) -> Iterator[int]:
        for each in super().__iter__():
            self.taken += 1
            yield each


class Words(str):
    """A number in words that counts how often it is read."""

    read = 0

    def __float__(self) -> float:
        self.read += 1
        return 9.0


# Patterns


def test_a_pattern_of_too_many_parts_is_refused_without_looking_at_all_of_them(memory: Alcove) -> None:
    """A body of 4 MiB has two million: of a name of a megabyte, a minute of work that nothing cancels."""
    many = Counted([0] * (20 * MAX_NODES))
    with pytest.raises(InvalidRequest, match="at most 1000 values"):
        memory.search(("user", "noop"), filter={"$value": {"a": many}})
    assert many.taken <= 2 * MAX_NODES


def test_a_bound_is_read_once_and_not_for_each_memory() -> None:
    bound = Words("9")
    pattern = Pattern.parse({"n": {"$gt": bound}}, "filter")
    assert not any(pattern.holds({"n": n}) for n in range(5))
    assert bound.read <= 2


def test_a_name_in_a_pattern_is_as_long_as_any_field_may_be(memory: Alcove) -> None:
    with pytest.raises(InvalidRequest, match="1024"):
        memory.search(("user", "noop"), filter={"$value": {"n" * 10_000: 1}})


# How much is read


def test_a_filtered_search_for_many_opens_each_item_a_few_times(
    memory: Alcove, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = [0]
    open = Vault.open

    def counting(self: Vault, *args: Any, **named: Any) -> bytes:
        opened[0] += 1
        return open(self, *args, **named)

    store = AlcoveStore(memory, root=OWN)
    store.batch([PutOp(("n",), f"k{n:03}", {"n": n}) for n in range(800)])
    monkeypatch.setattr(Vault, "open", counting)
    assert len(store.search(("n",), filter={"n": {"$gte": 0}}, limit=1000)) == 800
    assert opened[0] <= 3 * 800


def test_the_newest_of_a_history_is_listed_without_reading_the_rest(memory: Alcove) -> None:
    calls = [0]

    def count(call: int, _: Any) -> None:
        calls[0] = call

    saver = AlcoveSaver(memory)
    for n in range(220):
        put(saver, "t", n, x=n)
    (newest,) = AlcoveSaver(disturbed(memory, "search", count)).list(at(), limit=1)
    assert newest.metadata["step"] == 219
    assert calls[0] <= 2, "one for the checkpoint, one for what was written after it"


def test_who_waits_for_the_index_holds_up_nobody(tmp_path: Path) -> None:
    with embeddings() as embedder, serving(tmp_path, *FLAGS, "--embedder", f"{embedder.url}#bag") as service:
        answer = embedder.answer

        def held(body: dict[str, Any]) -> tuple[int, bytes]:
            if any("held" in text for text in body["input"]):
                embedder.free.wait(20)
            return answer(body)

        embedder.answer = held  # type: ignore[method-assign]
        alice, bob = token("alice"), token("bob")
        body = {"namespace": ["user", "alice"], "key": "k", "value": {}, "index": {"t": "held back"}}
        assert service.call("PUT", "/v1/memories", alice, json=body).status_code == 200
        assert service.put(["user", "bob"], "k", {"n": 1}, bob).status_code == 200
        asked = {"namespace_prefix": ["user", "alice"], "query": "tea", "wait_for_index": True}
        headers = {"authorization": f"Bearer {alice}"}
        with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as client:

            def search(_: int) -> int:
                return client.post("/v1/memories/search", json=asked, headers=headers).status_code

            with ThreadPoolExecutor(60) as pool:
                waiting = [pool.submit(search, n) for n in range(60)]
                for _ in range(20):
                    assert service.get(["user", "bob"], "k", bob).json()["value"] == {"n": 1}
                    found = service.call(
                        "POST", "/v1/memories/search", bob, json={"namespace_prefix": [], "query": "x"}
                    )
                    assert found.status_code == 200
                assert not any(each.done() for each in waiting)
                embedder.free.set()
                assert {each.result() for each in waiting} == {200}


# What loops and processes share


def same(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0, 0.0] if "tea" in text else [0.0, 1.0] for text in texts]


def other(texts: Sequence[str]) -> list[list[float]]:
    return [[0.0, 1.0] if "tea" in text else [1.0, 0.0] for text in texts]


def test_vectors_of_another_model_of_the_same_kind_are_not_mixed(path: Path) -> None:
    index: dict[str, Any] = {"dims": 2, "fields": ["t"]}
    with AlcoveStore(path, settings=QUIET, index={**index, "embed": same}, root=OWN) as store:
        store.put(("n",), "tea", {"t": "tea"})
        store.put(("n",), "rain", {"t": "rain"})
        assert store.search(("n",), query="tea", limit=1)[0].key == "tea"
    with (
        AlcoveStore(path, settings=QUIET, index={**index, "embed": other}, root=OWN) as store,
        suppress(EmbedderUnavailable),  # that it is to be indexed anew is a good answer, too
    ):
        assert store.search(("n",), query="tea", limit=1)[0].key == "tea"


FORKED = """
import json, os, signal, sys, threading
from alcove.integrations.langgraph import AlcoveStore

store, stop = AlcoveStore(sys.argv[1], embedder=None, root="user:noop:langgraph"), threading.Event()

def work(name):
    n = 0
    while not stop.is_set():
        n += 1
        store.put((name,), f"k{n % 50}", {"n": n})

threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in "abc"]
for each in threads:
    each.start()
hung = 0
for n in range(15):
    if (pid := os.fork()) == 0:
        signal.alarm(1)
        try:
            store.put(("child",), str(n), {})
        except Exception:
            pass  # to be refused is good, too
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        hung += 1
        break
stop.set()
print(json.dumps(hung), flush=True)
os._exit(0)
"""


def test_a_forked_child_does_not_hang(path: Path) -> None:
    read, write = os.pipe()
    words = [sys.executable, "-c", FORKED, str(path)]
    pid = os.posix_spawn(words[0], words, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
    os.close(write)
    try:
        with open(read) as said:
            hung = json.loads(said.readline())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert hung == 0
