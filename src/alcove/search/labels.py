"""Fields that many items share: a date, a source, a topic. They say where an item belongs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np

from alcove.search.embedders import Matrix
from alcove.search.postings import Postings, Rows
from alcove.search.terms import Reader

MAX_LABEL = 200
"""Characters; a longer text is content, however often it is repeated."""


def label_fields(items: Sequence[Mapping[str, str]]) -> frozenset[str]:
    """The fields whose texts are short and mostly repeated; each item keeps a field that is not one."""
    values: dict[str, list[str]] = {}
    for fields in items:
        for name, text in fields.items():
            values.setdefault(name, []).append(text)
    shared = {
        name
        for name, texts in values.items()
        if len(texts) > 1 and 2 * len(set(texts)) <= len(texts) and max(map(len, texts)) <= MAX_LABEL
    }
    for fields in items:
        if fields and shared.issuperset(fields):
            shared.discard(max(fields, key=lambda name: len(fields[name])))
    return frozenset(shared)


class Labels:
    """For each label field, the group that each row is in: the same text in the same namespace."""

    def __init__(
        self,
        names: frozenset[str],
        groups: Mapping[str, Rows],
        numbers: Mapping[str, dict[tuple[Hashable, str], int]],
        postings: Postings,
        texts: list[Mapping[str, str]],
        reader: Reader,
    ) -> None:
        self.names, self.groups, self.postings = names, groups, postings
        self._numbers, self._texts, self._reader = numbers, texts, reader

    @classmethod
    def of(
        cls,
        names: frozenset[str],
        items: Sequence[Mapping[str, str]],
        namespaces: Sequence[Hashable],
        reader: Reader,
    ) -> Labels:
        numbers: dict[str, dict[tuple[Hashable, str], int]] = {name: {} for name in names}
        groups = {name: _codes(name, items, namespaces, numbers[name]) for name in names}
        # Labels are names: how long one is says nothing, so lengths do not count.
        postings = Postings.of((_terms(names, item, reader) for item in items), k1=0.9, b=0)
        return cls(names, groups, numbers, postings, list(items), reader)

    def changed(
        self, items: Sequence[Mapping[str, str]], namespaces: Sequence[Hashable], holes: Collection[int]
    ) -> Labels:
        """With items at the rows after the last, and without those that became holes."""
        numbers = {name: dict(known) for name, known in self._numbers.items()}
        groups = {}
        for name, codes in self.groups.items():
            groups[name] = np.concatenate([codes, _codes(name, items, namespaces, numbers[name])])
            groups[name][list(holes)] = -1
        postings = self.postings.changed(
            [_terms(self.names, item, self._reader) for item in items],
            {row: _terms(self.names, self._texts[row], self._reader) for row in holes},
        )
        return Labels(self.names, groups, numbers, postings, [*self._texts, *items], self._reader)

    def best(self, name: str, values: Matrix) -> Matrix:
        """For each row, the highest value in its group; its own where it is in none."""
        codes = self.groups[name]
        inside = codes >= 0
        highest = np.full(len(self._numbers[name]), -np.inf, dtype=values.dtype)
        np.maximum.at(highest, codes[inside], values[inside])
        found = values.copy()
        found[inside] = highest[codes[inside]]
        return found


def _codes(
    name: str,
    items: Sequence[Mapping[str, str]],
    namespaces: Sequence[Hashable],
    numbers: dict[tuple[Hashable, str], int],
) -> Rows:
    pairs = zip(items, namespaces, strict=True)
    codes = [
        numbers.setdefault((space, item[name]), len(numbers)) if name in item else -1 for item, space in pairs
    ]
    return np.array(codes, dtype=np.int32)


def _terms(names: Collection[str], fields: Mapping[str, str], reader: Reader) -> Mapping[str, int]:
    return reader.counts(" ".join(text for name, text in fields.items() if name in names))
