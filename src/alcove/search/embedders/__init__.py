"""Texts into vectors: one interface, and the ways an operator can name an embedder.

As in `indexer` and `minilm`, numpy comes with the first vector: who opens a store may never search it.
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
"""A question of 100 kB is answered by what it says in eight places, not after a minute."""

NAMES = "minilm, minilm-lean, none, onnx:FOLDER, ollama:MODEL, openai:MODEL, fastembed:MODEL or http(s)://HOST/v1#MODEL"
OTHER_DIMENSIONS = "the embedder answers {} dimensions and the index has {}: run `alcove reindex`"


_loading = threading.Lock()


def load_numpy() -> None:
    """Imports numpy, one thread at a time: of two that are the first, one may see half of it."""
    with _loading:
        import numpy  # noqa: F401, PLC0415


class EmbedderUnavailable(AlcoveError):
    """The embedder gives no usable vectors now: missing, down, slow, or answering garbage."""

    code = "service_unavailable"


class Embedder(Protocol):
    """A model that places texts in a space where near means alike."""

    @property
    def name(self) -> str:
        """What vectors are marked with; vectors of two names are never compared."""

    @property
    def dimensions(self) -> int: ...

    def windows(self, text: str) -> list[str]:
        """The stretches the model can take whole; a text that fits is its own single window."""

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One row of length 1 for each text, or `EmbedderUnavailable`."""


def embedder_for(
    spec: str, *, folder: Path | None = None, key: str | None = None, timeout: float = 10.0
) -> Embedder | None:
    """The embedder an operator named; nothing is loaded or called before the first text.

    `minilm` (weights from `folder` if given, else from the package that carries them), `minilm-lean` (the
    same, which keeps nothing of single tokens), `none`, `onnx:FOLDER`, `fastembed:MODEL`, `ollama:MODEL`,
    `ollama://HOST:PORT/MODEL`, `openai:MODEL`, or `http(s)://HOST/v1#MODEL` for what speaks as OpenAI does.
    """
    kind, _, rest = spec.partition(":")
    if spec == "none":
        return None
    # Each is imported only for who names it: keyword search needs no onnxruntime, and most stores no HTTP.
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
    """One vector for a question of any length: the middle of its windows, evenly chosen if many."""
    return embed_query_with_tokens(embedder, text)[0]


def embed_query_with_tokens(embedder: Embedder, text: str) -> tuple[Matrix, bytes]:
    """The same, and what the embedder keeps of the question's tokens, if anything."""
    if asked := getattr(embedder, "embed_query_with_tokens", None):
        row, tokens = asked(text)
        return unit(row)[0], tokens
    if asked := getattr(embedder, "embed_query", None):  # a model that reads questions otherwise than texts
        return unit(asked(text))[0], b""
    rows = embedder.embed(evenly_chosen(embedder.windows(text)))
    return unit(rows if len(rows) == 1 else rows.mean(axis=0, keepdims=True))[0], b""


def evenly_chosen(windows: list[str]) -> list[str]:
    """The windows of a question that are embedded: all, or where they are many some from everywhere."""
    if len(windows) <= MAX_QUERY_WINDOWS:
        return windows
    last = len(windows) - 1
    return [windows[round(n * last / (MAX_QUERY_WINDOWS - 1))] for n in range(MAX_QUERY_WINDOWS)]


def unit(vectors: Matrix) -> Matrix:
    """The rows brought to length 1; a row with no direction, or with NaN, is no vector."""
    import numpy as np  # noqa: PLC0415

    exact = vectors.astype(np.float64)  # no overflow on the way
    lengths = np.sqrt((exact * exact).sum(axis=1, keepdims=True))
    if not ((lengths > 0) & (lengths < np.inf)).all():
        raise EmbedderUnavailable("the embedder answered a vector that has no direction")
    return np.asarray(vectors / lengths, dtype=np.float32)


def character_windows(text: str, *, size: int = 1000, overlap: int = 120) -> list[str]:
    """Stretches of at most `size` characters that overlap and end between words where they can.

    For models whose tokeniser and limit are not known here: 1000 characters are about 250 tokens, which every
    one can take. A text that fits is its own single window.
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
    """Runs of consecutive pieces, each at most `size` long, every run taking up the end of the last."""
    found: list[tuple[int, int]] = []
    start = last = 0
    while last < len(pieces):
        first, last, begin = start, start + 1, pieces[start][0]
        while last < len(pieces) and pieces[last][1] - begin <= size:
            last += 1
        end = pieces[last - 1][1]
        found.append((begin, end))
        # Back over the overlap, but always past the last start, or the loop would never end.
        start = last
        while start - 1 > first and end - pieces[start - 1][0] <= overlap:
            start -= 1
    return found
