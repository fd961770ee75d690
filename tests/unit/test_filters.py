"""Attribute filters: what each operator means, and that SQL and Python mean the same."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alcove import InvalidRequest
from alcove.core import validation
from alcove.core.clock import parse_rfc3339
from alcove.core.filters import MAX_CHOICES, MAX_CONDITIONS, Filter
from alcove.core.principal import JSON
from alcove.engine.sqlite.filter_sql import SqliteFilterCompiler
from alcove.engine.statements import Params
from tests.support.filters import matches
from tests.support.waiting import LONG

NOON, EARLIER, LATER = "2026-06-01T12:00:00Z", "2026-06-01T13:59:59.9+02:00", "2026-06-01T05:00:01-07:00"
ELEVEN_UTC = "2026-06-01T12:30:00+01:30"


def _never() -> Mapping[str, JSON]:
    raise AssertionError("the value was opened without need")


def _instant(*texts: apsw.SQLiteValue) -> int | None:
    return parse_rfc3339(str(texts[0]))


COMPILER = SqliteFilterCompiler()
DB = apsw.Connection(":memory:")
DB.create_scalar_function("alcove_instant", _instant, 1, deterministic=True)
DB.execute("CREATE TABLE versions (attributes TEXT NOT NULL, index_text TEXT)")


def in_sql(
    filter: Filter, attributes: dict[str, JSON], index: dict[str, str], *, policy: bool = False
) -> bool:
    """Whether the compiled predicate lets a row pass."""
    text = validation.encode_json(index, "index").decode() if index else None
    DB.execute("DELETE FROM versions")
    DB.execute(
        "INSERT INTO versions VALUES (?, ?)",
        (validation.encode_json(attributes, "attributes").decode(), text),
    )
    params: Params = []
    where = COMPILER.policy(filter, params) if policy else COMPILER.filter(filter, params)
    return bool(list(DB.execute(f"SELECT 1 FROM versions v WHERE {where}", params)))


def holds(expression: object, **attributes: JSON) -> bool:
    """The answer for a memory with these attributes, once all three ways to get it agree."""
    filter = Filter.parse(expression)
    answer = matches(filter, {}, {}, lambda: attributes)
    if all(name in attributes for name, _ in filter.conditions):
        assert answer == matches(filter, attributes, {}, _never) == in_sql(filter, attributes, {})
    return answer


CASES: list[tuple[object, JSON, bool]] = [
    # equality is typed
    ("a", "a", True),
    ("a", "A", False),
    ("é", "e\u0301", False),
    ("", "", True),
    ("a\0b", "a\0b", True),
    ("a\0b", "a\0c", False),
    (True, True, True),
    (True, 1, False),
    (1, True, False),
    (False, 0, False),
    (0, False, False),
    (True, "true", False),
    (1, "1", False),
    ("1", 1, False),
    (7, 7.0, True),
    (7.0, 7, True),
    (0, -0.0, True),
    (2**53 + 1, float(2**53), False),
    (2**63 - 1, float(2**63), False),
    (2**63 - 1, 2**63 - 1, True),
    (0.1, 0.1, True),
    (None, None, True),
    (None, False, False),
    (None, "", False),
    (None, 0, False),
    ("null", None, False),
    # a scalar against an array means membership
    ("a", ["b", "a"], True),
    ("a", [], False),
    ("a", [["a"]], False),
    (1, [True, "1", 1.0], True),
    (1, [True, "1"], False),
    (None, [1, None], True),
    (None, [], False),
    ("a", {"a": "a"}, False),
    # the spellings of equality
    ({"$eq": "a"}, "a", True),
    ({"$eq": 1}, True, False),
    ({"$eq": None}, None, True),
    ({"$ne": "a"}, "b", True),
    ({"$ne": "a"}, "a", False),
    ({"$ne": 1}, True, True),
    ({"$ne": 7}, 7.0, False),
    ({"$ne": "a"}, ["b", "a"], False),
    ({"$ne": "a"}, ["b"], True),
    ({"$ne": None}, None, False),
    ({"$ne": None}, 0, True),
    ({"in": ["a", 1]}, 1.0, True),
    ({"in": ["a", 1]}, True, False),
    ({"$in": ["a", None]}, None, True),
    ({"$in": ["a"]}, ["c", "a"], True),
    ({"in": []}, "a", False),
    ({"$in": []}, None, False),
    ({"in": []}, [], False),
    # ranges over numbers
    ({"gt": 1}, 1.5, True),
    ({"gt": 1}, 1, False),
    ({"gte": 1}, 1.0, True),
    ({"lt": 2**53 + 1}, float(2**53), True),
    ({"lte": 1}, 1, True),
    ({"lte": 1}, 2, False),
    ({"$gt": -1}, 0, True),
    ({"$gte": 0}, -0.0, True),
    ({"$lt": 0.5}, 0, True),
    ({"$lte": 0.5}, 0.6, False),
    ({"gte": 0}, True, False),
    ({"gte": 0}, "1", False),
    ({"lt": 9}, None, False),
    ({"gte": 0}, [1], False),
    ({"gt": math.inf}, 2**63 - 1, False),
    ({"lt": "Infinity"}, 1.7e308, True),
    ({"gt": -(10**400)}, -1.7e308, True),
    ({"lte": 2**63 - 1}, float(2**63), False),
    ({"gt": 1, "lt": 3}, 2, True),
    ({"gt": 1, "lt": 3}, 3, False),
    ({"gt": 1, "$ne": 2}, 2, False),
    # ranges over instants
    ({"gt": NOON}, LATER, True),
    ({"gt": NOON}, EARLIER, False),
    ({"lt": NOON}, EARLIER, True),
    ({"$gte": "2026-06-01T11:00:00Z"}, ELEVEN_UTC, True),
    ({"$lte": "2026-06-01T11:00:00Z"}, ELEVEN_UTC, True),
    ({"$gt": "2026-06-01T11:00:00Z"}, ELEVEN_UTC, False),
    ({"lt": NOON}, "2026-06-01", False),
    ({"gt": NOON}, "zzz", False),
    ({"gt": NOON}, 2**62, False),
    ({"gt": 0}, NOON, False),
    ({"gte": "1969-12-31T23:59:59.999999Z"}, "1970-01-01T00:00:00Z", True),
    # but equality of texts is equality of texts
    ("2026-06-01T11:00:00Z", ELEVEN_UTC, False),
    # presence
    ({"$exists": True}, None, True),
    ({"$exists": False}, None, False),
    ({"$exists": True}, [], True),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "found", "expected"), CASES)
def test_a_condition_holds_as_documented_in_sql_and_in_python(
    condition: object, found: JSON, expected: bool
) -> None:
    assert holds({"f": condition}, f=found) is expected


ABSENT: list[tuple[object, bool]] = [
    (None, True), ({"$eq": None}, True), ({"in": [None, 1]}, True), ({"$ne": None}, False),
    ({"$ne": 1}, True),
    ({"$exists": False}, True), ({"$exists": True}, False), ("a", False), (False, False), (0, False),
    ({"in": []}, False), ({"lt": 5}, False), ({"gt": NOON}, False),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "expected"), ABSENT)
def test_an_absent_field_is_null_and_nothing_else(condition: object, expected: bool) -> None:
    assert holds({"f": condition}, g=1) is expected


def test_all_conditions_must_hold() -> None:
    assert holds({"a": 1, "b": {"gt": 1}}, a=1, b=2)
    assert not holds({"a": 1, "b": {"gt": 1}}, a=1, b=1)
    assert holds({})
    assert holds(None)


def test_a_field_is_looked_for_in_attributes_then_index_then_value() -> None:
    filter = Filter.parse({"f": "here"})
    assert matches(filter, {"f": "here"}, {"f": "there"}, _never)
    assert not matches(filter, {"f": None}, {"f": "here"}, _never)
    assert matches(filter, {}, {"f": "here"}, _never)
    assert not matches(filter, {}, {"f": "there"}, lambda: {"f": "here"})
    assert matches(filter, {}, {}, lambda: {"f": "here"})


def test_a_value_is_opened_once_for_all_conditions_on_it() -> None:
    opened = 0

    def value() -> Mapping[str, JSON]:
        nonlocal opened
        opened += 1
        return {f"f{n}": n for n in range(MAX_CONDITIONS)}

    assert matches(Filter.parse({f"f{n}": n for n in range(MAX_CONDITIONS)}), {}, {}, value)
    assert opened == 1


def test_many_choices_against_a_long_array_cost_what_both_are_long() -> None:
    """Not their product, which would be three hundred million comparisons."""
    filter = Filter.parse({"a": {"in": [f"c{n}" for n in range(MAX_CHOICES)]}})
    members: list[JSON] = [f"m{n}" for n in range(300_000)]
    started = time.thread_time()
    assert not matches(filter, {}, {}, lambda: {"a": members})
    several = time.thread_time() - started
    started = time.thread_time()
    assert not matches(Filter.parse({"a": "c"}), {}, {}, lambda: {"a": members})
    assert several < 20 * (time.thread_time() - started)


def test_sql_reads_a_row_once_however_many_conditions_there_are() -> None:
    for policy in (False, True):
        where = [_compiled(number, policy=policy) for number in (1, MAX_CONDITIONS)]
        assert where[0].count("json_each") == where[1].count("json_each")


def _compiled(conditions: int, *, policy: bool) -> str:
    filter = Filter.parse({f"f{n}": {"gt": n} for n in range(conditions)})
    return COMPILER.policy(filter, []) if policy else COMPILER.filter(filter, [])


def test_a_value_is_searched_by_dotted_path() -> None:
    value: dict[str, JSON] = {"a": {"b": {"c": 1}, "list": [{"c": 1}], "null": None}, "a.b": 2}
    for path, condition in [("a.b.c", 1), ("a.b", {"$exists": True}), ("a.null", None), ("a.b.x.y", None)]:
        assert matches(Filter.parse({path: condition}), {}, {}, lambda: value)
    for path in ("a.list.c", "a.list.0.c", "a.b.c.d", "b", ".a", "a."):
        assert matches(Filter.parse({path: {"$exists": False}}), {}, {}, lambda: value)
    assert matches(Filter.parse({"a.b": 2}), {"a.b": 2}, {}, _never)  # an attribute's name is taken whole


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ([], "filter"), ("a", "filter"), (7, "filter"), ({1: 2}, "filter"), ({"": 1}, "filter"),
        ({None: 1}, "filter"), ({"\ud800": 1}, "filter"), ({f"f{n}": 1 for n in range(65)}, "filter"),
        ({".a" * 600: 1}, "filter"),
        ({"f": {}}, "filter.f"), ({"f": []}, "filter.f"), ({"f": ["a"]}, "filter.f"),
        ({"f": (1,)}, "filter.f"), ({"f": {"a", "b"}}, "filter.f"), ({"f": b"a"}, "filter.f"),
        ({"f": math.nan}, "filter.f"), ({"f": math.inf}, "filter.f"), ({"f": 2**63}, "filter.f"),
        ({"f": "\ud800"}, "filter.f"),
        ({"f": {"eq": 1}}, "filter.f"), ({"f": {"ne": 1}}, "filter.f"), ({"f": {"exists": True}}, "filter.f"),
        ({"f": {"$regex": "."}}, "filter.f"), ({"f": {"$$in": []}}, "filter.f"), ({"f": {1: 2}}, "filter.f"),
        ({"f": {"b": 1}}, "filter.f"), ({"f": {"gt": 1, "like": 2}}, "filter.f"),
        ({"a.b": {"": 1}}, "filter.a.b"),
        ({"f": {"in": "abc"}}, "filter.f.in"), ({"f": {"in": None}}, "filter.f.in"),
        ({"f": {"$in": {"a": 1}}}, "filter.f.$in"), ({"f": {"$in": [["a"]]}}, "filter.f.$in"),
        ({"f": {"in": [{}]}}, "filter.f.in"), ({"f": {"in": [math.nan]}}, "filter.f.in"),
        ({"f": {"in": [0] * (MAX_CHOICES + 1)}}, "filter.f.in"),
        ({"f": {"$eq": []}}, "filter.f.$eq"), ({"f": {"$ne": {}}}, "filter.f.$ne"),
        ({"f": {"$eq": 2**63}}, "filter.f.$eq"), ({"f": {"gt": None}}, "filter.f.gt"),
        ({"f": {"gt": True}}, "filter.f.gt"), ({"f": {"$gte": "7"}}, "filter.f.$gte"),
        ({"f": {"lt": "2026-06-01"}}, "filter.f.lt"), ({"f": {"lt": "2026-06-01T12:00:00"}}, "filter.f.lt"),
        ({"f": {"$lte": [1]}}, "filter.f.$lte"), ({"f": {"lt": math.nan}}, "filter.f.lt"),
        ({"f": {"lt": "infinity"}}, "filter.f.lt"), ({"f": {"$exists": 1}}, "filter.f.$exists"),
        ({"f": {"$exists": None}}, "filter.f.$exists"), ({"f": {"$exists": "true"}}, "filter.f.$exists"),
    ],
)  # fmt: skip
def test_a_bad_expression_is_refused_with_the_field_it_is_in(expression: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Filter.parse(expression)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "choices"), [(1, MAX_CHOICES), (MAX_CONDITIONS, 1), (MAX_CONDITIONS, MAX_CHOICES)]
)
def test_a_filter_as_large_as_the_limits_works_or_is_refused_by_name(fields: int, choices: int) -> None:
    expression = {f"f{n}": {"in": [f"c{m}" for m in range(choices)]} for n in range(fields)}
    with contextlib.suppress(InvalidRequest):
        filter = Filter.parse(expression)
        assert in_sql(filter, dict.fromkeys(expression, f"c{choices - 1}"), {})
        assert not in_sql(filter, dict.fromkeys(expression, "other"), {})
    assert fields * choices > MAX_CHOICES or Filter.parse(expression)


NAMES = ["a", "b", "a.b", "\0", 'q"', "'", "\\", "$.a", "[0]", "é", "😀", "key", "\x1f"]
SCALARS = st.sampled_from(
    [None, True, False, 0, 1, -1, 1.0, -0.0, 1.5, 7, 7.0, 2**53, 2**53 + 1, float(2**53), 2**63 - 1, -(2**63),
     2.0**63, 1e300, 5e-324, "", "a", "A", "1", "true", "null", "\0", "a\0", "\\u0000", '"', "é", "e\u0301",
     "😀", "\uffff", NOON, EARLIER, LATER, ELEVEN_UTC, "2026-06-01T11:00:00Z", NOON.lower(), "2026-06-01"]
) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1)  # fmt: skip
FOUND = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    max_leaves=4,
)
BOUNDS = st.integers() | st.sampled_from(
    [0, 1, 1.5, 2**53, NOON, LATER, ELEVEN_UTC, math.inf, -math.inf, "-Infinity", 10**400, 2**63, 1e300]
)
CONDITIONS = SCALARS | st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("gt", "gte", "lt", "lte", "$gt", "$gte", "$lt", "$lte"), BOUNDS),
        **dict.fromkeys(("$eq", "$ne"), SCALARS),
        **dict.fromkeys(("in", "$in"), st.lists(SCALARS, max_size=4)),
        "$exists": st.booleans(),
    },
).filter(bool)
FIELDS = st.sampled_from(NAMES)
EXPRESSIONS = st.dictionaries(FIELDS, CONDITIONS, max_size=3)
ATTRIBUTES, VALUES = st.dictionaries(FIELDS, FOUND, max_size=8), st.dictionaries(FIELDS, FOUND, max_size=4)
INDEXES = st.dictionaries(FIELDS, SCALARS.filter(lambda each: isinstance(each, str)), max_size=4)


@given(EXPRESSIONS, ATTRIBUTES, INDEXES, VALUES)
@settings(max_examples=7000 if LONG else 700, deadline=None)
def test_sql_and_python_agree_on_every_filter_and_every_memory(
    expression: dict[str, object], attributes: dict[str, JSON], index: dict[str, str], value: dict[str, JSON]
) -> None:
    filter = Filter.parse(expression)
    known = Filter(tuple(each for each in filter.conditions if each[0] in {*attributes, *index}))
    passes = in_sql(filter, attributes, index)
    assert passes == matches(known, attributes, index, _never)  # a field that is in neither lets the row pass
    if len(known.conditions) == len(filter.conditions):
        assert passes == matches(filter, attributes, index, _never)
    if matches(filter, attributes, index, lambda: value):
        assert passes
    seen = all(name in attributes and test.holds(attributes[name]) for name, test in filter.conditions)
    assert in_sql(filter, attributes, index, policy=True) == seen


@pytest.mark.parametrize(
    "condition", ["a", None, {"$ne": "a"}, {"$exists": False}, {"in": [None]}, {"lt": 1}]
)
def test_a_policy_condition_sees_attributes_only_and_never_matches_where_they_lack_it(
    condition: object,
) -> None:
    assert not in_sql(Filter.parse({"f": condition}), {}, {}, policy=True)
    assert not in_sql(Filter.parse({"f": condition}), {"g": None}, {"f": "a"}, policy=True)
