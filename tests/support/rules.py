"""What a caller may not give: one table of calls with something wrong, and the field that the error names.

Every way to a store refuses all of it alike; `tests/acceptance/rest/test_rules.py` drives it through each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

HOME = ["user", "noop", "rules"]
"""Where the calls would read and write."""
HUGE = 10**5000
"""More digits than Python agrees to print."""
MOST_SECONDS = 100 * 366 * 86_400
GOOD: dict[str, dict[str, Any]] = {
    "put": {"namespace": HOME, "key": "k", "value": {}},
    "get": {"namespace": HOME, "key": "k"},
    "delete": {"namespace": HOME, "key": "k"},
    "touch": {"namespace": HOME, "key": "k"},
    "history": {"namespace": HOME, "key": "k"},
    "search": {"prefix": HOME},
    "list": {"prefix": HOME},
    "namespaces": {"prefix": HOME},
    "events": {"prefix": HOME},
    "batch": {"operations": []},
}
"""A call of each method with nothing wrong."""


@dataclass(frozen=True)
class Rule:
    """A call that is refused."""

    method: str
    """The method of a store, and the operation over REST."""
    wrong: Mapping[str, Any]
    """What is given instead of, or beside, what is in order."""
    field: str
    """What the error names."""
    rest: str | None
    """What it names over REST, where it may also be the former; None for what cannot be said there."""
    too_large: bool = False
    """It is refused as too large and not as wrong."""

    @property
    def argument(self) -> str:
        """The name of what is wrong, which may be deep inside it."""
        return next(iter(self.wrong))

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of the call."""
        return {**GOOD[self.method], **self.wrong}

    def __str__(self) -> str:
        value = self.wrong[self.argument]
        shown = "huge" if value in (HUGE, -HUGE) else ascii(value)
        return f"{self.method}({self.argument}={shown if len(shown) <= 30 else shown[:27] + '...'})"


def _rules(
    method: str, name: str, *values: Any, field: str | None = None, rest: str | None = ""
) -> list[Rule]:
    """Several wrong values of one argument, which is what the errors name unless told otherwise."""
    named = field or name
    return [Rule(method, {name: value}, named, named if rest == "" else rest) for value in values]


def _nested(levels: int) -> object:
    return {"a": _nested(levels - 1)} if levels else 1


def _second(**operation: Any) -> list[dict[str, Any]]:
    """A batch whose second operation is this one."""
    return [GET, {**GET, **operation}]


GET = {"op": "get", "namespace": HOME, "key": "k"}
RULES: list[Rule] = [
    # Places
    *_rules("put", "namespace", [], [*HOME, "a", "b", "c"], [*HOME, "n" * 1100]),
    *_rules("put", "namespace", ["user", 7], ["user", ""], ["user", None], field="namespace[1]"),
    *_rules("get", "namespace", ["user", ""], field="namespace[1]", rest="ns[1]"),
    *_rules("get", "namespace", [], rest="ns"),
    *_rules("get", "namespace", [*HOME, "\ud800"], rest=None),
    *_rules("put", "key", "", "a" * 1025, "é" * 513, None, 7, ["k"]),
    *_rules("put", "key", "\udfff", rest="body"),
    *_rules("put", "key", b"k", rest=None),
    *_rules("get", "key", "", "é" * 513),
    *_rules("get", "key", "\ud800", None, rest=None),
    *_rules("delete", "key", "", "a" * 1025),
    *_rules("touch", "key", "", "a" * 1025, rest="operations[0].key"),
    *_rules("history", "key", "", "a" * 1025),
    *(
        Rule("search", {name: wrong, "query": "tea"}, name, name)
        for name in ("min_relevance", "min_score")
        for wrong in (-0.1, 1.1, True, "0.5", [0.5])
    ),
    Rule(
        "search", {"min_score": 0.2, "min_relevance": 0.1, "query": "tea"}, "min_score", "min_score"
    ),
    *_rules("search", "min_relevance", 0.5),
    *_rules("search", "min_score", 0.5),
    Rule("search", {"unindexed": True, "query": "tea"}, "unindexed", "unindexed"),
    *_rules("search", "prefix", ["user", ""], field="prefix[1]", rest="namespace_prefix[1]"),
    *_rules("events", "prefix", ["user", ""], field="prefix[1]", rest="ns[1]"),
    *_rules("namespaces", "prefix", ["user", ""], field="prefix[1]"),
    *_rules("namespaces", "suffix", [""], field="suffix[0]"),
    # Values
    *_rules("put", "value", None, [], "text", 7, True),
    *_rules("put", "value", {"a"}, b"{}", {7: 1}, rest=None),
    *_rules("put", "value", {"n": 2**63}, {"n": 2**64}, {"n": -(2**63) - 1}, field="value.n"),
    *_rules("put", "value", {"n": math.nan}, {"n": math.inf}, field="value.n", rest=None),
    *_rules("put", "value", {"n": {1}}, {"n": b""}, field="value.n", rest=None),
    *_rules("put", "value", {"a": [0, {"b": 2**64}]}, field="value.a[1].b"),
    *_rules("put", "value", {"a": "\ud800"}, {"\ud800": 1}, {"a": [{"b": "\udfff"}]}, rest="body"),
    *_rules("put", "value", _nested(101), field="value" + ".a" * 100),
    Rule("put", {"value": {"a": "x" * 2**20}}, "value", "value", too_large=True),
    # What is indexed
    *_rules("put", "index", "text", 7, {str(n): "" for n in range(65)}, {"": "a"}, ["a"] * 65),
    *_rules("put", "index", [""], ["a" * 1025], field="index[0]"),
    *_rules("put", "index", ["a", 7], ["a", None], field="index[1]", rest="index[...]"),
    Rule("put", {"index": True, "value": {"a": {"b": "é" * 32_769}}}, "index.a.b", "index.a.b"),
    Rule("put", {"index": True, "value": {str(n): "text" for n in range(65)}}, "index", "index"),
    Rule("put", {"index": True, "value": {"n" * 1000: {"n" * 1000: "text"}}}, "index", "index"),
    *_rules("put", "index", {"a"}, b"", {7: "a"}, {None: "a"}, {b"a": "a"}, rest=None),
    *_rules("put", "index", {"a": "x" * 65_537}, {"ok": "a", "a": "é" * 32_769}, field="index.a"),
    *_rules("put", "index", {"a": None}, {"a": 7}, {"a": ["b"]}, field="index.a", rest="index[...]"),
    *_rules("put", "index", {"a": b"b"}, field="index.a", rest=None),
    *_rules("put", "index", {"a": "\udc00"}, field="index.a", rest="body"),
    # Times to live and revisions
    *_rules("put", "ttl_seconds", -1, 1.5, 60.0, True, "60", [60], MOST_SECONDS + 1),
    *_rules("put", "ttl_seconds", HUGE, rest=None),
    *_rules("touch", "ttl_seconds", -1, 1.5, True, "60", MOST_SECONDS + 1, rest="operations[0].ttl_seconds"),
    *_rules("put", "expected_revision", -1, 1.0, True, False, "1", [], 2**63),
    *_rules("put", "expected_revision", -HUGE, rest=None),
    *_rules("delete", "expected_revision", -1, 1.5, "x"),
    *_rules("put", "create_only", 1, "true"),
    Rule("put", {"create_only": True, "expected_revision": 0}, "create_only", "create_only"),
    Rule("put", {"create_only": True, "expected_revision": 3}, "create_only", "create_only"),
    *_rules("put", "idempotency_key", "", "k" * 256, rest="Idempotency-Key"),
    # Moments, cursors and kinds
    *_rules("get", "as_of", "yesterday", "2026-01-01", "2026-01-01T00:00:00"),
    *_rules("get", "as_of", datetime(2026, 1, 1), 5, rest=None),
    *_rules("search", "as_of", "yesterday", "2026-01-01T00:00:00"),
    *_rules("list", "as_of", "yesterday", rest=None),
    *_rules("events", "after", "1", "2026-01-01T00:00:00"),
    *_rules("events", "before", "1"),
    *_rules("events", "after_cursor", "", "x", "7", "AAAA", "☕"),
    *_rules("events", "after_cursor", "AQAAAAAAAAABhnUwew==", "AQAAAAAAAAABhnUwe_"),
    *_rules("events", "after_cursor", 7, rest=None),
    *_rules("history", "after_cursor", "x"),
    *_rules("batch", "after_cursor", "x"),
    *_rules("events", "kinds", ["moved"], rest="kinds[0]"),
    *_rules("events", "kinds", ["add", "birth"], rest="kinds[1]"),
    *_rules("events", "kinds", [], "add", rest=None),
    # How much
    *_rules("search", "limit", 0, 101, -1, True, "5", 2.0),
    *_rules("search", "offset", -1, True, "5"),
    *_rules("search", "limit", HUGE, rest=None),
    *_rules("list", "limit", 0, 1001, rest=None),
    *_rules("list", "offset", -1, HUGE, rest=None),
    *_rules("events", "limit", 0, 201),
    *_rules("namespaces", "limit", 0),
    *_rules("namespaces", "offset", -1),
    *_rules("namespaces", "max_depth", 0),
    # Questions
    *_rules("search", "query", "", " ", 7, "x" * 65_537),
    *_rules("search", "query", "\ud800", rest="body"),
    Rule("search", {"mode": "psychic", "query": "tea"}, "mode", "mode"),
    *_rules("search", "filter", [], "x"),
    *_rules("search", "filter", {"n": {"like": "x"}}, field="filter.n"),
    # Batches
    *_rules("batch", "operations", "put", [GET] * 1001),
    *_rules("batch", "operations", _second(op="zap"), field="op", rest="operations[1].op"),
    *_rules("batch", "operations", _second(op=["put"]), field="op", rest="operations[1].op"),
    *_rules("batch", "operations", _second(key=""), field="key", rest="operations[1].key"),
    *_rules("batch", "operations", _second(colour="red"), field="colour", rest="operations[1].colour"),
    *_rules("batch", "operations", _second(op="put"), field="value", rest="operations[1].value"),
]  # fmt: skip
