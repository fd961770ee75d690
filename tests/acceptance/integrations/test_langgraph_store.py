"""AlcoveStore as LangGraph documents its stores, on a file and at a URL, called and awaited."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    PutOp,
    SearchItem,
    SearchOp,
)

from alcove import Alcove, AlcoveError, InvalidRequest, PayloadTooLarge, PermissionDenied, Settings
from alcove.client.store import Store
from alcove.integrations.langgraph import AlcoveStore
from alcove.search.embedders import EmbedderUnavailable
from tests.support.bag import Bag
from tests.support.clock import ManualClock
from tests.support.crowd import QUIET
from tests.support.inspection import raw_bytes
from tests.support.langgraph_stores import Awaited, Deployment, at_a_url, in_a_file, serving_with_keys
from tests.support.patience import until

Open = Callable[..., BaseStore]
HOME = ("alice", "memories")
DEEP = tuple(f"level-{n}" for n in range(16))
ODD = ("a:b", "50%", "%3A", "東京", "🍵 tea", "*", "\x01")


@pytest.fixture(scope="module")
def in_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with in_a_file(tmp_path_factory.mktemp("file") / "memory.db") as one:
        yield one


@pytest.fixture(scope="module")
def at_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with serving_with_keys(tmp_path_factory.mktemp("served")) as running, at_a_url(*running) as one:
        yield one


@pytest.fixture(params=["in_file", "at_url"])
def deployment(request: pytest.FixtureRequest) -> Deployment:
    """A test that uses this runs once on a file and once on a URL."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture(params=["called", "awaited"])
def open_store(request: pytest.FixtureRequest, deployment: Deployment) -> Iterator[Open]:
    """Opens stores, for a new user or over a handle; a test runs once by calls and once by awaiting them."""
    with asyncio.Runner() as runner, ExitStack() as opened:

        def opening(over: Store | None = None, **options: Any) -> BaseStore:
            store = AlcoveStore(over or deployment.handle(deployment.new_user()), **options)
            if request.param == "called":
                return store
            if deployment.remote:  # a file stays open for the other tests
                opened.callback(lambda: runner.run(store.aclose()))
            return Awaited(store, runner)

        yield opening


def keys(found: list[SearchItem]) -> list[str]:
    return [each.key for each in found]


def room(user: str, *labels: str) -> tuple[str, ...]:
    return ("user", user, "langgraph", *labels)


# Out of the box


def test_what_langgraph_documents_works_as_it_is_written_there(open_store: Open) -> None:
    store = open_store(index=["text"])
    store.put(HOME, "food", {"text": "I like pizza", "kind": "taste"})
    store.put(HOME, "town", {"text": "I live in Rome"})
    item = store.get(HOME, "food")
    assert item
    assert (item.namespace, item.key) == (HOME, "food")
    assert item.value == {"text": "I like pizza", "kind": "taste"}
    assert keys(store.search(HOME, query="I like pizza")) == ["food", "town"]
    assert keys(store.search(HOME, filter={"kind": "taste"})) == ["food"]
    assert store.list_namespaces(prefix=("alice",)) == [HOME]
    store.delete(HOME, "food")
    assert store.get(HOME, "food") is None
    assert store.get(("nobody",), "food") is None
    assert keys(store.search(("alice",))) == ["town"]


def test_a_store_opens_a_path_or_a_url_by_itself(deployment: Deployment, path: Path) -> None:
    where: dict[str, Any] = {"at": path, "embedder": Bag(), "settings": QUIET}
    if deployment.url:
        key = deployment.trusted.api_keys.create(client="graph", user=deployment.new_user())
        where = {"at": deployment.url, "api_key": key}
    with AlcoveStore(**where, index={"fields": ["text"]}) as store:
        store.put(HOME, "k", {"text": "tea"})
    with AlcoveStore(**where) as again:
        (found,) = again.search((), query="tea")
        assert found.score == pytest.approx(1)

    async def awaited() -> Any:
        async with AlcoveStore(**where) as store:
            return await store.aget(HOME, "k")

    assert asyncio.run(awaited()).value == {"text": "tea"}


def test_namespaces_are_sixteen_labels_deep_and_not_more(open_store: Open) -> None:
    store = open_store(index=["text"])
    store.put(DEEP, "k", {"text": "tea"})
    item = store.get(DEEP, "k")
    assert item
    assert item.namespace == DEEP
    assert store.search(DEEP[:15], query="tea")[0].namespace == DEEP
    assert store.list_namespaces(suffix=DEEP[-1:]) == [DEEP]
    with pytest.raises(InvalidRequest, match="namespace: expected 1 to"):
        store.put((*DEEP, "one more"), "k", {})
    assert store.list_namespaces() == [DEEP]


def test_namespaces_are_below_the_callers_own_room_and_come_back_from_there(
    open_store: Open, deployment: Deployment
) -> None:
    handle = deployment.handle(user := deployment.new_user())
    store = open_store(handle, index=["text"])
    for labels in (HOME, DEEP[:15], ODD, ("user", "langgraph", "u")):
        store.put(labels, "k", {"text": "tea"})
        memory = handle.get(room(user, *labels), "k")
        assert memory
        assert (memory.value, memory.index) == ({"text": "tea"}, {"text": "tea"})
        handle.put(room(user, *labels, "further"), "k2", {"n": 1})
        item = store.get((*labels, "further"), "k2")
        assert item
        assert (item.namespace, item.value) == ((*labels, "further"), {"n": 1})
        assert [each.namespace for each in store.search(labels)] == [labels, (*labels, "further")]
        assert store.list_namespaces(prefix=labels) == [labels, (*labels, "further")]
    handle.put(("user", user, "elsewhere"), "k", {})
    assert len(store.search((), limit=100)) == 8


def test_users_of_one_deployment_do_not_see_each_others_items(
    open_store: Open, deployment: Deployment
) -> None:
    alice, bob = (open_store(index=["text"]) for _ in range(2))
    alice.put(HOME, "k", {"text": "tea of Alice"})
    assert bob.get(HOME, "k") is None
    assert bob.search(()) == bob.search((), query="tea") == bob.list_namespaces() == []
    bob.put(HOME, "k", {"text": "rain of Bob"})
    bob.delete(HOME, "k2")
    (hers,), (his,) = alice.search((), query="tea"), bob.search((), query="tea")
    assert (hers.value["text"], his.value["text"]) == ("tea of Alice", "rain of Bob")
    bob.delete(HOME, "k")
    assert alice.get(HOME, "k")


# One room for each user


def test_by_user_the_first_label_is_the_user_whose_room_it_is(
    open_store: Open, deployment: Deployment
) -> None:
    store = open_store(deployment.gateway(), by_user=True, index=["text"])
    alice, bob = deployment.new_user("alice"), deployment.new_user("bob")
    deep = (alice, *DEEP)
    ops = [PutOp((user, "memories"), "k", {"text": f"tea of {user}"}) for user in (alice, bob)]
    store.batch([*ops, PutOp((alice,), "at the top", {}), PutOp(deep, "deep", {})])
    memory = deployment.handle(alice).get(room(alice, "memories"), "k")
    assert memory
    assert memory.value == {"text": f"tea of {alice}"}
    item = store.get((alice, "memories"), "k")
    assert item
    assert item.namespace == (alice, "memories")
    assert [each.namespace for each in store.search((alice,))] == [(alice,), deep, (alice, "memories")]
    assert [each.value["text"] for each in store.search((bob,), query="tea")] == [f"tea of {bob}"]
    assert store.list_namespaces(prefix=(alice,)) == [(alice,), deep, (alice, "memories")]
    assert store.list_namespaces(prefix=(bob, "*")) == [(bob, "memories")]
    store.delete((alice, "memories"), "k")
    assert store.get((alice, "memories"), "k") is None
    assert store.get((bob, "memories"), "k")


def test_by_user_a_wipe_erases_that_users_items_and_nobody_elses(
    open_store: Open, deployment: Deployment
) -> None:
    store = open_store(deployment.gateway(), by_user=True, index=["text"])
    alice, bob = deployment.new_user("alice"), deployment.new_user("bob")
    for user in (alice, bob):
        store.batch([PutOp((user, "memories"), f"k{n}", {"text": f"tea {user} {n}"}) for n in range(5)])
    assert len(store.search((alice,), query="tea")) == 5
    receipt = deployment.trusted.wipe(alice)
    assert receipt.key_destroyed
    assert receipt.removed["memories"] == 5
    assert store.search((alice,)) == store.search((alice,), query="tea") == []
    assert store.list_namespaces(prefix=(alice,)) == []
    assert len(store.search((bob,), query="tea")) == 5
    assert f"tea {alice}".encode() not in raw_bytes(deployment.path)
    assert f"tea {bob}".encode() in raw_bytes(deployment.path)


def test_by_user_a_namespace_without_a_user_is_refused(open_store: Open, deployment: Deployment) -> None:
    store = open_store(deployment.gateway(), by_user=True)
    for refused in (
        lambda: store.search(()),
        lambda: store.search((), query="tea"),
        lambda: store.get((), "k"),
        store.list_namespaces,
        lambda: store.list_namespaces(prefix=("*", "memories")),
        lambda: store.list_namespaces(suffix=("memories",)),
    ):
        with pytest.raises(InvalidRequest, match="namespace: expected a user as its first label"):
            refused()


def test_by_user_a_put_without_a_user_is_refused(open_store: Open, deployment: Deployment) -> None:
    store = open_store(deployment.gateway(), by_user=True)
    with pytest.raises(InvalidRequest, match="namespace: expected a user as its first label"):
        store.batch([PutOp((), "k", {})])


def test_by_user_a_key_that_is_not_trusted_is_refused(at_url: Deployment) -> None:
    store = AlcoveStore(at_url.handle(at_url.new_user()), by_user=True)
    with pytest.raises(PermissionDenied, match="trusted"):
        store.put(HOME, "k", {})


# How long items live


def expiry(handle: Store, user: str, key: str) -> datetime:
    memory = handle.get(room(user, *HOME), key)
    assert memory
    assert memory.expires_at
    return memory.expires_at


def test_ttls_are_minutes_and_reading_begins_them_anew(open_store: Open, deployment: Deployment) -> None:
    handle = deployment.handle(user := deployment.new_user())
    store = open_store(handle, index=["text"])
    before = datetime.now(UTC)
    store.put(HOME, "k", {"text": "tea"}, ttl=2.5)
    first = expiry(handle, user, "k")
    assert timedelta(seconds=150) <= first - before < timedelta(seconds=210)
    store.get(HOME, "k", refresh_ttl=False)
    store.search(HOME, refresh_ttl=False)
    assert expiry(handle, user, "k") == first
    store.get(HOME, "k")
    second = expiry(handle, user, "k")
    store.search(HOME)
    third = expiry(handle, user, "k")
    store.search(HOME, query="tea")
    assert first < second < third < expiry(handle, user, "k")
    assert expiry(handle, user, "k") - third < timedelta(seconds=60), "as long as before, not twice as long"
    item = store.get(HOME, "k")
    assert item
    assert item.updated_at < second - timedelta(seconds=150) + timedelta(seconds=1), "reading is no writing"


def test_a_ttl_config_gives_a_ttl_and_says_whether_reading_refreshes_it(
    open_store: Open, deployment: Deployment
) -> None:
    handle = deployment.handle(user := deployment.new_user())
    store = open_store(handle, ttl={"default_ttl": 5, "refresh_on_read": False})
    store.put(HOME, "k", {})
    store.put(HOME, "longer", {}, ttl=60)
    store.put(HOME, "for ever", {}, ttl=None)
    first = expiry(handle, user, "k")
    assert timedelta(minutes=54) < expiry(handle, user, "longer") - first < timedelta(minutes=56)
    memory = handle.get(room(user, *HOME), "for ever")
    assert memory
    assert memory.expires_at is None
    store.get(HOME, "k")
    store.search(HOME)
    assert expiry(handle, user, "k") == first
    store.get(HOME, "k", refresh_ttl=True)
    assert expiry(handle, user, "k") > first
    store.put(HOME, "k", {}, ttl=None)
    memory = handle.get(room(user, *HOME), "k")
    assert memory
    assert memory.expires_at is None, "the last put says how long"


def test_an_item_is_gone_when_its_time_is_over(path: Path, clock: ManualClock) -> None:
    with in_a_file(path, clock) as deployment, AlcoveStore(deployment.trusted, index=["text"]) as store:
        store.put(HOME, "k", {"text": "tea"}, ttl=2)
        store.put(("brief",), "brief", {"text": "tea"}, ttl=0.001)
        clock.advance(1.1)
        assert store.get(("brief",), "brief") is None, "a second is the least"
        clock.advance(100)
        assert store.get(HOME, "k"), "which refreshes it"
        clock.advance(110)
        assert keys(store.search((), query="tea")) == ["k"], "which refreshes it"
        clock.advance(110)
        assert store.get(HOME, "k", refresh_ttl=False)
        assert store.search(HOME, refresh_ttl=False)
        assert store.list_namespaces() == [HOME]
        clock.advance(11)
        assert store.get(HOME, "k") is None
        assert store.search(()) == store.search((), query="tea") == store.list_namespaces() == []
        store.put(HOME, "k", {"text": "rain"})
        clock.advance(10**6)
        assert store.get(HOME, "k")


def test_an_item_of_a_server_is_gone_when_its_time_is_over(at_url: Deployment) -> None:
    store = AlcoveStore(at_url.handle(at_url.new_user()))
    store.put(HOME, "k", {}, ttl=1 / 60)
    until(lambda: store.get(HOME, "k", refresh_ttl=False) is None)
    assert store.search(()) == store.list_namespaces() == []


def test_more_than_a_thousand_items_that_expire_are_found_at_once(path: Path) -> None:
    with in_a_file(path) as deployment, AlcoveStore(deployment.trusted) as store:
        store.batch([PutOp(HOME, f"k{n}", {}, ttl=5) for n in range(1001)])
        assert len(store.search(HOME, limit=2000)) == 1001


def test_a_ttl_that_no_item_can_have_is_refused(path: Path) -> None:
    with in_a_file(path) as deployment, AlcoveStore(deployment.trusted) as store:
        for ttl in (1e12, float("inf"), float("nan")):
            with pytest.raises(InvalidRequest, match="ttl"):
                store.put(HOME, "k", {}, ttl=ttl)


def test_an_item_knows_when_it_was_made_and_when_it_was_last_changed(open_store: Open) -> None:
    store = open_store(index=["text"])
    store.put(HOME, "k", {"text": "tea"}, ttl=5)
    first = store.get(HOME, "k")
    assert first
    assert first.created_at == first.updated_at
    assert timedelta() <= datetime.now(UTC) - first.created_at < timedelta(minutes=1)
    store.put(HOME, "k", {"text": "rain"})
    for again in (store.get(HOME, "k"), *store.search(HOME), *store.search(HOME, query="rain")):
        assert again
        assert again.created_at == first.created_at
        assert again.updated_at > first.updated_at
    store.delete(HOME, "k")
    store.put(HOME, "k", {"text": "tea"})
    anew = store.get(HOME, "k")
    assert anew
    assert anew.created_at == anew.updated_at > first.created_at


# Much of it


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
    with AlcoveStore(path, settings=settings, embedder=None) as store:
        store.batch([PutOp(HOME, f"k{n}", {}) for n in range(11)])
        assert len(store.search(HOME, limit=100)) == 11


def test_a_batch_takes_more_bytes_than_a_request_does(open_store: Open) -> None:
    store = open_store()
    texts = {f"k{n}": chr(ord("a") + n) * 900_000 for n in range(6)}
    store.batch([PutOp(HOME, key, {"text": text}) for key, text in texts.items()])
    assert {each.key: each.value["text"] for each in store.search(HOME)} == texts


def test_threads_and_an_event_loop_share_a_store(deployment: Deployment) -> None:
    over = deployment.handle(deployment.new_user())
    store = AlcoveStore(over, index=["text"])

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

store = AlcoveStore(sys.argv[1], **({"api_key": sys.argv[2]} if sys.argv[2:] else {"embedder": None}))
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
    after_two, after_twelve = done.stdout.splitlines()
    assert after_two == after_twelve, "open files, and threads"


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
    with in_a_file(path) as deployment, AlcoveStore(deployment.trusted) as store:
        with pytest.raises(InvalidNamespaceError):
            store.get(("a.b",), "k")
        store.put(HOME, "k", {})
        with pytest.raises(InvalidNamespaceError):
            store.get(("a.b",), "k")


def test_an_embedder_of_langgraphs_is_for_a_file_that_it_opens(path: Path, at_url: Deployment) -> None:
    embeddings = DeterministicFakeEmbedding(size=32)
    index = {"dims": 32, "embed": embeddings, "fields": ["text"]}
    with AlcoveStore(path, index=index) as store:
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


def test_one_path_that_is_not_in_a_list_is_refused(path: Path) -> None:
    with in_a_file(path) as deployment, pytest.raises(InvalidRequest, match="index"):
        AlcoveStore(deployment.trusted, index="text")


# How items are found


def test_what_has_no_text_to_be_found_by_comes_last_and_has_no_score(open_store: Open) -> None:
    store = open_store(index=["text"])
    store.put(HOME, "a", {"text": "tea"}, index=False)
    store.put(HOME, "b", {"other": "tea"})
    store.put(HOME, "c", {"text": None})
    store.put(HOME, "d", {"text": "rain"})
    store.put(HOME, "e", {"text": "tea"})
    store.put(HOME, "f", {"text": "  "})
    found = store.search(HOME, query="tea")
    assert keys(found)[:2] == ["e", "d"]
    assert sorted(keys(found)[2:]) == ["a", "b", "c", "f"]
    assert found[0].score == pytest.approx(1)
    assert found[1].score == pytest.approx(0, abs=0.3)
    assert [each.score for each in found[2:]] == [None] * 4
    assert keys(store.search(HOME, query="tea", filter={"other": "tea"})) == ["b"]
    assert [each.score for each in store.search(HOME)] == [None] * 6


def test_an_item_is_found_by_what_it_holds_now(open_store: Open) -> None:
    store = open_store(index=["text"])
    store.put(HOME, "k", {"text": "tea"})
    assert store.search(HOME, query="tea")[0].score == pytest.approx(1)
    store.put(HOME, "k", {"text": "rain"})
    assert store.search(HOME, query="tea")[0].score != pytest.approx(1)
    store.put(HOME, "k", {"text": "tea"}, index=False)
    assert store.search(HOME, query="tea")[0].score is None


def test_a_path_says_which_parts_an_item_is_found_by(open_store: Open) -> None:
    value = {
        "text": "tea",
        "other": "rain",
        "meta": {"title": "garden"},
        "chapters": [{"content": "lamp"}, {"content": "violin"}],
    }
    every = ["tea", "rain", "garden", "lamp", "violin"]
    found_by = {
        "text": ["tea"],
        "meta.title": ["garden"],
        "chapters[*].content": ["lamp", "violin"],
        "chapters[0].content": ["lamp"],
        "chapters[-1].content": ["violin"],
        "{text,other}": ["tea", "rain"],
        "absent": [],
    }
    store = open_store(index=["chapters[*].content", "text"])
    for n, path in enumerate(found_by):
        store.put((str(n),), "k", value, index=[path])
    store.put(("as configured",), "k", value)
    told = {(str(n),): found_by[path] for n, path in enumerate(found_by)}
    told[("as configured",)] = ["tea", "lamp", "violin"]
    for namespace, words in told.items():
        scores = {word: store.search(namespace, query=word)[0].score or 0 for word in every}
        assert [word for word, score in scores.items() if score > 0.9] == words, namespace


def test_a_dollar_says_that_an_item_is_found_by_all_of_it(open_store: Open) -> None:
    value = {"one": "tea", "more": [{"deep": "violin"}]}
    configured, given = open_store(index=["$"]), open_store(index=["one"])
    configured.put(HOME, "k", value)
    given.put(HOME, "k", value, index=["$"])
    for store in (configured, given):
        scores = [store.search(HOME, query=word)[0].score or 0 for word in ("tea", "violin", "moon")]
        assert scores[0] > 0.3 < scores[1]
        assert scores[2] < 0.1


def test_an_index_without_fields_is_of_the_whole_value(open_store: Open) -> None:
    store = open_store(index={})
    store.put(HOME, "k", {"anything": "tea"})
    assert store.search(HOME, query="tea")[0].score


def test_without_an_index_a_query_leaves_all_items_unscored(open_store: Open) -> None:
    store = open_store()
    store.put(HOME, "k", {"text": "tea"})
    store.put(HOME, "k2", {"text": "rain"})
    assert [(each.key, each.score) for each in store.search(HOME, query="tea")] == [("k", None), ("k2", None)]


def test_each_of_many_parts_of_an_item_is_indexed(path: Path) -> None:
    with in_a_file(path) as deployment, AlcoveStore(deployment.trusted, index=["parts[*]"]) as store:
        store.put(HOME, "k", {"parts": [f"w{n}" for n in range(65)]})
        assert (store.search(HOME, query="w64")[0].score or 0) > 0.5


def test_a_long_text_is_kept_and_indexed(path: Path) -> None:
    with in_a_file(path) as deployment, AlcoveStore(deployment.trusted, index=["text"]) as store:
        store.put(HOME, "k", {"text": "tea " * 17_000})
        assert store.search(HOME, query="tea")[0].score


def test_a_query_of_blanks_is_none(open_store: Open) -> None:
    store = open_store(index=["text"])
    store.put(HOME, "k", {"text": "tea"})
    assert keys(store.search(HOME, query=" \n")) == ["k"]


def test_what_was_just_put_is_found_while_the_embedder_is_slow(deployment: Deployment) -> None:
    store = AlcoveStore(deployment.handle(deployment.new_user()), index=["text"])
    with deployment.slow_embedder():
        store.batch([PutOp(HOME, f"k{n}", {"text": f"tea w{n}"}) for n in range(20)])
        found = store.search(HOME, query="tea w7", limit=20)
    assert found[0].key == "k7"
    assert all(each.score is not None for each in found)
    assert len(found) == 20


def test_a_batch_reads_what_was_there_before_it_and_writes_the_last_of_each_key(open_store: Open) -> None:
    store = open_store(index=["text"])
    store.put(HOME, "k", {"text": "before"})
    results = store.batch(
        [
            PutOp(HOME, "k", {"text": "lost"}),
            GetOp(HOME, "k"),
            PutOp(("new",), "k", {"text": "new"}),
            SearchOp((), query="before"),
            ListNamespacesOp(),
            PutOp(HOME, "gone", {"text": "gone"}),
            PutOp(HOME, "gone", None),
            PutOp(HOME, "k", {"text": "after"}),
        ]
    )
    assert [results[n] for n in (0, 2, 5, 6, 7)] == [None] * 5
    got, found = results[1], results[3]
    assert getattr(got, "value", None) == {"text": "before"}
    assert isinstance(found, list)
    assert len(found) == 1
    assert results[4] == [HOME]
    assert {each.key: each.value["text"] for each in store.search(HOME)} == {"k": "after"}
    assert store.list_namespaces() == [HOME, ("new",)]
    assert store.batch([]) == []


def test_large_integers_are_compared_exactly(open_store: Open) -> None:
    store = open_store()
    for n in (2**53, 2**53 + 1, 2**63 - 1):
        store.put(HOME, str(n), {"n": n})
    assert keys(store.search(HOME, filter={"n": {"$gt": 2**53}})) == [str(2**53 + 1), str(2**63 - 1)]
    assert keys(store.search(HOME, filter={"n": {"$lte": 2**53}})) == [str(2**53)]
    assert keys(store.search(HOME, filter={"n": 2**53 + 1})) == [str(2**53 + 1)]


def test_a_bound_leaves_out_what_cannot_be_compared_with_it(open_store: Open) -> None:
    store = open_store()
    for key, value in {"none": None, "text": "tea", "list": [5], "object": {"n": 5}, "number": 5}.items():
        store.put(HOME, key, {"n": value})
    store.put(HOME, "absent", {})
    assert keys(store.search(HOME, filter={"n": {"$gt": 1}})) == ["number"]
    with pytest.raises(InvalidRequest, match=r"n.\$gt: expected a number"):
        store.search(HOME, filter={"n": {"$gt": None}})
    with pytest.raises(InvalidRequest, match=r"n.\$near: expected one of \$eq"):
        store.search(HOME, filter={"n": {"$near": 1}})


@pytest.mark.parametrize(
    ("filter", "found"),
    [
        ({"n": {"$lt": 2**70}}, True),
        ({"n": {"$gt": -(10**400)}}, True),
        ({"n": 2**70}, False),
        ({"pair": (1, 2)}, True),
        ({"pair": [1, float("inf")]}, False),
        ({"word": float("inf")}, False),
        ({"n": float("nan")}, False),
    ],
    ids=str,
)
def test_a_filter_means_the_same_on_a_file_and_at_a_url(
    deployment: Deployment, filter: Any, found: bool
) -> None:
    store = AlcoveStore(deployment.handle(deployment.new_user()))
    store.put(HOME, "k", {"n": 1, "pair": [1, 2], "word": "Infinity"})
    assert bool(store.search(HOME, filter=filter)) is found


# What is on the disk, and what is not there at all


def test_values_are_sealed_and_only_what_is_indexed_is_not(open_store: Open, deployment: Deployment) -> None:
    store = open_store(index=["text"])
    store.put(HOME, "k", {"text": "plainly-visible", "secret": "well-hidden-word"})
    store.put(HOME, "k2", {"text": "another-hidden-word"}, index=False)
    assert store.search(HOME, query="plainly-visible")[0].value["secret"] == "well-hidden-word"
    held = raw_bytes(deployment.path)
    assert b"plainly-visible" in held, "this looks at the wrong files"
    assert b"well-hidden-word" not in held
    assert b"another-hidden-word" not in held


def test_without_an_embedder_items_are_found_by_words_and_not_by_meaning(path: Path) -> None:
    with Alcove(path, settings=QUIET, embedder=None) as plain:
        store = AlcoveStore(plain, index=["text"])
        store.put(HOME, "a", {"text": "rain"})
        store.put(HOME, "b", {"text": "tea"})
        assert keys(store.search(HOME)) == ["a", "b"]
        assert keys(store.search(HOME, filter={"text": "tea"})) == ["b"]
        with pytest.raises(EmbedderUnavailable, match="no embedder is configured"):
            store.search(HOME, query="tea")
        by_words = AlcoveStore(plain, index=["text"], mode="keyword")
        assert [(each.key, each.score) for each in by_words.search(HOME, query="tea")] == [("b", None)]


def test_without_an_embedder_a_query_is_told_what_to_do(path: Path) -> None:
    with Alcove(path, settings=QUIET, embedder=None) as plain:
        store = AlcoveStore(plain, index=["text"])
        store.put(HOME, "b", {"text": "tea"})
        with pytest.raises(AlcoveError) as refused:
            store.search(HOME, query="tea")
        assert "so this is ranked by words alone" not in refused.value.message


def test_a_missing_extra_says_what_to_install() -> None:
    code = "import sys; sys.modules['langgraph.store'] = None; import alcove.integrations.langgraph"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    told = "alcove.integrations.langgraph needs langgraph.store.base: pip install 'alcove[langgraph]'"
    assert done.stderr.splitlines()[-1].endswith(told)
