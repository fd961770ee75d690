"""Whose an item is: below the caller's own room, or in the room of the user that its namespace names."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import (
    PutOp,
)

from alcove import Alcove, AlcoveError, InvalidRequest, PermissionDenied
from alcove.integrations.langgraph import AlcoveStore
from alcove.search.embedders import EmbedderUnavailable
from tests.support.concurrent_workers import QUIET
from tests.support.hashed_embedder import Bag
from tests.support.langgraph_stores import (
    DEEP,
    HOME,
    ODD,
    OWN,
    Deployment,
    Open,
    keys,
    room,
)
from tests.support.store_inspection import raw_bytes


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
    with AlcoveStore(**where, index={"fields": ["text"]}, root=OWN) as store:
        store.put(HOME, "k", {"text": "tea"})
    with AlcoveStore(**where, root=OWN) as again:
        (found,) = again.search((), query="tea")
        assert found.score == pytest.approx(1)

    async def awaited() -> Any:
        async with AlcoveStore(**where, root=OWN) as store:
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
        store = AlcoveStore(plain, index=["text"], root=OWN)
        store.put(HOME, "a", {"text": "rain"})
        store.put(HOME, "b", {"text": "tea"})
        assert keys(store.search(HOME)) == ["a", "b"]
        assert keys(store.search(HOME, filter={"text": "tea"})) == ["b"]
        with pytest.raises(EmbedderUnavailable, match="no embedder is configured"):
            store.search(HOME, query="tea")
        by_words = AlcoveStore(plain, index=["text"], mode="keyword", root=OWN)
        assert [(each.key, each.score) for each in by_words.search(HOME, query="tea")] == [("b", None)]


def test_without_an_embedder_a_query_is_told_what_to_do(path: Path) -> None:
    with Alcove(path, settings=QUIET, embedder=None) as plain:
        store = AlcoveStore(plain, index=["text"], root=OWN)
        store.put(HOME, "b", {"text": "tea"})
        with pytest.raises(AlcoveError) as refused:
            store.search(HOME, query="tea")
        assert "so this is ranked by words alone" not in refused.value.message


def test_a_missing_extra_says_what_to_install() -> None:
    code = "import sys; sys.modules['langgraph.store'] = None; import alcove.integrations.langgraph"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    told = "langgraph needs langgraph.store.base: pip install '.[langgraph]' in a clone of Alcove"
    assert done.stderr.splitlines()[-1].endswith(told)
