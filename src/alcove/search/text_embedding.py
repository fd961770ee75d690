"""Turns texts into stored vectors with an embedder: cuts them into windows, and checks what the embedder
returns.

Imports numpy with the first vector only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import chain, repeat

import msgspec

from alcove.engine.rows import EmbeddedPiece, TextToIndex
from alcove.search.embedders import OTHER_DIMENSIONS, Embedder, EmbedderUnavailable, Matrix, unit
from alcove.search.stored_vectors import FieldTokens, FieldVectors, encode_vectors

MAX_WINDOWS_PER_CALL = 512
"""Windows that an embedder gets in one call, however large a text is."""
PROBE = "Is anybody there?"
_decode_fields = msgspec.json.Decoder(dict[str, str]).decode


def next_windows(
    embedder: Embedder, text: TextToIndex, max_bytes: int = sys.maxsize
) -> tuple[list[tuple[str, str]], int, tuple[int, int] | None]:
    """The next windows of a text, each after its field's name, until they have `max_bytes`.

    Also their bytes, and the field and window at which the rest of the text begins, if there is one.
    """
    windows: list[tuple[str, str]] = []
    size = 0
    for number, (field, field_text) in enumerate(_decode_fields(text.index_text).items()):
        if number < text.field or not field_text.strip():
            continue
        field_windows = embedder.windows(field_text)
        window_bytes = len(field_text.encode()) // max(len(field_windows), 1)  # they overlap
        for n in range(text.window if number == text.field else 0, len(field_windows)):
            if size >= max_bytes:
                return windows, size, (number, n)
            windows.append((field, field_windows[n]))
            size += window_bytes
    return windows, size, None


def embed_texts(
    embedder: Embedder,
    texts: Sequence[TextToIndex],
    dimensions: int | None = None,
    max_bytes: int = sys.maxsize,
) -> list[EmbeddedPiece]:
    """The vectors of each text, or of its next piece of at most about `max_bytes`."""
    pieces = [next_windows(embedder, text, max_bytes) for text in texts]
    windows = [window for named_windows, _, _ in pieces for _, window in named_windows]
    calls = (windows[n : n + MAX_WINDOWS_PER_CALL] for n in range(0, len(windows), MAX_WINDOWS_PER_CALL))
    rows = chain.from_iterable(_embed_windows(embedder, call, dimensions) for call in calls)
    results = []
    for text, (named_windows, size, next_place) in zip(texts, pieces, strict=True):
        vectors: FieldVectors = {}
        tokens: FieldTokens = {}
        for field, _ in named_windows:
            vector, window_tokens = next(rows)
            vectors.setdefault(field, []).append(vector.tobytes())
            if window_tokens:
                tokens[field] = window_tokens
        short = {field: row for field, row in tokens.items() if len(vectors[field]) == 1}
        results.append(EmbeddedPiece(text, encode_vectors(vectors, short), size, next_place))
    return results


def _embed_windows(
    embedder: Embedder, windows: Sequence[str], dimensions: int | None
) -> Iterable[tuple[Matrix, bytes]]:
    """The vector of each window and the token states that the embedder reduces it to."""
    if embed := getattr(embedder, "embed_with_tokens", None):
        rows, tokens = embed(windows)
    else:
        rows, tokens = embedder.embed(windows), repeat(b"")
    return zip(check_vectors(rows, len(windows), dimensions), tokens, strict=False)


def probe_dimensions(embedder: Embedder, dimensions: int | None = None) -> int:
    """The dimensions that an embedder returns now; raises if it returns none, or others than expected."""
    return int(check_vectors(embedder.embed([PROBE]), 1, dimensions).shape[1])


def check_vectors(rows: Matrix, count: int, dimensions: int | None) -> Matrix:
    """An embedder's vectors at length 1, if there is one for each text and they have the expected
    dimensions."""
    import numpy as np  # noqa: PLC0415

    rows = np.asarray(rows, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise EmbedderUnavailable(f"the embedder answered {rows.shape}, not a row for each of {count} texts")
    if dimensions not in (None, rows.shape[1]):
        raise EmbedderUnavailable(OTHER_DIMENSIONS.format(rows.shape[1], dimensions))
    return unit(rows)
