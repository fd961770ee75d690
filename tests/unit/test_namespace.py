"""Namespaces under hostile segments: their spelling, their encoding, their subtrees, their owners."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from alcove import InvalidRequest, Namespace
from alcove.core.namespace import MAX_ENCODED_BYTES
from tests.support.waiting import LONG

EXAMPLES = settings(max_examples=1500 if LONG else 150, deadline=None)

HOSTILE = [":", "%", "%3A", "%25", "%253A", "%3a", "\0", "\1", "\2", "\x1f", "/", "..", "u", "user", "-2",
           "\x7f", "\x80", "é", "e\u0301", "\u0301", "\u200d", "\ufeff", "\uffff", "😀", "👩‍👩‍👧",
           "\U0010ffff", " ", "\n", "*", "'", '"', "\\"]  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PIECES = st.lists(st.sampled_from(HOSTILE) | TEXT, min_size=1, max_size=4).map("".join)
SEGMENTS = PIECES.filter(bool)
PATHS = st.lists(SEGMENTS, max_size=5).map(Namespace)
CLOSE = st.text("\0\1\2a", min_size=1, max_size=3)
"""Few letters, so that two of them are often equal, or one is the beginning of the other."""
CLOSE_PATHS = st.lists(CLOSE, max_size=4).map(Namespace)


@given(PATHS)
@example(Namespace())
@example(Namespace(("%3A",)))
@example(Namespace((":", "%", "%25")))
@EXAMPLES
def test_a_spelling_parses_to_the_segments_it_was_made_from(namespace: Namespace) -> None:
    assert Namespace.parse(str(namespace)) == namespace
    assert Namespace.checked(str(namespace)) == namespace


@given(st.lists(st.sampled_from([":", "%3A", "%25", "%", "3A", "25", "a", "😀"])).map("".join) | PIECES)
@EXAMPLES
def test_any_text_that_parses_is_spelled_as_it_was_given(text: str) -> None:
    try:
        parsed = Namespace.parse(text)
    except InvalidRequest:
        # Refused only for a `%` that begins no escape: with those escaped, the same text parses.
        text = text.replace("%", "%25")
        parsed = Namespace.parse(text)
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text", ["a%", "%", "a%3", "a%3a", "%2F", "a%2525%", "%zz", "100%:b", "%%3A", "%u003A"]
)
def test_an_escape_that_is_not_the_canonical_one_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="%3A and %25") as caught:
        Namespace.checked(text, "prefix")
    assert caught.value.field == "prefix"


@given(PATHS, PATHS)
@EXAMPLES
def test_two_namespaces_never_share_a_spelling_or_an_encoding(one: Namespace, other: Namespace) -> None:
    assert (str(one) == str(other)) == (one == other) == (one.encode() == other.encode())


@given(PATHS | CLOSE_PATHS)
@EXAMPLES
def test_decoding_undoes_encoding(namespace: Namespace) -> None:
    decoded = Namespace.decode(namespace.encode())
    assert decoded == namespace
    assert type(decoded) is Namespace


@given(st.tuples(PATHS, PATHS) | st.tuples(CLOSE_PATHS, CLOSE_PATHS))
@example((Namespace(("a", "b")), Namespace(("a\0b",))))
@example((Namespace(("a", "\0")), Namespace(("a\1",))))
@example((Namespace(("agent", "bot")), Namespace(("agent", "bot-2"))))
@EXAMPLES
def test_encodings_sort_as_the_tuples_do(pair: tuple[Namespace, Namespace]) -> None:
    one, other = pair
    assert (one.encode() < other.encode()) == (tuple(one) < tuple(other))


def _in_subtree(namespace: Namespace, prefix: Namespace) -> bool:
    low, high = prefix.subtree()
    return low <= namespace.encode() < high


@given(st.tuples(PATHS, PATHS) | st.tuples(CLOSE_PATHS, CLOSE_PATHS))
@EXAMPLES
def test_a_subtree_is_exactly_the_range_of_what_starts_with_its_segments(
    pair: tuple[Namespace, Namespace],
) -> None:
    namespace, prefix = pair
    assert _in_subtree(namespace, prefix) == (namespace[: len(prefix)] == prefix)


@given(PATHS, st.lists(SEGMENTS, max_size=3))
@EXAMPLES
def test_whatever_is_added_below_a_namespace_stays_in_its_subtree(
    prefix: Namespace, below: list[str]
) -> None:
    assert _in_subtree(Namespace((*prefix, *below)), prefix)


@given(PATHS.filter(bool), PIECES)
@EXAMPLES
def test_a_longer_last_segment_leaves_the_subtree(prefix: Namespace, suffix: str) -> None:
    *parents, last = prefix
    assert _in_subtree(Namespace((*parents, last + suffix)), prefix) == (not suffix)


@given(CLOSE_PATHS, st.lists(CLOSE_PATHS, max_size=12))
@EXAMPLES
def test_a_subtree_is_contiguous_in_the_sorted_order(prefix: Namespace, others: list[Namespace]) -> None:
    inside = [_in_subtree(each, prefix) for each in sorted({*others, prefix})]
    first, count = inside.index(True), sum(inside)
    assert all(inside[first : first + count])


def test_agent_bot_never_contains_agent_bot_2() -> None:
    bot = Namespace.parse("agent:bot")
    assert _in_subtree(bot, bot)
    assert _in_subtree(Namespace.parse("agent:bot:u:alice"), bot)
    for other in ("agent:bot-2", "agent:bot%3Au", "agent:bo", "agent", "agent:bot\0", "agent:bot\1"):
        assert not _in_subtree(Namespace.parse(other), bot)


@given(PATHS)
@EXAMPLES
def test_everything_is_below_the_empty_namespace(namespace: Namespace) -> None:
    assert _in_subtree(namespace, Namespace())


def test_the_empty_spelling_is_the_empty_namespace() -> None:
    assert Namespace.checked("") == Namespace.checked([]) == Namespace() == ()
    assert str(Namespace()) == ""


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ([""], "namespace[0]"),
        (["user", ""], "namespace[1]"),
        (["user", "", "notes"], "namespace[1]"),
        (":", "namespace[0]"),
        ("user:", "namespace[1]"),
        ("user::notes", "namespace[1]"),
        ([None], "namespace[0]"),
        (["user", 7], "namespace[1]"),
        (["user", b"alice"], "namespace[1]"),
        ([["user"]], "namespace[0]"),
        (None, "namespace"),
        (7, "namespace"),
        (b"user:alice", "namespace"),
        ({"user": "alice"}, "namespace"),
        ({"user"}, "namespace"),
        (iter(["user"]), "namespace"),
        (["user", "\ud800"], "namespace"),
        ("user:\udfff", "namespace"),
        (["user", "\udcff\1"], "namespace"),
        (["a" * MAX_ENCODED_BYTES], "namespace"),
    ],
)
def test_what_is_no_namespace_is_refused_by_name(given: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Namespace.checked(given)
    assert caught.value.field == field


@pytest.mark.parametrize(("unit", "size"), [("a", 1), ("é", 2), ("\0", 2), ("\1", 2), ("😀", 4)])
def test_the_limit_counts_encoded_bytes(unit: str, size: int) -> None:
    fitting = "b" * ((MAX_ENCODED_BYTES - 1) % size) + unit * ((MAX_ENCODED_BYTES - 1) // size)
    assert len(Namespace.checked([fitting]).encode()) == MAX_ENCODED_BYTES
    for too_long in ([fitting + "b"], [fitting, "b"], [fitting[:-1], unit, "b"]):
        with pytest.raises(InvalidRequest, match="at most 1024 bytes") as caught:
            Namespace.checked(too_long, "namespace_prefix")
        assert caught.value.field == "namespace_prefix"


@pytest.mark.parametrize(
    ("spelling", "owner"),
    [
        ("", None),
        ("user", None),
        ("user:alice", "alice"),
        ("user:alice:notes", "alice"),
        ("user:u:alice", "u"),
        ("user:alice:u:bob", "alice"),
        ("user:user:alice", "user"),
        ("u", None),
        ("u:alice", "alice"),
        ("u:u:alice", "u"),
        ("agent:bot", None),
        ("agent:bot:u", None),
        ("agent:bot:u:alice", "alice"),
        ("agent:bot:u:alice:u:bob", "alice"),
        ("agent:u:u:bob", "u"),
        ("agent:u:bob:u:alice", "bob"),
        ("team:user:alice", None),
        ("team:user:alice:u:bob", "bob"),
        ("agent:U:alice", None),
        ("agent:u :alice", None),
        ("agent:bot:u:a%3Ab", "a:b"),
    ],
)
def test_the_owner_is_the_second_segment_under_user_and_elsewhere_the_one_after_the_first_u(
    spelling: str, owner: str | None
) -> None:
    assert Namespace.parse(spelling).owner == owner


@given(st.lists(st.sampled_from(["user", "u", "alice", "bob"]), max_size=5).map(Namespace), SEGMENTS)
@EXAMPLES
def test_an_owner_stays_the_owner_of_everything_below(namespace: Namespace, below: str) -> None:
    if namespace.owner is not None:
        assert Namespace((*namespace, below)).owner == namespace.owner
