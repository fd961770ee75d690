"""Embeds texts window by window, checks what the embedder returns, and encodes it as it is stored.

Stored vectors are MessagePack: a map from fields to the vectors of their windows, or a pair of that and a map
from fields to the tokens of short texts. Numpy is imported with the first vector only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import chain, repeat

import msgspec

from alcove.engine.rows import EmbeddedPiece, TextToIndex
from alcove.search.embedders import OTHER_DIMENSIONS, Embedder, EmbedderUnavailable, Matrix, unit

MAX_CALL_WINDOWS = 512
"""Windows that an embedder gets in one call, however large a text is."""
PROBE = "Is anybody there?"
WindowVectors = dict[str, list[bytes]]
"""By field, the vector of each window as 32-bit floats."""
Tokens = dict[str, bytes]
"""By field, the reduced tokens of a short text."""
_decode_fields = msgspec.json.Decoder(dict[str, str]).decode
_decode = msgspec.msgpack.Decoder(WindowVectors | tuple[WindowVectors, Tokens]).decode


def decode_vectors(body: bytes) -> tuple[WindowVectors, Tokens]:
    """The stored vectors and tokens of a text."""
    decoded = _decode(body)
    return decoded if isinstance(decoded, tuple) else (decoded, {})


def window_vectors(body: bytes) -> list[bytes]:
    """The stored vectors of all windows, whatever their field."""
    return [row for rows in decode_vectors(body)[0].values() for row in rows]


def dimensions_of(body: bytes) -> int | None:
    """The dimensions of stored vectors; None if there are none, because the text is blank."""
    return next((len(row) // 4 for row in window_vectors(body)), None)


def merge_pieces(bodies: Iterable[bytes]) -> bytes:
    """Merges the stored vectors of a text's pieces, as if it had been embedded at once."""
    vectors: WindowVectors = {}
    tokens: Tokens = {}
    for body in bodies:
        piece_vectors, piece_tokens = decode_vectors(body)
        tokens |= piece_tokens
        for name, rows in piece_vectors.items():
            vectors.setdefault(name, []).extend(rows)
    if len({len(row) for rows in vectors.values() for row in rows}) > 1:
        raise EmbedderUnavailable("the embedder's dimensions changed within a text: run `alcove reindex`")
    return _encode(vectors, tokens)


def _encode(vectors: WindowVectors, tokens: Tokens) -> bytes:
    short = {field: row for field, row in tokens.items() if len(vectors[field]) == 1}
    return msgspec.msgpack.encode((vectors, short) if short else vectors)


def next_windows(
    embedder: Embedder, text: TextToIndex, max_bytes: int = sys.maxsize
) -> tuple[list[tuple[str, str]], int, tuple[int, int] | None]:
    """The next windows of a text, each after its field's name, until they have `max_bytes`.

    Also returns their bytes, and the field and window where the rest of the text begins, if there is one.
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
    """The stored vectors of each text, or of its next piece of at most about `max_bytes`."""
    pieces = [next_windows(embedder, text, max_bytes) for text in texts]
    windows = [window for named_windows, _, _ in pieces for _, window in named_windows]
    calls = (windows[n : n + MAX_CALL_WINDOWS] for n in range(0, len(windows), MAX_CALL_WINDOWS))
    rows = chain.from_iterable(_embed_windows(embedder, call, dimensions) for call in calls)
    results = []
    for text, (named_windows, size, next_place) in zip(texts, pieces, strict=True):
        vectors: WindowVectors = {}
        tokens: Tokens = {}
        for field, _ in named_windows:
            vector, window_tokens = next(rows)
            vectors.setdefault(field, []).append(vector.tobytes())
            if window_tokens:
                tokens[field] = window_tokens
        results.append(EmbeddedPiece(text, _encode(vectors, tokens), size, next_place))
    return results


def _embed_windows(
    embedder: Embedder, windows: Sequence[str], dimensions: int | None
) -> Iterable[tuple[Matrix, bytes]]:
    """The vector of each window, and its reduced tokens if the embedder has any."""
    if embed := getattr(embedder, "embed_with_tokens", None):
        rows, tokens = embed(windows)
    else:
        rows, tokens = embedder.embed(windows), repeat(b"")
    return zip(_check_vectors(rows, len(windows), dimensions), tokens, strict=False)


def probe_dimensions(embedder: Embedder, dimensions: int | None = None) -> int:
    """The dimensions that an embedder returns now; raises if it returns no vector, or other dimensions than
    expected."""
    return int(_check_vectors(embedder.embed([PROBE]), 1, dimensions).shape[1])


def _check_vectors(rows: Matrix, count: int, dimensions: int | None) -> Matrix:
    """The rows at length 1; raises if there is not one for each text, or not of the expected dimensions."""
    import numpy as np  # noqa: PLC0415

    rows = np.asarray(rows, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise EmbedderUnavailable(f"the embedder answered {rows.shape}, not a row for each of {count} texts")
    if dimensions not in (None, rows.shape[1]):
        raise EmbedderUnavailable(OTHER_DIMENSIONS.format(rows.shape[1], dimensions))
    return unit(rows)
