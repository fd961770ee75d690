"""Memories that are found by texts of their own values, which the put only names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from alcove import Alcove, InvalidRequest, Put

ROOM = ("user", "alice", "notes")
TEA = {"title": "Tea", "cups": 3, "made": {"by": "Ann"}, "tags": ["hot", "sweet"]}
EVERY = {"title": "Tea", "made.by": "Ann", "tags": "hot\nsweet"}


def found(alice: Alcove, query: str) -> list[str]:
    return [memory.key for memory in alice.search(ROOM, query=query, mode="keyword")]


@pytest.mark.parametrize(
    ("index", "kept"),
    [
        (True, EVERY),
        (["title"], {"title": "Tea"}),
        (("made", "cups", "absent"), {"made.by": "Ann"}),
        (["absent"], {}),
        ([], {}),
        (False, {}),
        (None, {}),
        ({"own": "words"}, {"own": "words"}),
    ],
)
def test_a_memory_is_found_by_the_texts_that_its_put_names(
    alice: Alcove, index: Any, kept: dict[str, str]
) -> None:
    alice.put(ROOM, "put", TEA, index=index)
    alice.batch([Put(ROOM, "record", TEA, index)])
    alice.batch([{"op": "put", "namespace": ROOM, "key": "mapping", "value": TEA, "index": index}])
    for key in ("put", "record", "mapping"):
        memory = alice.get(ROOM, key)
        assert memory is not None
        assert (memory.index, memory.value) == (kept, TEA)
    for word in ("tea", "ann", "sweet"):
        holds = word in " ".join(kept.values()).lower()
        assert len(found(alice, word)) == (3 if holds else 0)


def test_an_import_takes_the_texts_that_a_line_names_and_writes_only_what_differs(alice: Alcove) -> None:
    def line(index: object) -> bytes:
        return json.dumps({"namespace": ROOM, "key": "tea", "value": TEA, "index": index}).encode()

    assert alice.import_memories([line(True)]).imported == 1
    assert alice.import_memories([line(True), line(EVERY), line(["title", "made", "tags"])]).unchanged == 3
    assert alice.import_memories([line(["title"])]).imported == 1
    assert found(alice, "ann") == []
    refused = alice.import_memories([line([7]), line("title"), line([""])])
    assert [failure.line for failure in refused.failed] == [1, 2, 3]


def test_what_is_too_much_to_be_indexed_is_refused_by_its_name_and_nothing_is_stored(alice: Alcove) -> None:
    for value, named in (
        ({"a": {"b": "x" * 65_537}}, "index.a.b"),
        ({"a": ["x" * 40_000, "y" * 40_000]}, "index.a"),
        ({f"field-{n}": "text" for n in range(65)}, "'field-64' is one too many"),
    ):
        with pytest.raises(InvalidRequest, match=named):
            alice.put(ROOM, "large", value, index=True)
    with pytest.raises(InvalidRequest) as refused:
        alice.batch([Put(ROOM, "fine", TEA, True), Put(ROOM, "large", {"a": "x" * 65_537}, ["a"])])
    assert refused.value.details["operation"] == 1
    assert alice.list(ROOM) == []


def test_a_put_that_is_repeated_by_its_key_must_name_the_same_texts(alice: Alcove) -> None:
    first = alice.put(ROOM, "tea", TEA, index=True, idempotency_key="once")
    assert alice.put(ROOM, "tea", TEA, index=True, idempotency_key="once").id == first.id
    with pytest.raises(Exception, match="another request"):
        alice.put(ROOM, "tea", TEA, index=["title"], idempotency_key="once")
