"""Whether the order of items means anything: neighbours that share words, more than strangers do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from alcove.search.postings import Rows

Document = Callable[[int], Mapping[str, int]]
"""The terms of the item at a place in the order."""
Frequency = Callable[[str], int]
"""How many items hold a term."""

SAMPLE = 600
"""Pairs that are looked at: enough to tell, and a few milliseconds."""
FEWEST = 8
CERTAINTY = 3.0
"""Standard errors between neighbours and strangers, so that chance passes one order in a thousand."""


def coherent(document: Document, namespaces: Rows, frequency: Frequency) -> bool:
    """Whether items next to each other are more alike than items far from each other.

    A window of neighbours helps where items follow from one another, as turns of a conversation do,
    and only adds noise where they do not, as in an import in no order.
    """
    count = len(namespaces)
    if count < FEWEST:
        return False

    def weight(term: str) -> float:
        return math.log(count / min(frequency(term), count)) ** 2

    every = max(1, count // SAMPLE)
    firsts = np.arange(0, count - 1, every)
    near = firsts[namespaces[firsts] == namespaces[firsts + 1]]
    if len(near) < FEWEST:
        return False
    far = (near + count // 2) % count

    def likeness(here: int, there: int) -> float:
        """Cosine of the two items' rare words."""
        one, other = document(here), document(there)
        shared = sum(weight(term) for term in one if term in other)
        if not shared:
            return 0.0
        lengths = [sum(map(weight, each)) for each in (one, other)]
        return shared / math.sqrt(lengths[0] * lengths[1])

    gains = np.array(
        [likeness(n, n + 1) - likeness(n, m) for n, m in zip(near.tolist(), far.tolist(), strict=True)]
    )
    error = gains.std() / math.sqrt(len(gains))
    return bool(gains.mean() > CERTAINTY * error > 0)
