"""Models that fastembed downloads: `fastembed:MODEL`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from alcove.search.embedders import EmbedderUnavailable, Matrix, character_windows, unit


class _Model(Protocol):
    def embed(self, documents: Sequence[str]) -> Iterable[Matrix]: ...


class Fastembed:
    """A model of fastembed by its name; downloaded and loaded with the first text.

    For machines with internet: `pip install fastembed`.
    """

    windows = staticmethod(character_windows)

    def __init__(self, model: str) -> None:
        self.name = model
        self._loading = threading.Lock()
        self._model: _Model | None = None

    @property
    def dimensions(self) -> int:
        return int(self.embed(["dimensions"]).shape[1])

    def embed(self, texts: Sequence[str]) -> Matrix:
        model = self._load()
        try:
            return unit(np.stack(list(model.embed(texts))).astype(np.float32))
        except (RuntimeError, ValueError) as error:
            raise EmbedderUnavailable(f"fastembed {self.name} failed: {error}") from None

    def _load(self) -> _Model:
        with self._loading:
            if self._model is None:
                try:
                    from fastembed import TextEmbedding  # noqa: PLC0415 - an extra of its own
                except ImportError:
                    raise EmbedderUnavailable("fastembed is missing: pip install fastembed") from None
                try:
                    self._model = TextEmbedding(self.name)
                except Exception as error:  # downloads fail in many classes
                    raise EmbedderUnavailable(f"fastembed cannot load {self.name}: {error}") from None
            return self._model
