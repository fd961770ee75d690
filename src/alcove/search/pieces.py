"""Texts in pieces: the windows that a model takes, and their vectors as they are kept."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from alcove.engine.rows import Embedded, TextToIndex
from alcove.search.embedders import OTHER_DIMENSIONS, Embedder, EmbedderUnavailable, Matrix, unit

MOST_AT_ONCE = 512
"""Windows given to an embedder in one call, however large a text is."""
PROBE = "Is anybody there?"

Fields = dict[str, list[bytes]]
_decoded = msgspec.msgpack.Decoder(Fields).decode


class Piece(NamedTuple):
    """Windows of a text, each after its field's name; their bytes, and which field and window come next."""

    text: TextToIndex
    windows: list[tuple[str, str]]
    size: int
    rest: tuple[int, int] | None


def cut(embedder: Embedder, text: TextToIndex, size: int = sys.maxsize) -> Piece:
    """The next windows of a text, until they have so many bytes."""
    windows: list[tuple[str, str]] = []
    taken = 0
    fields = msgspec.json.decode(text.index_text, type=dict[str, str])
    for number, (field, words) in enumerate(fields.items()):
        if number < text.field or not words.strip():
            continue
        found = embedder.windows(words)
        share = len(words.encode()) // max(len(found), 1)  # windows overlap: together they are the field
        for n in range(text.window if number == text.field else 0, len(found)):
            if taken >= size:
                return Piece(text, windows, taken, (number, n))
            windows.append((field, found[n]))
            taken += share
    return Piece(text, windows, taken, None)


def whole(embedder: Embedder, texts: Iterable[TextToIndex], *, windows: int, size: int) -> Iterator[Piece]:
    """Those of the texts that are within so many windows and characters in all, the first ones first."""
    for text in texts:
        if len(text.index_text) <= size:
            size -= len(text.index_text)
            piece = cut(embedder, text)
            if len(piece.windows) <= windows:
                windows -= len(piece.windows)
                yield piece


def vectors_of(embedder: Embedder, pieces: Sequence[Piece], dimensions: int | None = None) -> list[Embedded]:
    """The vectors of each piece as they are kept: for each field a row a window."""
    import numpy as np  # noqa: PLC0415

    windows = [window for piece in pieces for _, window in piece.windows]
    calls = [windows[n : n + MOST_AT_ONCE] for n in range(0, len(windows), MOST_AT_ONCE)]
    parts = [checked(embedder.embed(some), len(some), dimensions) for some in calls]
    rows = iter(np.concatenate(parts) if parts else ())
    found = []
    for text, named, size, rest in pieces:
        fields: Fields = {}
        for field, _ in named:
            fields.setdefault(field, []).append(next(rows).tobytes())
        found.append(Embedded(text, msgspec.msgpack.encode(fields), size, rest))
    return found


def embedded(
    embedder: Embedder, texts: Sequence[TextToIndex], dimensions: int | None = None
) -> list[tuple[int, bytes]]:
    """The vectors of each version's whole text."""
    every = vectors_of(embedder, [cut(embedder, text) for text in texts], dimensions)
    return [(each.text.seq, each.body) for each in every]


def joined(bodies: Iterable[bytes]) -> bytes:
    """Vectors of a text's pieces, as if they had been made at once."""
    fields: Fields = {}
    for body in bodies:
        for name, rows in _decoded(body).items():
            fields.setdefault(name, []).extend(rows)
    if len({len(row) for rows in fields.values() for row in rows}) > 1:
        raise EmbedderUnavailable("the embedder's dimensions changed within a text: run `alcove reindex`")
    return msgspec.msgpack.encode(fields)


def checked(rows: Matrix, count: int, dimensions: int | None) -> Matrix:
    """An embedder's answer at length 1, if it has a row for each text and the dimensions expected of it."""
    import numpy as np  # noqa: PLC0415

    rows = np.asarray(rows, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise EmbedderUnavailable(f"the embedder answered {rows.shape}, not a row for each of {count} texts")
    if dimensions not in (None, rows.shape[1]):
        raise EmbedderUnavailable(OTHER_DIMENSIONS.format(rows.shape[1], dimensions))
    return unit(rows)


def opened(body: bytes) -> dict[str, Matrix]:
    """Vectors as they were kept, by field."""
    import numpy as np  # noqa: PLC0415

    return {
        name: np.frombuffer(b"".join(rows), dtype=np.float32).reshape(len(rows), -1)
        for name, rows in _decoded(body).items()
    }


def dimensions_of(body: bytes) -> int | None:
    """How long each of some kept vectors is; None where the texts were empty."""
    return next((rows.shape[1] for rows in opened(body).values()), None)
