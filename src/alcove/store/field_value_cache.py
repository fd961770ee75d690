"""A cache of decrypted fields: a list that filters by a field decrypts each value once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from alcove.core.filters import FieldValue, Filter, Pattern

MAX_BYTES = 8 << 20
_ENTRY_BYTES = 150
"""What one field of one version takes, without its text."""
_MAX_TEXT = 256
"""Characters of a text that is cached; longer texts, objects and lists are decrypted each time."""


class _Unknown:
    """Stands for the value of a field that is not cached."""


UNKNOWN: Final = _Unknown()
_NOTHING: Final[dict[int, FieldValue]] = {}


class FieldValueCache:
    """Short field values by the name of the field and the sequence number of the version.

    A version never changes, so its fields do not either. No answer comes from here: a version that a cached
    value excludes is skipped, and every other one is read, decided and decrypted as usual. An erasure empties
    the cache: at once in the process that erases, with the next sweep in others.
    """

    def __init__(self) -> None:
        self._erasures = 0
        self.clear()

    def clear(self) -> None:
        """Replaces the cached values; a reader that has begun adds to those that are dropped here."""
        self.cached = CachedFields()

    def clear_after(self, erasures: int) -> None:
        """Empties the cache if the count of erasures is not that of the last call."""
        if erasures != self._erasures:
            self.clear()
            self._erasures = erasures


class CachedFields:
    """The field values since the last erasure."""

    def __init__(self) -> None:
        self._fields: dict[str, dict[int, FieldValue]] = {}
        self._bytes = 0

    def get(self, name: str, seq: int, read: Callable[[str], FieldValue]) -> FieldValue:
        """Returns a field of a version; calls `read` if it is not cached."""
        fields = self._fields
        values = fields.get(name)
        if values is None:
            values = fields[name] = {}
            self._bytes += 4 * len(name)
        value = values.get(seq, UNKNOWN)
        if value is not UNKNOWN:
            return value  # type: ignore[return-value]
        value = read(name)
        if isinstance(value, list | dict) or (isinstance(value, str) and len(value) > _MAX_TEXT):
            return value
        self._bytes += _ENTRY_BYTES + (4 * len(value) if isinstance(value, str) else 0)
        if self._bytes > MAX_BYTES:
            fields.clear()
            self._bytes = 0
        values[seq] = value
        return value

    def matches(self, filter: Filter, seq: int) -> bool | None:
        """Whether a version matches; None if the cached values do not decide it."""
        for name, test in filter.conditions:
            value = self._fields.get(name, _NOTHING).get(seq, UNKNOWN)
            if isinstance(value, _Unknown) or isinstance(test, Pattern):
                return None
            if not test.holds(value):
                return False
        return True

    def exclude(self, filter: Filter) -> Callable[[int], bool] | None:
        """Returns a test whether a version is known not to match; None if none of its fields is cached."""
        tests = [
            (self._fields[name].get, test.holds) for name, test in filter.on_fields if name in self._fields
        ]

        def is_excluded(seq: int) -> bool:
            for value_of, holds in tests:
                value = value_of(seq, UNKNOWN)
                if value is not UNKNOWN and not holds(value):  # type: ignore[arg-type]
                    return True
            return False

        return is_excluded if tests else None
