"""Converts texts to vectors: the protocol of embedders, and the specs by which operators choose one.

Numpy is loaded with the first vector, as in `indexer` and `minilm`: many stores are never searched.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from alcove.core.errors import AlcoveError, InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Matrix: TypeAlias = "NDArray[np.float32]"
_WORD = re.compile(r"\S+\s*")

MAX_QUERY_WINDOWS = 8
"""Windows of a query that are embedded: a query of 100 kB would take a minute."""

NAMES = "minilm, minilm-lean, none, onnx:FOLDER, ollama:MODEL, openai:MODEL, fastembed:MODEL or http(s)://HOST/v1#MODEL"
OTHER_DIMENSIONS = "the embedder answers {} dimensions and the index has {}: run `alcove reindex`"


_loading = threading.Lock()


def load_numpy() -> None:
    """Imports numpy, one thread at a time: a second thread could see a half-imported module."""
    with _loading:
        import numpy  # noqa: F401, PLC0415


class EmbedderUnavailable(AlcoveError):
    """The embedder returns no usable vectors now: it is missing, down, slow, or answers garbage."""

    code = "service_unavailable"


class Embedder(Protocol):
    """A model that converts texts to vectors, which are near each other if the texts are alike."""

    @property
    def name(self) -> str:
        """Marks the vectors of this model; vectors with different names are never compared."""

    @property
    def dimensions(self) -> int: ...

    def windows(self, text: str) -> list[str]:
        """Splits a text into windows that the model can take; a text that fits is one window."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """A row of length 1 for each text; raises `EmbedderUnavailable`."""


def embedder_for(
    spec: str, *, folder: Path | None = None, key: str | None = None, timeout: float = 10.0
) -> Embedder | None:
    """The embedder that the operator chose; nothing is loaded or called before the first text.

    `minilm` (weights from `folder` if given, else from the package that has them), `minilm-lean` (without
    token vectors), `none`, `onnx:FOLDER`, `fastembed:MODEL`, `ollama:MODEL`, `ollama://HOST:PORT/MODEL`,
    `openai:MODEL`, or `http(s)://HOST/v1#MODEL` for services with the API of OpenAI.
    """
    kind, _, rest = spec.partition(":")
    if spec == "none":
        return None
    # Imported only when chosen: keyword search needs no onnxruntime, and most stores no HTTP.
    if spec in {"minilm", "minilm-lean"}:
        from alcove.search.embedders.minilm import MiniLM  # noqa: PLC0415

        return MiniLM(folder, tokens=spec == "minilm")
    if kind == "onnx" and rest:
        from alcove.search.embedders.onnx_folder import folder_encoder  # noqa: PLC0415

        return folder_encoder(Path(rest))
    if kind == "fastembed" and rest:
        from alcove.search.embedders.fastembed import Fastembed  # noqa: PLC0415

        return Fastembed(rest)
    if kind in {"http", "https", "openai", "ollama"} and rest:
        from alcove.search.embedders.openai import remote_embedder  # noqa: PLC0415

        return remote_embedder(spec, key=key, timeout=timeout)
    raise InvalidRequest("embedder", NAMES)


def embed_query(embedder: Embedder, text: str) -> Matrix:
    """One vector for a query of any length: the mean of its windows, or of eight of them."""
    return embed_query_with_tokens(embedder, text)[0]


def embed_query_with_tokens(embedder: Embedder, text: str) -> tuple[Matrix, bytes]:
    """The same, and the query's reduced tokens if the embedder has any."""
    if embed := getattr(embedder, "embed_query_with_tokens", None):
        row, tokens = embed(text)
        return unit(row)[0], tokens
    if embed := getattr(embedder, "embed_query", None):  # embeds queries in another way than texts
        return unit(embed(text))[0], b""
    rows = embedder.embed(sample_windows(embedder.windows(text)))
    return unit(rows if len(rows) == 1 else rows.mean(axis=0, keepdims=True))[0], b""


def sample_windows(windows: list[str]) -> list[str]:
    """The windows of a query that are embedded: all, or eight at even distances."""
    if len(windows) <= MAX_QUERY_WINDOWS:
        return windows
    last = len(windows) - 1
    return [windows[round(n * last / (MAX_QUERY_WINDOWS - 1))] for n in range(MAX_QUERY_WINDOWS)]


def unit(vectors: Matrix) -> Matrix:
    """The rows at length 1; raises if one has no direction, or contains NaN."""
    import numpy as np  # noqa: PLC0415

    exact = vectors.astype(np.float64)  # avoids overflow
    lengths = np.sqrt((exact * exact).sum(axis=1, keepdims=True))
    if not ((lengths > 0) & (lengths < np.inf)).all():
        raise EmbedderUnavailable("the embedder answered a vector that has no direction")
    return np.asarray(vectors / lengths, dtype=np.float32)


def character_windows(text: str, *, size: int = 1000, overlap: int = 120) -> list[str]:
    """Windows of at most `size` characters that overlap and end between words if possible.

    For models whose tokeniser and limit are unknown: 1000 characters are about 250 tokens, which every model
    can take. A text that fits is one window.
    """
    if len(text) <= size:
        return [text]
    pieces = [
        (start, min(start + size, word.end()))
        for word in _WORD.finditer(text)
        for start in range(word.start(), word.end(), size)
    ]
    return [text[start:end] for start, end in spans(pieces, size=size, overlap=overlap)]


def spans(pieces: list[tuple[int, int]], *, size: int, overlap: int) -> list[tuple[int, int]]:
    """Runs of consecutive pieces, each at most `size` long and beginning with the end of the one before."""
    runs: list[tuple[int, int]] = []
    start = last = 0
    while last < len(pieces):
        first, last, begin = start, start + 1, pieces[start][0]
        while last < len(pieces) and pieces[last][1] - begin <= size:
            last += 1
        end = pieces[last - 1][1]
        runs.append((begin, end))
        # Back over the overlap, but always past the last start, or the loop would never end.
        start = last
        while start - 1 > first and end - pieces[start - 1][0] <= overlap:
            start -= 1
    return runs
