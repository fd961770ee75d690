"""An embedder that is small, honest and the same everywhere: hashed words, and windows of a few of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from alcove.search.embedders import Matrix, unit
from alcove.search.words import words

WINDOW = 8


class Bag:
    """A text is the sum of its words, each at a place that its digest says, and a little of everything."""

    def __init__(self, name: str = "bag", dimensions: int = 48) -> None:
        self.name, self.dimensions = name, dimensions

    def windows(self, text: str) -> list[str]:
        found = text.split()
        return [" ".join(found[n : n + WINDOW]) for n in range(0, len(found), WINDOW)] or [text]

    def embed(self, texts: Sequence[str]) -> Matrix:
        rows = np.full((len(texts), self.dimensions), 0.01, dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in words(text):
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                row[int.from_bytes(digest[:4]) % self.dimensions] += 1 if digest[4] % 4 else -1
        return unit(rows)


class Counted(Bag):
    """Remembers every window that it was given, and the bytes of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.calls: list[int] = []
        self.sizes: list[int] = []

    def embed(self, texts: Sequence[str]) -> Matrix:
        self.texts += texts
        self.calls.append(len(texts))
        self.sizes.append(sum(len(text.encode()) for text in texts))
        return super().embed(texts)
