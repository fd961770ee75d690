"""Whether the order of items means anything: neighbours that share words, more than strangers do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from alcove.search.postings import Rows

SAMPLE = 600
"""Pairs that are looked at: enough to tell, and a few milliseconds."""
FEWEST = 8
CERTAINTY = 3.0
"""Standard errors between neighbours and strangers, so that chance passes one order in a thousand."""


def coherent(documents: Sequence[Mapping[str, int]], namespaces: Rows) -> bool:
    """Whether items next to each other are more alike than items far from each other.

    A window of neighbours helps where items follow from one another, as turns of a conversation do,
    and only adds noise where they do not, as in an import in no order.
    """
    if len(documents) < FEWEST:
        return False
    frequency: Counter[str] = Counter()
    for document in documents:
        frequency.update(document.keys())
    rarity = {term: math.log(len(documents) / count) for term, count in frequency.items()}
    every = max(1, len(documents) // SAMPLE)
    firsts = np.arange(0, len(documents) - 1, every)
    near = firsts[namespaces[firsts] == namespaces[firsts + 1]]
    if len(near) < FEWEST:
        return False
    far = (near + len(documents) // 2) % len(documents)

    def likeness(here: int, there: int) -> float:
        """Cosine of the two items' rare words."""
        one, other = documents[here], documents[there]
        shared = sum(rarity[term] ** 2 for term in one if term in other)
        if not shared:
            return 0.0
        lengths = [sum(rarity[term] ** 2 for term in each) for each in (one, other)]
        return shared / math.sqrt(lengths[0] * lengths[1])

    gains = np.array(
        [likeness(n, n + 1) - likeness(n, m) for n, m in zip(near.tolist(), far.tolist(), strict=True)]
    )
    error = gains.std() / math.sqrt(len(gains))
    return bool(gains.mean() > CERTAINTY * error > 0)
