"""Patterns for keys: they mean what shells mean, and none of them takes long."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alcove import InvalidRequest
from alcove.agents.tools.keyed_rooms import key_matcher

PATTERNS = st.text("ab*?[]!-^\\\n", max_size=12)


@given(PATTERNS, st.text("ab[]!-^\\\n", max_size=8))
@example("plan_*", "plan_a")
@example("[!]a]*", "ba")
@example("**", "")
@example("", "")
def test_a_pattern_means_what_it_means_to_a_shell(pattern: str, text: str) -> None:
    assert key_matcher(pattern)(text) == fnmatchcase(text, pattern)


@pytest.mark.parametrize("pattern", ["*a" * 99 + "*b", "[" * 200, "[a-" * 66, "*" * 200, "?*" * 100])
def test_no_pattern_takes_much_longer_than_a_plain_one(pattern: str) -> None:
    def seconds(pattern: str) -> float:
        fits, started = key_matcher(pattern), time.thread_time()
        for n in range(20):
            fits("a" * 1000 + str(n))
        return time.thread_time() - started

    assert min(seconds(pattern) for _ in range(3)) < 20 * min(seconds("a*") for _ in range(3))


@pytest.mark.parametrize(
    "pattern", ["*" + "a" * 198 + "b", "*" + "?" * 198 + "b", "*" + "[ab]" * 49 + "c", "*aaaaaaaaab" * 18]
)
def test_the_longest_pattern_takes_at_most_a_look_from_each_part_at_each_place(pattern: str) -> None:
    fits, key, took = key_matcher(pattern), "a" * 1000, []
    for _ in range(5):
        started = time.perf_counter()
        assert not fits(key)
        took.append(time.perf_counter() - started)
    assert min(took) < 0.01, (
        "200 parts at 1,000 places; going back over the text again and again takes seconds"
    )


def test_a_pattern_longer_than_its_limit_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRequest) as refused:
        key_matcher("[" * 100_000)
    assert refused.value.field == "pattern"
