"""Where an item is: in the namespace that is given, if the policy allows it, or below a root."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore, PutOp

from alcove import Alcove, InvalidRequest, PermissionDenied
from alcove.integrations.langgraph import AlcoveStore
from tests.support.concurrent_workers import QUIET
from tests.support.hashed_embedder import Bag
from tests.support.langgraph_stores import HOME, OWN, Deployment, Open, in_a_file, keys
from tests.support.service import serving
from tests.support.store_inspection import raw_bytes
from tests.support.tokens import FLAGS, token

TIP = {"text": "Use list comprehensions."}
OTHER = {"text": "The cat sleeps on the sofa."}


def test_the_three_calls_of_the_memory_service_use_the_namespace_that_rest_shows(tmp_path: Path) -> None:
    notes = ("user", "alice", "notes")
    with serving(tmp_path, *FLAGS) as service:
        with AlcoveStore(service.url, token=token("alice")) as store:
            store.put(notes, "python_tip", TIP)
            store.put(notes, "cat", OTHER)
            item = store.get(notes, "python_tip")
            results = store.search(("user", "alice"), query="python syntax", limit=5)
        shown = service.get([*notes], "python_tip", token("alice")).json()
        assert item
        assert (item.namespace, item.value) == (notes, TIP)
        assert (shown["namespace"], shown["value"]) == ([*notes], TIP)
        assert keys(results) == ["python_tip", "cat"], "by meaning, with nothing configured"
        assert results[0].score
        assert results[1].score is not None
        assert results[0].score > results[1].score

        async def awaited() -> Any:
            async with AlcoveStore(service.url, token=token("alice")) as store:
                await store.aput(notes, "second", TIP)
                found = await store.asearch(("user", "alice"), query="python syntax", limit=5)
                return await store.aget(notes, "second"), found

        item, results = asyncio.run(awaited())
        assert item
        assert item.value == service.get([*notes], "second", token("alice")).json()["value"] == TIP
        assert {*keys(results)[:2]} == {"python_tip", "second"}
        assert all(each.score for each in results[:2])


def open_as_given(open_store: Open, deployment: Deployment, user: str, **options: Any) -> BaseStore:
    return open_store(deployment.handle(user), root=None, **options)


def test_a_namespace_is_the_memory_at_that_address(open_store: Open, deployment: Deployment) -> None:
    user = deployment.new_user()
    handle, store = deployment.handle(user), open_as_given(open_store, deployment, user)
    notes = ("user", user, "notes")
    store.put(notes, "k", TIP)
    memory = handle.get(notes, "k")
    assert memory
    assert memory.value == TIP
    handle.put(("agent", "x", "u", user), "k2", {"n": 1})
    found = store.get(("agent", "x", "u", user), "k2")
    assert found
    assert found.value == {"n": 1}
    assert keys(store.search(("user",))) == ["k"]
    assert store.list_namespaces(prefix=("user",)) == [notes]
    store.delete(notes, "k")
    assert handle.get(notes, "k") is None


def test_a_namespace_that_the_policy_refuses_is_told_with_what_to_do(
    open_store: Open, deployment: Deployment
) -> None:
    user = deployment.new_user()
    store = open_as_given(open_store, deployment, user)
    told = (
        rf"\('memories',\) is not a namespace that '{user}' may use .*"
        rf"\('user', '{user}', 'notes'\), or pass root='user:{user}:langgraph'"
    )
    for refused in (
        lambda: store.put(("memories",), "k", {}),
        lambda: store.get(("memories",), "k"),
        lambda: store.delete(("memories",), "k"),
        lambda: store.search(("memories",)),
        lambda: store.search(("memories",), query="tea"),
        lambda: store.batch([PutOp(("user", user), "k", {}), PutOp(("memories",), "k", {})]),
    ):
        with pytest.raises(PermissionDenied, match=told):
            refused()
    assert store.search(("user", user)) == store.search(("user",)) == store.search(()) == []
    assert store.list_namespaces(prefix=("memories",)) == []
    with pytest.raises(PermissionDenied, match="is not a namespace that"):
        store.put(("user", "somebody-else", "notes"), "k", {})


@pytest.mark.parametrize("spelling", ["a text", "segments", "a placeholder"])
def test_a_root_puts_everything_below_one_namespace(
    open_store: Open, deployment: Deployment, spelling: str
) -> None:
    user = deployment.new_user()
    handle = deployment.handle(user)
    roots: dict[str, Any] = {
        "a text": f"user:{user}:graph",
        "segments": ("user", user, "graph"),
        "a placeholder": ("user", "{user_id}", "graph"),
    }
    store = open_store(handle, root=roots[spelling])
    store.put(("memories",), "k", TIP)
    assert handle.get(("user", user, "graph", "memories"), "k")
    handle.put(("user", user, "other"), "k", TIP)
    (item,) = store.search((), query="list comprehensions")
    assert item.namespace == ("memories",)
    assert store.list_namespaces() == [("memories",)]
    assert store.get(("memories",), "k")


def test_a_root_that_the_caller_may_not_use_is_refused(open_store: Open, deployment: Deployment) -> None:
    store = open_store(deployment.handle(deployment.new_user()), root="shared:notes")
    with pytest.raises(PermissionDenied, match=r"\('shared', 'notes', 'memories'\) is not a namespace"):
        store.put(("memories",), "k", {})


def test_a_root_that_is_none_or_stands_beside_by_user_is_refused(path: Path) -> None:
    with in_a_file(path) as deployment:
        for root in ("user::x", ("user", ""), 7):
            with pytest.raises(InvalidRequest, match="root"):
                AlcoveStore(deployment.trusted, root=root)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="root: expected none with by_user"):
            AlcoveStore(deployment.trusted, root="user:alice", by_user=True)


def test_what_earlier_versions_wrote_is_read_below_the_root_that_they_had(path: Path) -> None:
    with Alcove(path, settings=QUIET, embedder=Bag()) as memory:
        memory.put(("user", "noop", "langgraph", "alice", "memories"), "k", TIP, index={"text": TIP["text"]})
    with AlcoveStore(path, settings=QUIET, embedder=Bag(), root=OWN) as store:
        (item,) = store.search(HOME, query="list comprehensions")
        assert (item.namespace, item.value) == (HOME, TIP)
        assert item.score


def test_reading_what_may_not_be_written_refreshes_the_rest(path: Path) -> None:
    """An admin's search finds what others own, and a touch is a write."""
    with in_a_file(path) as deployment:
        alice = deployment.trusted.as_user("alice")
        alice.put(("user", "alice"), "hers", {}, ttl_seconds=60)
        store = AlcoveStore(deployment.trusted)
        store.put(("user", "noop"), "own", {}, ttl=5)

        def expiry() -> Any:
            memory = deployment.trusted.get(("user", "noop"), "own")
            assert memory
            return memory.expires_at

        before = expiry()
        assert sorted(keys(store.search(()))) == ["hers", "own"]
        assert expiry() > before


# Which texts are indexed


def test_every_text_of_a_value_is_found_by_meaning_with_no_configuration(open_store: Open) -> None:
    store = open_store()
    store.put(HOME, "deep", {"title": "garden", "more": [{"deep": "violin"}], "n": 7})
    store.put(HOME, "numbers", {"n": 7, "on": True})
    store.put(HOME, "hidden", {"text": "violin"}, index=False)
    store.put(HOME, "chosen", {"text": "violin", "other": "moon"}, index=["other"])
    assert (store.search(HOME, query="violin")[0].score or 0) > 0.3
    assert keys(store.search(HOME, query="violin"))[0] == "deep"
    assert keys(store.search(HOME, query="moon"))[0] == "chosen"
    scores = {each.key: each.score for each in store.search(HOME, query="garden")}
    assert scores["numbers"] is scores["hidden"] is None
    assert scores["chosen"] is not None
    assert store.get(HOME, "hidden")
    assert len(store.search(HOME)) == 4


def test_a_store_that_indexes_nothing_has_no_word_in_plain_text(
    open_store: Open, deployment: Deployment
) -> None:
    store = open_store(index=False)
    store.put(HOME, "k", {"text": "hidden-from-everybody"})
    store.put(HOME, "k2", {"text": "hidden-from-all"}, index=["text"])
    assert [each.score for each in store.search(HOME, query="hidden-from-all")] == [None, None]
    held = raw_bytes(deployment.path)
    assert b"hidden-from-everybody" not in held
    assert b"hidden-from-all" not in held


@pytest.mark.parametrize(
    "value",
    [
        {f"k{n}": f"text {n}" for n in range(500)},
        {"n" * 3000: "a long name"},
        {"": "no name"},
        {"text": "tea " * 200_000},
        {},
        {"list": [[["deep"]]], "nothing": None},
    ],
    ids=["many", "long name", "no name", "long text", "empty", "lists"],
)
def test_a_value_of_any_shape_can_be_put_into_a_store_that_indexes_all(path: Path, value: Any) -> None:
    with in_a_file(path) as deployment, AlcoveStore(deployment.trusted, root=OWN) as store:
        store.put(HOME, "k", value)
        item = store.get(HOME, "k")
        assert item
        assert item.value == value


# Filters


def test_a_dotted_name_in_a_filter_is_a_path_or_a_key_that_is_spelled_so(open_store: Open) -> None:
    store = open_store()
    store.put(HOME, "nested", {"meta": {"abc": 1, "x-y": {"z": "deep"}}})
    store.put(HOME, "literal", {"meta.abc": 1})
    store.put(HOME, "both", {"meta.abc": 2, "meta": {"abc": 1}})
    store.put(HOME, "neither", {"meta": "abc"})
    assert keys(store.search(HOME, filter={"meta.abc": 1})) == ["literal", "nested"]
    assert keys(store.search(HOME, filter={"meta.abc": {"$gt": 1}})) == ["both"]
    assert keys(store.search(HOME, filter={"meta.x-y.z": "deep"})) == ["nested"]
    assert keys(store.search(HOME, filter={"meta": {"abc": 1}})) == ["both", "nested"]


def test_a_filter_over_rest_finds_a_key_that_has_a_dot(deployment: Deployment) -> None:
    handle = deployment.handle(user := deployment.new_user())
    handle.put(("user", user), "literal", {"meta.abc": 1, "meta": {"abc": 2}})
    handle.put(("user", user), "nested", {"meta": {"abc": 1}})
    found = handle.search(("user", user), filter={"meta.abc": 1})
    assert [each.key for each in found] == ["literal", "nested"]
