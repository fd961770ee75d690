"""Patterns of a value compare as Python does, and as LangGraph's own store in memory."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.memory import _compare_values

from alcove.core.errors import InvalidRequest
from alcove.core.filters import MAX_NODES, Filter, Pattern, filter_to_json
from tests.support.filters import matches

SCALARS = st.sampled_from([None, True, False, 0, 1, 1.0, -1, 2.5, "a", "1", "", 2**53])
ASKED = SCALARS | st.sampled_from([math.inf, -math.inf, math.nan, 2**70, 10**400])


def nodes(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from("ab")
    return st.recursive(
        scalars, lambda part: st.lists(part, max_size=3) | st.dictionaries(names, part, max_size=2)
    )


VALUES, WANTED = nodes(SCALARS), nodes(ASKED)
BOUNDS = st.sampled_from([0, 1.5, -3, math.inf, -math.inf, math.nan, 10**30, True])
OPERATORS = st.dictionaries(st.sampled_from(["$eq", "$ne"]), WANTED, min_size=1) | st.dictionaries(
    st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), BOUNDS, min_size=1
)
PATTERNS = st.dictionaries(st.sampled_from(["a", "b", "a.b"]), WANTED | OPERATORS, min_size=1, max_size=3)


@given(value=st.dictionaries(st.sampled_from(["a", "b", "a.b"]), VALUES), wanted=PATTERNS)
@settings(max_examples=500, deadline=None)
def test_it_answers_as_langgraph_does_wherever_that_answers(value: Any, wanted: Any) -> None:
    """Apart from names with a dot, which are paths unless there is such a key."""

    def at(name: str) -> Any:
        inner = value.get("a")
        is_path = name == "a.b" and name not in value and isinstance(inner, dict)
        return inner.get("b") if is_path else value.get(name)

    try:
        expected = all(_compare_values(at(name), part) for name, part in wanted.items())
    except (TypeError, ValueError):  # it compares a bound with what is no number
        return
    assert Pattern.parse(wanted, "filter").holds(value) is expected


@pytest.mark.parametrize(
    ("wanted", "value", "holds"),
    [
        ({"n": {"$gt": 1}}, {}, False),
        ({"n": {"$gt": 1}}, {"n": None}, False),
        ({"n": {"$gt": 1}}, {"n": "many"}, False),
        ({"n": {"$gt": "2026-01-01T00:00:00Z"}}, {"n": "2026-06-01T00:00:00Z"}, True),
        ({"n": {"$gt": "2026-01-01T00:00:00Z"}}, {"n": 10**18}, False),
        ({"n": {"$in": [1, [2]]}}, {"n": [2]}, True),
        ({"n": {"$lt": "Infinity"}}, {"n": 1.7e308}, True),
        ({"n": None}, {}, True),
        ({"n": {}}, {"n": {"deep": 1}}, True),
        ({"n": {}}, {"n": 1}, False),
        ({"a.b": 1}, {"a": {"b": 1}}, True),
        ({"a.b": 1}, {"a.b": 1}, True),
        ({"a.b": 1}, {"a.b": 2, "a": {"b": 1}}, False),
        ({"a.b": None}, {"a": 1}, True),
        ({"a.b.c": {"$gt": 1}}, {"a": {"b": {"c": 2}}}, True),
        ({"a": {"b.c": 1}}, {"a": {"b": {"c": 1}}}, False),
    ],
)
def test_what_it_holds_of(wanted: Any, value: Any, holds: bool) -> None:
    assert Pattern.parse(wanted, "filter").holds(value) is holds


def nested(levels: int) -> Any:
    return {"a": nested(levels - 1)} if levels else 1


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        (1, "filter"),
        ({"$gt": 1}, "filter"),
        ({"n": {"$gt": "soon"}}, "filter.n.$gt"),
        ({"n": {"$gt": [1]}}, "filter.n.$gt"),
        ({"n": {"$like": 1}}, "filter.n.$like"),
        ({"n": {"$in": 1}}, "filter.n.$in"),
        ({"n": {1}}, "filter.n"),
        ({"n": [*range(MAX_NODES)]}, "filter"),
        ({"." * MAX_NODES: 1}, "filter"),
        (nested(101), "filter" + ".a" * 100),
    ],
)
def test_what_is_no_pattern_is_refused_with_its_place(wanted: Any, place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Pattern.parse(wanted, "filter")
    assert refused.value.field == place


def test_a_filter_may_have_a_pattern_beside_conditions_on_fields() -> None:
    wanted = Filter.parse({"kind": "tea", "$value": {"kind": "drink"}})
    assert matches(wanted, {"kind": "tea"}, {}, lambda: {"kind": "drink"})
    assert not matches(wanted, {"kind": "tea"}, {}, lambda: {"kind": "tea"})
    assert not matches(wanted, {"kind": "drink"}, {}, lambda: {"kind": "drink"})


def test_bounds_without_end_are_sent_as_words() -> None:
    told = filter_to_json({"n": {"lt": math.inf}, "$value": {"m": {"$gt": -(10**400)}, "list": [1.5]}})
    assert told == {"n": {"lt": "Infinity"}, "$value": {"m": {"$gt": "-Infinity"}, "list": [1.5]}}


@given(value=st.dictionaries(st.sampled_from(["a", "b", "a.b"]), VALUES), wanted=PATTERNS)
@settings(max_examples=300, deadline=None)
def test_what_is_sent_as_json_holds_of_the_same(value: Any, wanted: Any) -> None:
    sent = json.loads(json.dumps(filter_to_json({"$value": wanted}), allow_nan=False))["$value"]
    assert Pattern.parse(sent, "filter").holds(value) is Pattern.parse(wanted, "filter").holds(value)
