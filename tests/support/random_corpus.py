"""Items of a corpus and questions about them that chance makes, always the same for a seed."""

from __future__ import annotations

import random

import numpy as np

from alcove.search.corpus import Item
from alcove.search.query import ParsedQuery

WORDS = ("tea", "kettle", "garden", "rose", "violin", "train", "harbour", "lamp")
DIMENSIONS = 6


def item(id: int, *, sequence: int | None = None, seed: int | None = None) -> Item:
    """An item that is always the same for a seed: some have a speaker, no vector or two, a label."""
    chance = random.Random(id if seed is None else seed)
    text = " ".join(chance.choices(WORDS, k=chance.randint(1, 12)))
    fields = {"text": chance.choice(["", "Ann: ", "Bob: "]) + text}
    if chance.random() < 0.7:
        fields["day"] = f"{chance.randint(1, 5)} May 2023"
    vectors = {
        name: np.array([[chance.gauss(0, 1) for _ in range(DIMENSIONS)]], dtype=np.float32)
        for name in fields
        if chance.random() < 0.9
    }
    vectors = {name: vector / np.linalg.norm(vector) for name, vector in vectors.items()}
    namespace = ("a", str(chance.randint(1, 2)))
    return Item(
        id=id,
        namespace=namespace,
        sequence=id if sequence is None else sequence,
        fields=fields,
        vectors=vectors,
    )


def question(seed: int) -> ParsedQuery:
    chance = random.Random(seed)
    vector = np.array([chance.gauss(0, 1) for _ in range(DIMENSIONS)], dtype=np.float32)
    text = "Ann " + " ".join(chance.sample(WORDS, 3)) + " 3 May 2023"
    return ParsedQuery.of(text, vector / np.float32(np.linalg.norm(vector)))
