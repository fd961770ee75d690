"""Matching a filter as a search does: a field comes from the attributes, the index texts, or the value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from alcove.core.filters import Filter, field_of
from alcove.core.principal import JSON


def matches(
    filter: Filter,
    attributes: Mapping[str, JSON],
    index: Mapping[str, str],
    value: Callable[[], Mapping[str, JSON]],
) -> bool:
    """True if a memory matches; `value` is called at most once, and only if needed."""
    decrypt_once = cache(value)
    return filter.holds(lambda name: field_of(name, attributes, index, decrypt_once), decrypt_once)
