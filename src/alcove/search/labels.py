"""Fields that many items share: a date, a source, a topic. They say where an item belongs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from alcove.search.embedders import Matrix
from alcove.search.items import ReadItem
from alcove.search.postings import Postings, Rows

Numbers = dict[tuple[Hashable, str], int]
"""A number for each label in each namespace."""

OCCASION = 50
"""Items of a group that counts in full."""
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
        self, groups: Mapping[str, Rows], numbers: Mapping[str, Numbers], postings: Postings
    ) -> None:
        self.groups, self._numbers, self.postings = groups, numbers, postings

    @classmethod
    def of(cls, names: frozenset[str], reads: Sequence[ReadItem]) -> Labels:
        numbers: dict[str, Numbers] = {name: {} for name in names}
        groups = {name: _codes(name, reads, numbers[name]) for name in names}
        # Labels are names: how long one is says nothing, so lengths do not count.
        return cls(groups, numbers, Postings.of((read.terms_of(names) for read in reads), k1=0.9, b=0))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.groups)

    def changed(self, added: Sequence[ReadItem], holes: Mapping[int, ReadItem]) -> Labels:
        """With items at the rows after the last, and without those that became holes."""
        numbers = {name: dict(known) for name, known in self._numbers.items()}
        groups = {}
        for name, codes in self.groups.items():
            groups[name] = np.concatenate([codes, _codes(name, added, numbers[name])])
            groups[name][list(holes)] = -1
        postings = self.postings.changed(
            [read.terms_of(self.names) for read in added],
            {row: read.terms_of(self.names) for row, read in holes.items()},
        )
        return Labels(groups, numbers, postings)

    def best(self, name: str, values: Matrix) -> Matrix:
        """For each row, the highest value in its group, and 0 in none; less in a group of very many.

        What was said on one occasion belongs together; what is filed under one word often does not.
        """
        codes = self.groups[name]
        inside = codes >= 0
        members = codes[inside]
        highest = np.full(len(self._numbers[name]), -np.inf, dtype=np.float32)
        np.maximum.at(highest, members, values[inside])
        highest *= np.minimum(1, OCCASION / np.maximum(np.bincount(members, minlength=len(highest)), 1))
        found = np.zeros(len(values), dtype=np.float32)
        found[inside] = highest[members]
        return found


def _codes(name: str, reads: Sequence[ReadItem], numbers: Numbers) -> Rows:
    codes = [
        numbers.setdefault((read.item.namespace, text), len(numbers)) if text is not None else -1
        for read in reads
        for text in (read.item.fields.get(name),)
    ]
    return np.array(codes, dtype=np.int32)
