"""Attribute filters through the service: attributes and index in SQL, values after opening."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alcove import Alcove, InvalidRequest
from alcove.core.filters import Filter, Scalar
from alcove.core.principal import JSON
from alcove.engine.postgres.connection import Connection
from alcove.engine.postgres.filter_sql import PostgresFilterCompiler
from alcove.engine.statements import Params
from tests.support.clock import ManualClock
from tests.support.postgres import new_database

NOTES = ("user", "alice", "notes")

ATTRIBUTES = """package memories.attributes
attributes := object.union(
    {"namespace": input.namespace[0], "sub": input.namespace[1]},
    {k: v | some k in ["topic", "score", "tags", "when", "flag"]; v := input.value[k]})
"""


@pytest.fixture
def notes(open_store: object, clock: ManualClock, tmp_path: Path) -> Alcove:
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "attributes.rego").write_text(ATTRIBUTES)
    alice: Alcove = open_store(clock=clock, policy_dir=policies).as_user("alice")  # type: ignore[operator]
    values: list[dict[str, object]] = [
        {"topic": "python", "score": 7, "tags": ["a", "b"], "when": "2026-01-02T03:04:05Z", "flag": True},
        {"topic": "go", "score": 7.5, "tags": [], "when": "2026-01-02T04:04:05+01:00", "flag": 1},
        {"topic": None, "score": "7", "deep": {"x": {"y": 3}}, "flag": "true"},
        {"deep": {"x": "flat"}, "secret": "s3", "score": 9007199254740993},
    ]
    for n, value in enumerate(values):
        alice.put(NOTES, str(n), value, index={"lang": f"l{n}"} if n < 3 else None)
    return alice


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({}, "0123"),
        ({"topic": "python"}, "0"),
        ({"topic": {"$eq": "python"}}, "0"),
        ({"topic": {"$ne": "python"}}, "123"),
        ({"topic": None}, "23"),
        ({"topic": {"$exists": True}}, "012"),
        ({"topic": {"$exists": False}}, "3"),
        ({"score": 7}, "0"),
        ({"score": 7.0}, "0"),
        ({"score": "7"}, "2"),
        ({"score": 9007199254740993}, "3"),
        ({"score": 9007199254740992}, ""),
        ({"score": {"gt": 7}}, "13"),
        ({"score": {"gte": 7, "lt": 8}}, "01"),
        ({"score": {"$in": [7, "7"]}}, "02"),
        ({"score": {"in": []}}, ""),
        ({"flag": True}, "0"),
        ({"flag": 1}, "1"),
        ({"tags": "a"}, "0"),
        ({"tags": {"in": ["x", "b"]}}, "0"),
        ({"tags": {"$ne": "a"}}, "123"),
        ({"when": {"gte": "2026-01-02T03:04:05Z"}}, "01"),
        ({"when": {"lt": "2026-01-02T03:04:05.000001Z"}}, "01"),
        ({"lang": "l1"}, "1"),
        ({"lang": {"in": ["l0", "l2"]}, "score": "7"}, "2"),
        ({"deep.x.y": 3}, "2"),
        ({"deep.x": "flat"}, "3"),
        ({"secret": "s3"}, "3"),
        ({"secret": {"$exists": False}}, "012"),
        ({"secret": None, "topic": "go"}, "1"),
        ({"sub": "bob"}, ""),
    ],
)
def test_filters_choose(notes: Alcove, expression: dict[str, object], expected: str) -> None:
    assert "".join(each.key for each in notes.search(NOTES, filter=expression)) == expected
    assert "".join(each.key for each in notes.list(NOTES, filter=expression)) == expected
    now = notes.put(("user", "alice", "elsewhere"), "now", {}).created_at
    assert "".join(each.key for each in notes.search(NOTES, filter=expression, as_of=now)) == expected


def test_limit_and_offset_count_what_is_left_after_all_conditions(notes: Alcove) -> None:
    expression = {"secret": None}
    assert [each.key for each in notes.search(NOTES, filter=expression, limit=2)] == ["0", "1"]
    assert [each.key for each in notes.search(NOTES, filter=expression, limit=2, offset=2)] == ["2"]


def test_a_caller_cannot_loosen_what_the_policy_forces(memory: Alcove, alice: Alcove, bob: Alcove) -> None:
    alice.put(NOTES, "k", {})
    bob.put(("user", "bob"), "k", {})
    for expression in ({"sub": "alice"}, {"sub": {"in": ["alice", "bob"]}}, {"sub": {"$exists": True}}):
        found = bob.search((), filter=expression)
        assert all(each.namespace == ("user", "bob") for each in found)


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ([], "filter"),
        ({"a": []}, "filter.a"),
        ({"a": {}}, "filter.a"),
        ({"a": {"like": "x"}}, "filter.a"),
        ({"a": {"in": "x"}}, "filter.a.in"),
        ({"a": {"in": [[]]}}, "filter.a.in"),
        ({"a": {"gt": "soon"}}, "filter.a.gt"),
        ({"a": {"gt": True}}, "filter.a.gt"),
        ({"a": {"$exists": 1}}, "filter.a.$exists"),
        ({"a": float("nan")}, "filter.a"),
        ({"": 1}, "filter"),
    ],
)
def test_a_bad_expression_names_its_field(alice: Alcove, expression: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        alice.search(NOTES, filter=expression)  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize("text", ["a\0b", "\\u0000", "\uf8f0", "\uf8f02", "naïve 😀"])
def test_every_text_is_found_by_a_filter_that_names_it(alice: Alcove, text: str) -> None:
    alice.put(NOTES, "k", {}, index={"text": text})
    assert [each.key for each in alice.search(NOTES, filter={"text": text})] == ["k"]


@pytest.mark.parametrize("choices", [["a"], ["b", "a"], ["a\0b"], ["a", 7]])
def test_postgresql_shows_by_a_policy_what_is_one_of_some_texts_or_holds_one(choices: list[Scalar]) -> None:
    filter = Filter.parse({"f": {"in": choices}})
    params: Params = []
    predicate = PostgresFilterCompiler().policy(filter, params)
    statement = f"SELECT 1 FROM (SELECT ? AS attributes) v WHERE {predicate}"
    ((_, test),) = filter.conditions
    with Connection.to(new_database()) as db:
        values: list[JSON] = ["a", "b", "a\0b", 7, True, None, [], ["x", "a"], [["a"]], {"a": 1}]
        for value in values:
            text = json.dumps({"f": value, "g": "a"})
            assert bool(db.run_text(statement, [text, *params]).get) == test.holds(value), value
        assert not db.run_text(statement, ['{"g": "a"}', *params]).get
