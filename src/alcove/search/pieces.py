"""Texts in pieces: the windows that a model takes, and their vectors as they are kept."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from alcove.engine.base import TextToIndex
from alcove.search.embedders import OTHER_DIMENSIONS, Embedder, EmbedderUnavailable, Matrix, unit

MOST_AT_ONCE = 512
"""Windows given to an embedder in one call, however large a text is."""
PROBE = "Is anybody there?"


class Piece(NamedTuple):
    """Some windows of a text, each after its field's name, and where the rest begins, if there is more."""

    text: TextToIndex
    windows: list[tuple[str, str]]
    rest: tuple[int, int] | None


def cut(embedder: Embedder, text: TextToIndex, room: int) -> Piece:
    """The next windows of a text, at most `room`; fields that they do not reach cost nothing."""
    windows: list[tuple[str, str]] = []
    fields = msgspec.json.decode(text.index_text, type=dict[str, str])
    for number, (field, words) in enumerate(fields.items()):
        if number < text.field or not words.strip():
            continue
        if len(windows) == room:
            return Piece(text, windows, (number, 0))
        found = embedder.windows(words)
        first = text.window if number == text.field else 0
        last = first + room - len(windows)
        windows += [(field, window) for window in found[first:last]]
        if last < len(found):
            return Piece(text, windows, (number, last))
    return Piece(text, windows, None)


def whole(embedder: Embedder, texts: Iterable[TextToIndex], *, windows: int, size: int) -> Iterator[Piece]:
    """Those of the texts that are within so many windows and characters in all, the first ones first."""
    for text in texts:
        if windows and len(text.index_text) <= size:
            size -= len(text.index_text)
            piece = cut(embedder, text, windows)
            if piece.rest is None:
                windows -= len(piece.windows)
                yield piece


def vectors_of(embedder: Embedder, pieces: Sequence[Piece], dimensions: int | None = None) -> list[bytes]:
    """The vectors of each piece as they are kept: for each field a row a window."""
    windows = [window for piece in pieces for _, window in piece.windows]
    calls = [windows[n : n + MOST_AT_ONCE] for n in range(0, len(windows), MOST_AT_ONCE)]
    parts = [checked(embedder.embed(some), len(some), dimensions) for some in calls]
    rows = iter(np.concatenate(parts) if parts else ())
    found: list[dict[str, list[bytes]]] = [{} for _ in pieces]
    for piece, fields in zip(pieces, found, strict=True):
        for field, _ in piece.windows:
            fields.setdefault(field, []).append(next(rows).tobytes())
    return [msgspec.msgpack.encode(fields) for fields in found]


def embedded(
    embedder: Embedder, texts: Sequence[TextToIndex], dimensions: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """The vectors of each version's whole text."""
    pieces = [cut(embedder, text, sys.maxsize) for text in texts]
    for text, body in zip(texts, vectors_of(embedder, pieces, dimensions), strict=True):
        yield text.seq, body


def checked(rows: Matrix, count: int, dimensions: int | None) -> Matrix:
    """Whoever wrote the embedder: nothing is kept that could not be searched."""
    rows = np.asarray(rows, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise EmbedderUnavailable(f"the embedder answered {rows.shape}, not a row for each of {count} texts")
    if dimensions not in (None, rows.shape[1]):
        raise EmbedderUnavailable(OTHER_DIMENSIONS.format(rows.shape[1], dimensions))
    return unit(rows)


def opened(body: bytes) -> dict[str, Matrix]:
    """Vectors as they were kept, by field."""
    fields = msgspec.msgpack.decode(body, type=dict[str, list[bytes]])
    return {
        name: np.frombuffer(b"".join(rows), dtype=np.float32).reshape(len(rows), -1)
        for name, rows in fields.items()
    }


def dimensions_of(body: bytes) -> int | None:
    """How long each of some kept vectors is; None where the texts were empty."""
    return next((rows.shape[1] for rows in opened(body).values()), None)
