"""Arguments: each wrong one is refused before anything is written, with the name of the field.

What every way to a store refuses alike is the table in `tests/support/rules.py`.
"""

from __future__ import annotations

import decimal
import enum
import math
import time
import types
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alcove import Alcove, InvalidRequest, MemoryKey, PayloadTooLarge, Principal, Settings
from alcove.core import validation
from alcove.core.decoding import convert
from alcove.core.namespace import Namespace
from alcove.core.records import MAX_TTL_SECONDS, Message

HUGE = 10**5000  # more digits than Python agrees to print
SETTINGS = Settings(max_value_bytes=100, max_index_fields=3, max_index_bytes=20, max_depth=3)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Words(str):
    __slots__ = ()


class Colour(enum.StrEnum):
    RED = "red"


def refused(call: Callable[[], object]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        call()
    assert caught.value.details["field"] == caught.value.field
    assert str(caught.value).startswith(f"{caught.value.field}: expected ")
    return caught.value


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_a_value_reads_back_equal_and_compact(value: dict[str, object]) -> None:
    encoded = validation.encode_value(value, Settings())
    assert msgspec.json.decode(encoded) == value
    assert b": " not in encoded or ": " in repr(value)


def test_any_mapping_is_a_json_object() -> None:
    assert validation.encode_value(types.MappingProxyType({"a": 1}), SETTINGS) == b'{"a":1}'


@pytest.mark.parametrize("value", [None, [], "text", 7, True, b"{}", {"a"}, [("a", 1)], Colour.RED])
def test_a_value_that_is_no_object_is_refused(value: object) -> None:
    assert refused(lambda: validation.encode_value(value, SETTINGS)).field == "value"


UNFIT = [
    math.nan,
    math.inf,
    -math.inf,
    2**63,
    -(2**63) - 1,
    HUGE,
    (1, 2),
    {1, 2},
    frozenset(),
    b"bytes",
    bytearray(b"bytes"),
    datetime(2026, 1, 2, tzinfo=UTC),
    date(2026, 1, 2),
    timedelta(seconds=1),
    decimal.Decimal("1.5"),
    uuid.UUID(int=0),
    1j,
    object(),
    Words("words"),
    Colour.RED,
    OrderedDict(a=1),
    types.MappingProxyType({}),
    msgspec.UNSET,
    msgspec.Raw(b"1"),
    iter([]),
]


@pytest.mark.parametrize("unfit", UNFIT, ids=lambda unfit: type(unfit).__name__)
def test_what_json_cannot_carry_is_refused_with_its_path(unfit: object) -> None:
    places: list[tuple[dict[str, object], str]] = [
        ({"a": unfit}, "value.a"),
        ({"a": {"b": unfit}}, "value.a.b"),
        ({"ok": [1, 2], "a": [0, "x", unfit]}, "value.a[2]"),
        ({"a": [{"b": [[], [unfit]]}]}, "value.a[0].b[1][0]"),
    ]
    for value, path in places:
        assert refused(lambda value=value: validation.encode_value(value, SETTINGS)).field == path  # type: ignore[misc]


@pytest.mark.parametrize("name", [1, None, True, 1.5, ("a",), b"a"])
def test_a_name_that_is_no_string_is_refused_with_its_path(name: object) -> None:
    assert refused(lambda: validation.encode_value({name: 1}, SETTINGS)).field == "value"
    assert refused(lambda: validation.encode_value({"a": [{name: 1}]}, SETTINGS)).field == "value.a[0]"


@pytest.mark.parametrize("surrogate", ["\ud800", "a\udfff", "\ude00\ud83d"])
def test_lone_surrogates_are_refused_wherever_text_is(surrogate: str) -> None:
    values: list[object] = [
        {"a": surrogate},
        {surrogate: 1},
        {"a": [{"b": surrogate}]},
        {"a": {surrogate: {}}},
    ]
    for value in values:
        assert refused(lambda value=value: validation.encode_value(value, SETTINGS)).field.startswith("value")  # type: ignore[misc]
    assert refused(lambda: validation.encode_index({"a": surrogate}, SETTINGS)).field == "index.a"
    assert refused(lambda: validation.encode_index({surrogate: "a"}, SETTINGS)).field == "index"
    assert refused(lambda: validation.parse_location(["user"], surrogate, SETTINGS)).field == "key"
    assert (
        refused(lambda: validation.parse_location(["user", surrogate], "key", SETTINGS)).field == "namespace"
    )


def test_a_value_may_be_a_hundred_levels_deep_and_no_deeper() -> None:
    deep: dict[str, object] = {}
    for _ in range(validation.MAX_NESTING - 1):
        deep = {"a": deep}
    assert validation.encode_value(deep, Settings())
    error = refused(lambda: validation.encode_value({"a": deep}, Settings()))
    assert error.field == "value" + ".a" * validation.MAX_NESTING
    assert "100 levels" in error.expected


def test_a_value_that_holds_itself_is_refused() -> None:
    value: dict[str, object] = {}
    value["self"] = value
    assert refused(lambda: validation.encode_value(value, SETTINGS)).field.startswith("value.self")


def test_a_value_at_its_limit_fits_and_one_byte_more_is_too_large() -> None:
    fitting = {"a": "é" * 46}
    assert len(validation.encode_value(fitting, SETTINGS)) == 100
    error = refused(lambda: validation.encode_value({"a": "é" * 46 + "b"}, SETTINGS))
    assert isinstance(error, PayloadTooLarge)
    assert (error.code, error.field) == ("payload_too_large", "value")


def test_a_long_name_costs_no_more_than_its_length() -> None:
    """Not its length times the number of what stands below it."""

    def seconds(name: str) -> float:
        settings, value, started = Settings(), {name: [[7]] * 10_000}, time.thread_time()
        validation.encode_value(value, settings)
        return time.thread_time() - started

    short, long = (min(seconds(name) for _ in range(3)) for name in ("a", "a" * 200_000))
    assert long < 20 * short


def test_the_size_is_looked_at_before_what_is_inside() -> None:
    error = refused(lambda: validation.encode_value({"a": "b" * 100, "c": math.nan}, SETTINGS))
    assert isinstance(error, PayloadTooLarge)


def test_an_error_repeats_no_more_of_what_was_sent_than_a_line() -> None:
    for call in (
        lambda: validation.encode_value({"a" * 10_000: math.nan}, Settings()),
        lambda: validation.parse_location("a%" * 10_000, "key", SETTINGS),
        lambda: validation.encode_index({"a" * 10_000: 7}, SETTINGS),
    ):
        assert len(str(refused(call))) < 1000


def test_the_limits_of_an_index_count_fields_and_bytes() -> None:
    assert validation.encode_index({"a": "", "b": "", "c": "é" * 10}, SETTINGS)
    assert refused(lambda: validation.encode_index({"a": "é" * 10 + "b"}, SETTINGS)).field == "index.a"
    assert refused(lambda: validation.encode_index(dict.fromkeys("abcd", ""), SETTINGS)).field == "index"


def test_no_index_and_an_empty_one_are_the_same() -> None:
    assert validation.encode_index(None, SETTINGS) is validation.encode_index({}, SETTINGS) is None
    assert validation.encode_index(False, SETTINGS, {"text": "tea"}) is None
    assert validation.encode_index([], SETTINGS, {"text": "tea"}) is None


def test_the_limits_of_an_index_hold_for_the_texts_of_a_value() -> None:
    assert (
        validation.encode_index(True, SETTINGS, {"a": "tea", "b": {"c": "hot", "d": 1}})
        == b'{"a":"tea","b.c":"hot"}'
    )
    error = refused(lambda: validation.encode_index(True, SETTINGS, {"a": {"b": ["é" * 10, "b"]}}))
    assert error.field == "index.a.b"
    assert "'d' is one too many" in str(
        refused(lambda: validation.encode_index(True, SETTINGS, dict.fromkeys("abcd", "tea")))
    )
    assert validation.encode_index(["d"], SETTINGS, dict.fromkeys("abcd", "tea")) == b'{"d":"tea"}'


@pytest.mark.parametrize("key", ["a", "a" * 1024, "é" * 512, "\0", "\0a", " ", "/"])
def test_any_text_that_fits_is_a_key(key: str) -> None:
    assert validation.parse_location(["user"], key, SETTINGS).key == key.encode()


@pytest.mark.parametrize("namespace", [[], "", list("abcd"), "a:b:c:d"])
def test_a_namespace_has_one_segment_to_as_many_as_the_setting_says(namespace: object) -> None:
    error = refused(lambda: validation.parse_location(namespace, "key", SETTINGS))
    assert (error.field, "1 to 3 segments" in error.expected) == ("namespace", True)


def test_no_time_to_live_and_zero_both_mean_for_ever() -> None:
    assert validation.parse_ttl(0) is None
    assert validation.parse_ttl(1) == 1_000_000
    assert validation.parse_ttl(MAX_TTL_SECONDS) == MAX_TTL_SECONDS * 1_000_000


def test_create_only_means_revision_zero() -> None:
    assert validation.parse_revision(None) is None
    assert validation.parse_revision(0) == validation.parse_revision(None, create_only=True) == 0
    assert validation.parse_revision(3) == 3
    wrong = refused(lambda: validation.parse_revision(None, create_only=None))
    assert wrong.field == "create_only"


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alcove]:
    folder: Path = tmp_path_factory.mktemp("checks")
    with Alcove(folder / "memory.db", keys=MemoryKey(), settings=Settings(sweep_interval=0)) as memory:
        yield memory.as_user("alice")


HOME = ("user", "alice")
WRONG: list[tuple[str, Callable[[Alcove], object]]] = [
    ("kinds", lambda a: a.events(HOME, kinds=7)),  # type: ignore[arg-type]
    ("kinds", lambda a: a.events(HOME, kinds=[["add"]])),  # type: ignore[list-item]
    ("user", lambda a: a.wipe("")),
    ("shared", lambda a: a.wipe("alice", shared="burn")),  # type: ignore[arg-type]
    ("shared", lambda a: a.wipe("alice", shared=["keep"])),  # type: ignore[arg-type]
    ("user_id", lambda a: a.as_user("")),
    ("user_id", lambda a: a.as_user("\ud800")),
    ("client_id", lambda a: a.as_principal(Principal("alice", client_id="\ud800")).get(HOME, "key")),
    ("agent", lambda a: a.as_principal(Principal("alice", agent="\ud800")).get(HOME, "key")),
    ("at", lambda _: Alcove(":memory:")),
    ("at", lambda _: Alcove("")),
    ("at", lambda _: Alcove(None)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("field", "call"), WRONG, ids=[f"{n}-{field}" for n, (field, _) in enumerate(WRONG)])
def test_every_wrong_argument_of_a_call_is_refused_by_its_name(
    field: str, call: Callable[[Alcove], object], alice: Alcove
) -> None:
    assert refused(lambda: call(alice)).field == field
    assert alice.events(HOME).events == []


SUBCLASSED: list[tuple[str, Callable[[Alcove], object]]] = [
    ("namespace[1]", lambda a: a.get(("user", Words("met for the first time")), "key")),
    ("key", lambda a: a.get(HOME, Words("key"))),
    ("user_id", lambda a: a.as_user(Words("bob")).get("user:bob", "key")),
    ("filter.a", lambda a: a.search(HOME, filter={"a": Words("b")})),
    ("filter", lambda a: a.search(HOME, filter=types.MappingProxyType({"a": 1}))),
    ("index.a", lambda a: a.put(HOME, "key", {}, index={"a": Words("b")})),
]


@pytest.mark.parametrize(("field", "call"), SUBCLASSED, ids=[field for field, _ in SUBCLASSED])
def test_an_argument_of_a_subclass_is_refused_because_it_may_spell_itself_otherwise(
    field: str, call: Callable[[Alcove], object], alice: Alcove
) -> None:
    assert refused(lambda: call(alice)).field == field
    assert alice.events(HOME).events == []


def test_a_segment_that_equals_one_met_before_is_taken_for_that_one() -> None:
    Namespace.encoded(HOME)
    found, _ = Namespace.encoded(("user", Words("alice")))
    assert [type(segment) for segment in found] == [str, str]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"role": "user", "contnet": "x"}, "contnet: expected a known field; did you mean 'content'?"),
        ({"role": "user", "zzz": "x"}, "zzz: expected a known field"),
        ({"content": "x"}, "role: expected a value; it is required"),
    ],
)
def test_an_unknown_field_is_compared_with_those_that_exist(data: dict[str, str], expected: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        convert(data, Message)
    assert validation.to_invalid_request(error.value, Message, "message").message == expected
