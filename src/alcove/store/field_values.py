"""What fields of versions hold, remembered: a list by a field opens each sealed value once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from alcove.core.filters import FieldValue, Filter, Pattern

MOST_BYTES = 8 << 20
_ENTRY_BYTES = 150
"""What one field of one version takes, beside its text."""
_LONGEST = 256
"""Characters of a text that is remembered; what is longer, or an object or a list, is opened each time."""


class _Unknown:
    """What a field holds that was not looked at yet, or is not remembered."""


UNKNOWN: Final = _Unknown()
_NOTHING: Final[dict[int, FieldValue]] = {}


class FieldValues:
    """Short values of fields, by the field's name and the version's sequence number.

    A version never changes, so its fields do not either. Nothing is answered from here: what a remembered
    value rules out is passed over, and everything else is read, decided and opened as ever. An erasure
    empties it: at once in the process that erases, with the next sweep in others.
    """

    def __init__(self) -> None:
        self._erasures = 0
        self.clear()

    def clear(self) -> None:
        """Forgets everything; who is reading at this moment remembers into what is dropped here."""
        self.held = Held()

    def keep_up(self, erasures: int) -> None:
        """Forgets everything where there were other erasures than when it was called last."""
        if erasures != self._erasures:
            self.clear()
            self._erasures = erasures


class Held:
    """What is remembered since the last erasure."""

    def __init__(self) -> None:
        self._fields: dict[str, dict[int, FieldValue]] = {}
        self._bytes = 0

    def look(self, name: str, seq: int, found: Callable[[str], FieldValue]) -> FieldValue:
        """What a field of a version holds; `found` looks where it is not known."""
        fields = self._fields
        values = fields.get(name)
        if values is None:
            values = fields[name] = {}
            self._bytes += 4 * len(name)
        value = values.get(seq, UNKNOWN)
        if value is not UNKNOWN:
            return value  # type: ignore[return-value]
        looked = found(name)
        if isinstance(looked, str):
            if len(looked) > _LONGEST:
                return looked
            self._bytes += 4 * len(looked)
        elif isinstance(looked, list | dict):
            return looked
        self._bytes += _ENTRY_BYTES
        if self._bytes > MOST_BYTES:
            fields.clear()
            self._bytes = 0
        values[seq] = looked
        return looked

    def verdict(self, filter: Filter, seq: int) -> bool | None:
        """Whether a version fits, where what is known of it says so."""
        for name, test in filter.conditions:
            value = self._fields.get(name, _NOTHING).get(seq, UNKNOWN)
            if isinstance(value, _Unknown) or isinstance(test, Pattern):
                return None
            if not test.holds(value):
                return False
        return True

    def rules_out(self, filter: Filter) -> Callable[[int], bool] | None:
        """Whether a version is known not to fit, by its sequence number; None where nothing is known."""
        tests = [
            (self._fields[name].get, test.holds) for name, test in filter.on_fields if name in self._fields
        ]

        def ruled_out(seq: int) -> bool:
            for value_of, holds in tests:
                value = value_of(seq, UNKNOWN)
                if value is not UNKNOWN and not holds(value):  # type: ignore[arg-type]
                    return True
            return False

        return ruled_out if tests else None
