"""Whether the order of items means anything: neighbours that share words, more than strangers do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from alcove.search.postings import Rows

Document = Callable[[int], Mapping[str, int]]
"""The terms of the item at a place in the order."""
Frequency = Callable[[str], int]
"""How many items hold a term."""

SAMPLE = 300
"""Pairs that are looked at: enough to tell, and a few milliseconds."""
FEWEST = 8
CERTAINTY = 3.0
"""Standard errors between neighbours and strangers, so that chance passes one order in a thousand."""


def order_matters(document: Document, namespaces: Rows, frequency: Frequency) -> bool:
    """Whether items next to each other are more alike than items far from each other.

    A window of neighbours helps where items follow from one another, as turns of a conversation do,
    and only adds noise where they do not, as in an import in no order.
    """
    count = len(namespaces)
    if count < FEWEST:
        return False

    @cache
    def weight(term: str) -> float:
        return math.log(count / min(frequency(term), count)) ** 2

    @cache
    def length(place: int) -> float:
        return sum(map(weight, document(place)))

    def likeness(here: int, there: int) -> float:
        """Cosine of the two items' rare words."""
        shared = sum(map(weight, document(here).keys() & document(there).keys()))
        return shared / math.sqrt(length(here) * length(there)) if shared else 0.0

    firsts = np.arange(0, count - 1, math.ceil(count / SAMPLE))
    near = firsts[namespaces[firsts] == namespaces[firsts + 1]]
    if len(near) < FEWEST:
        return False
    far = (near + count // 2) % count
    pairs = zip(near.tolist(), far.tolist(), strict=True)
    gains = np.array([likeness(one, one + 1) - likeness(one, other) for one, other in pairs])
    error = gains.std() / math.sqrt(len(gains))
    return bool(gains.mean() > CERTAINTY * error > 0)
