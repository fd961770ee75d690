"""Many items, many callers, and what is too much."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langgraph.store.base import (
    InvalidNamespaceError,
    PutOp,
)

from alcove import InvalidRequest, PayloadTooLarge, Settings
from alcove.integrations.langgraph import AlcoveStore
from tests.support.langgraph_stores import (
    HOME,
    OWN,
    Deployment,
    Open,
    in_a_file,
    keys,
)


def test_a_search_gives_as_many_as_it_is_asked_for(open_store: Open) -> None:
    store = open_store(index=["text"])
    store.batch([PutOp(HOME, f"k{n:03}", {"text": f"tea w{n}", "n": n}) for n in range(230)])
    store.batch([PutOp(("bob",), f"k{n:03}", {"n": n}) for n in range(30)])
    everything = [f"k{n:03}" for n in range(230)]
    assert keys(store.search(HOME, limit=1000)) == everything
    assert len(store.search(HOME)) == 10
    assert keys(store.search(HOME, limit=120, offset=105)) == everything[105:225]
    assert keys(store.search(HOME, limit=150, filter={"n": {"$gte": 50}})) == everything[50:200]
    ranked = store.search((), query="tea w7", limit=1000)
    assert len(ranked) == 260
    assert sorted(keys(ranked[:230])) == everything
    pages = [store.search((), query="tea w7", limit=115, offset=n) for n in (0, 115, 230)]
    assert [each.score for page in pages for each in page] == [each.score for each in ranked]
    assert [each.key for page in pages for each in page] == keys(ranked)


def test_a_batch_takes_more_puts_than_a_request_does(open_store: Open) -> None:
    store = open_store()
    store.batch([PutOp(("many", str(n % 3)), f"k{n:04}", {"n": n}) for n in range(1100)])
    assert sorted(each.value["n"] for each in store.search(("many",), limit=5000)) == [*range(1100)]
    store.batch([PutOp(("many", str(n % 3)), f"k{n:04}", None) for n in range(1100)])
    assert store.search(("many",)) == store.list_namespaces() == []


def test_a_batch_takes_more_puts_than_the_store_is_set_to(path: Path) -> None:
    settings = Settings(sweep_interval=0, max_batch=10)
    with AlcoveStore(path, settings=settings, embedder=None, root=OWN) as store:
        store.batch([PutOp(HOME, f"k{n}", {}) for n in range(11)])
        assert len(store.search(HOME, limit=100)) == 11


def test_a_batch_takes_more_bytes_than_a_request_does(open_store: Open) -> None:
    store = open_store()
    texts = {f"k{n}": chr(ord("a") + n) * 900_000 for n in range(6)}
    store.batch([PutOp(HOME, key, {"text": text}) for key, text in texts.items()])
    assert {each.key: each.value["text"] for each in store.search(HOME)} == texts


def test_threads_and_an_event_loop_share_a_store(deployment: Deployment) -> None:
    over = deployment.handle(deployment.new_user())
    store = AlcoveStore(over, index=["text"], root=OWN)

    async def together() -> None:
        await asyncio.gather(*(store.aput(HOME, f"loop{n}", {"text": f"tea {n}"}) for n in range(20)))
        found = await asyncio.gather(*(store.asearch(HOME, query="tea", limit=1) for _ in range(5)))
        assert all(each[0].score for each in found)
        for each in puts:
            await asyncio.wrap_future(each)
        assert len(await store.asearch(HOME, query="tea", limit=100)) == 40
        if deployment.remote:
            await store.aclose()

    with ThreadPoolExecutor(4) as pool:
        puts = [pool.submit(store.put, HOME, f"thread{n}", {"text": f"tea {n}"}) for n in range(20)]
        asyncio.run(together())


LOOPS = """
import asyncio, gc, os, sys, threading
from alcove.integrations.langgraph import AlcoveStore

where = {"api_key": sys.argv[2]} if sys.argv[2:] else {"embedder": None}
store = AlcoveStore(sys.argv[1], root="user:{user_id}:langgraph", **where)
for n in range(12):
    asyncio.run(store.aput(("a",), "k", {"n": n}))
    if n in (1, 11):
        gc.collect()
        print(len(os.listdir("/proc/self/fd")), threading.active_count())
"""


def test_event_loops_that_have_ended_leave_nothing_open(deployment: Deployment, path: Path) -> None:
    where = [str(path)]
    if deployment.url:
        key = deployment.trusted.api_keys.create(client="loops", user=deployment.new_user())
        where = [deployment.url, key]
    words = [sys.executable, "-c", LOOPS, *where]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    (files_before, threads_before), (files, threads) = (
        map(int, line.split()) for line in done.stdout.splitlines()
    )
    assert files == files_before
    assert threads < threads_before + 5, "a thread for each of ten more loops would be left open"


# What is refused


def test_a_value_over_a_mebibyte_is_refused_and_what_was_there_stays(open_store: Open) -> None:
    store = open_store()
    store.put(HOME, "k", {"text": "before"})
    with pytest.raises(PayloadTooLarge, match="value: expected at most 1048576 bytes of JSON"):
        store.put(HOME, "k", {"text": "x" * 2**20})
    (item,) = store.search(HOME)
    assert item.value == {"text": "before"}


def test_a_batch_with_a_value_over_a_mebibyte_changes_nothing(open_store: Open) -> None:
    store = open_store()
    with pytest.raises(PayloadTooLarge, match="value"):
        store.batch([PutOp(HOME, "good", {}), PutOp(HOME, "large", {"text": "x" * 2**20})])
    assert store.search(HOME) == []


def test_what_is_not_json_is_refused_by_its_name_and_nothing_is_changed(open_store: Open) -> None:
    store = open_store()
    store.put(HOME, "k", {"text": "before"})
    refused: list[tuple[Any, str]] = [
        ({"x": {1, 2}}, "value.x: expected JSON data, not set"),
        ({"x": [0, b"bytes"]}, r"value.x\[1\]: expected JSON data, not bytes"),
        ({"at": datetime.now(UTC)}, "value.at: expected JSON data, not datetime"),
        ({"x": {"y": float("nan")}}, "value.x.y: expected a finite number"),
        ({"x": 2**64}, "value.x: expected an integer that fits in 64 bits"),
        ({1: "x"}, "value: expected names that are strings"),
        ({"x": "\ud800"}, "value: expected text without lone surrogates"),
        ([1], "value: expected (a JSON object, not|`object`, got)"),
    ]
    for value, told in refused:
        with pytest.raises(InvalidRequest, match=told):
            store.put(HOME, "k", value)
        with pytest.raises(InvalidRequest, match="value"):
            store.batch([PutOp(HOME, "k", {}), PutOp(HOME, "k2", value), PutOp(HOME, "k3", {})])
    (item,) = store.search(HOME)
    assert item.value == {"text": "before"}


def test_namespaces_that_langgraph_refuses_are_refused(open_store: Open) -> None:
    store = open_store()
    for namespace in ((), ("langgraph", "x"), ("a.b",), ("",), ("a\0",), (1,)):
        with pytest.raises(InvalidNamespaceError):
            store.put(namespace, "k", {})  # type: ignore[arg-type]
    for prefix in (("a.b",), ("",), ("a\0",)):
        with pytest.raises(InvalidNamespaceError):
            store.search(prefix)
    assert store.list_namespaces() == []


def test_a_get_refuses_what_langgraph_refuses_at_any_time(path: Path) -> None:
    with in_a_file(path) as deployment, AlcoveStore(deployment.trusted, root=OWN) as store:
        with pytest.raises(InvalidNamespaceError):
            store.get(("a.b",), "k")
        store.put(HOME, "k", {})
        with pytest.raises(InvalidNamespaceError):
            store.get(("a.b",), "k")


def test_an_embedder_of_langgraphs_is_for_a_file_that_it_opens(path: Path, at_url: Deployment) -> None:
    embeddings = DeterministicFakeEmbedding(size=32)
    index = {"dims": 32, "embed": embeddings, "fields": ["text"]}
    with AlcoveStore(path, index=index, root=OWN) as store:
        store.put(HOME, "k", {"text": "tea"})
        store.put(HOME, "j", {"text": "rain"})
        found = store.search(HOME, query="tea")
        asked, other = embeddings.embed_query("tea"), embeddings.embed_query("rain")
        length = sum(x * x for x in asked) ** 0.5 * sum(x * x for x in other) ** 0.5
        cosine = sum(x * y for x, y in zip(asked, other, strict=True)) / length
        assert keys(found) == ["k", "j"]
        assert [each.score for each in found] == pytest.approx([1, cosine], abs=1e-4)
    for open_already in (str(at_url.url), at_url.trusted):
        with pytest.raises(InvalidRequest, match=r"index\.embed: expected none here"):
            AlcoveStore(open_already, index=index)


@pytest.mark.parametrize("index", ["text", 5, [5], b"text", {"fields": "text"}, {"fields": 5}])
def test_an_index_that_is_no_list_of_paths_is_refused(path: Path, index: Any) -> None:
    expected = r"index(\.fields)?: expected a list of paths, or False"
    with in_a_file(path) as deployment, pytest.raises(InvalidRequest, match=expected):
        AlcoveStore(deployment.trusted, index=index)


@pytest.mark.parametrize("index", [True, 5, "text", [5], {"fields": ["text"]}])
def test_a_put_with_an_index_that_is_no_list_of_paths_is_refused(path: Path, index: Any) -> None:
    with in_a_file(path) as deployment, AlcoveStore(deployment.trusted, root=OWN) as store:
        with pytest.raises(InvalidRequest, match="index: expected a list of paths, or False"):
            store.put(HOME, "k", {"text": "tea"}, index=index)
        assert store.get(HOME, "k") is None
