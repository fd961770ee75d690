"""How items are found: by meaning, by filters, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import (
    GetOp,
    ListNamespacesOp,
    PutOp,
    SearchOp,
)

from alcove import InvalidRequest
from alcove.integrations.langgraph import AlcoveStore
from tests.support.langgraph_stores import (
    HOME,
    OWN,
    Deployment,
    Open,
    in_a_file,
    keys,
)


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
    store = open_store(index=False)
    store.put(HOME, "k", {"text": "tea"})
    store.put(HOME, "k2", {"text": "rain"})
    assert [(each.key, each.score) for each in store.search(HOME, query="tea")] == [("k", None), ("k2", None)]


def test_each_of_many_parts_of_an_item_is_indexed(path: Path) -> None:
    with (
        in_a_file(path) as deployment,
        AlcoveStore(deployment.trusted, index=["parts[*]"], root=OWN) as store,
    ):
        store.put(HOME, "k", {"parts": [f"w{n}" for n in range(65)]})
        assert (store.search(HOME, query="w64")[0].score or 0) > 0.5


def test_a_long_text_is_kept_and_indexed(path: Path) -> None:
    with in_a_file(path) as deployment, AlcoveStore(deployment.trusted, index=["text"], root=OWN) as store:
        store.put(HOME, "k", {"text": "tea " * 17_000})
        assert store.search(HOME, query="tea")[0].score


def test_a_query_of_blanks_is_none(open_store: Open) -> None:
    store = open_store(index=["text"])
    store.put(HOME, "k", {"text": "tea"})
    assert keys(store.search(HOME, query=" \n")) == ["k"]


def test_what_was_just_put_is_found_while_the_embedder_is_slow(deployment: Deployment) -> None:
    store = AlcoveStore(deployment.handle(deployment.new_user()), index=["text"], root=OWN)
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
    store = AlcoveStore(deployment.handle(deployment.new_user()), root=OWN)
    store.put(HOME, "k", {"n": 1, "pair": [1, 2], "word": "Infinity"})
    assert bool(store.search(HOME, filter=filter)) is found
