"""How the vectors of a text are stored: MessagePack of the vectors by field, and of its tokens if it has
any."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from alcove.search.embedders import EmbedderUnavailable

FieldVectors = dict[str, list[bytes]]
"""By field, the vector of each window as 32-bit floats."""
FieldTokens = dict[str, bytes]
"""By field, the reduced token states of a short text."""
_decode = msgspec.msgpack.Decoder(FieldVectors | tuple[FieldVectors, FieldTokens]).decode


def encode_vectors(vectors: FieldVectors, tokens: FieldTokens) -> bytes:
    """Vectors and tokens of a text as one body."""
    return msgspec.msgpack.encode((vectors, tokens) if tokens else vectors)


def decode_vectors(body: bytes) -> tuple[FieldVectors, FieldTokens]:
    """The vectors and tokens of a body."""
    decoded = _decode(body)
    return decoded if isinstance(decoded, tuple) else (decoded, {})


def window_vectors(body: bytes) -> list[bytes]:
    """The vectors of all windows of a body, whatever their field."""
    return [row for rows in decode_vectors(body)[0].values() for row in rows]


def dimensions_of(body: bytes) -> int | None:
    """The dimensions of a body's vectors; None if it has none, because its texts are blank."""
    return next((len(row) // 4 for row in window_vectors(body)), None)


def merge_pieces(bodies: Iterable[bytes]) -> bytes:
    """One body from those of a text's pieces, as if it had been embedded at once."""
    vectors: FieldVectors = {}
    tokens: FieldTokens = {}
    for body in bodies:
        piece_vectors, piece_tokens = decode_vectors(body)
        tokens |= piece_tokens
        for name, rows in piece_vectors.items():
            vectors.setdefault(name, []).extend(rows)
    if len({len(row) for rows in vectors.values() for row in rows}) > 1:
        raise EmbedderUnavailable("the embedder's dimensions changed within a text: run `alcove reindex`")
    return encode_vectors(vectors, {name: row for name, row in tokens.items() if len(vectors[name]) == 1})
