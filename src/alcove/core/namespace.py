"""Namespaces: tuples of segments, their spelling for people and their encoding for engines."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from alcove.core.errors import InvalidRequest

MAX_ENCODED_BYTES = 1024
TREE, THREADS = "langgraph", "langgraph-threads"
"""Rooms of a user (`user:<user>:langgraph`) that hold what LangGraph keeps, by its own names."""
TREE_LABELS = 16
"""How many segments a namespace may have below those rooms; elsewhere a setting says how many in all."""
KNOWLEDGE_ROOT = "knowledge"
"""The first segment of rooms that hold documents of knowledge sources."""


class Namespace(tuple[str, ...]):
    """An immutable path of non-empty string segments, such as `("user", "alice", "notes")`.

    The empty namespace is the root of everything: useful as a prefix, never an address.
    """

    __slots__ = ()

    def __new__(cls, segments: Iterable[str] = ()) -> Namespace:
        return segments if isinstance(segments, Namespace) else super().__new__(cls, segments)

    @classmethod
    def checked(cls, value: object, field: str = "namespace") -> Namespace:
        """The namespace that a caller gave as a sequence of segments or as its spelling."""
        return cls.encoded(value, field)[0]

    @classmethod
    def encoded(cls, value: object, field: str = "namespace") -> tuple[Namespace, bytes]:
        """The same, with its encoding."""
        given = tuple(value) if isinstance(value, list) else value
        try:
            return _encoded(given, field)
        except TypeError:  # what cannot be looked up is none, and is told so
            return _encoded.__wrapped__(given, field)

    @classmethod
    def parse(cls, text: str, field: str = "namespace") -> Namespace:
        """The exact inverse of `str()`: only `%3A` and `%25` are escapes, everything else is itself."""
        segments = []
        for part in text.split(":") if text else ():
            segment = part.replace("%3A", ":").replace("%25", "%")
            if _escape(segment) != part:
                raise InvalidRequest(field, f"':' and '%' inside a segment spelled %3A and %25, in {text!r}")
            segments.append(segment)
        return cls(segments)

    def __str__(self) -> str:
        return ":".join(map(_escape, self))

    def __repr__(self) -> str:
        return f"Namespace({str(self)!r})"

    @property
    def owner(self) -> str | None:
        """The only user this namespace belongs to, or None where it is shared.

        Under the root `user` that is the second segment, elsewhere the one after the first `u`.
        """
        position = self._owner_at()
        return self[position] if position < len(self) else None

    def owned_root(self) -> Namespace:
        """The topmost namespace on the way here that belongs to somebody; empty where none does."""
        position = self._owner_at()
        return Namespace(self[: position + 1]) if position < len(self) else Namespace()

    def depth(self, usual: int) -> int:
        """How many segments it may have, where others may have as many as usual."""
        tree = len(self) > 2 and self[0] == "user" and self[2] in (TREE, THREADS)
        return max(usual, 3 + TREE_LABELS) if tree else usual

    def _owner_at(self) -> int:
        """The position of the owner's segment; past the end where nobody owns it."""
        if self and self[0] == "user":
            return 1
        return self.index("u") + 1 if "u" in self else len(self)

    def encode(self, field: str = "namespace") -> bytes:
        """Bytes that sort as the tuples do, and in which every descendant starts with its ancestor.

        Each segment is UTF-8 and ends with a zero byte; 0 and 1 inside it become 1 1 and 1 2.
        """
        text = "\0".join((*self, ""))
        if "\1" in text or text.count("\0") != len(self):
            text = "".join(segment.replace("\1", "\1\2").replace("\0", "\1\1") + "\0" for segment in self)
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(field, "text without lone surrogates") from None

    @staticmethod
    @functools.lru_cache(10_000)
    def decode(encoded: bytes) -> Namespace:
        """The inverse of `encode`."""
        parts = encoded.decode().split("\0")[:-1]
        if 1 in encoded:
            parts = [part.replace("\1\1", "\0").replace("\1\2", "\1") for part in parts]
        return Namespace(parts)

    def subtree(self) -> tuple[bytes, bytes]:
        """The half-open range of encodings of this namespace and everything below it."""
        encoded = self.encode()
        return encoded, encoded[:-1] + b"\1" if encoded else b"\xff"

    def alone(self) -> tuple[bytes, bytes]:
        """The half-open range of this namespace's own encoding: none below it goes on with a zero byte."""
        encoded = self.encode()
        return encoded, encoded + b"\0"


@functools.lru_cache(10_000)
def _encoded(value: object, field: str) -> tuple[Namespace, bytes]:
    """Callers give the same few again and again; what is kept of each is bounded by `MAX_ENCODED_BYTES`."""
    if not isinstance(value, str | tuple):
        raise InvalidRequest(field, "a list of segments, or their spelling such as 'user:alice:notes'")
    namespace = Namespace.parse(value, field) if isinstance(value, str) else Namespace(value)
    for position, segment in enumerate(namespace):
        if type(segment) is not str or not segment:
            raise InvalidRequest(f"{field}[{position}]", "a non-empty plain string")
    encoded = namespace.encode(field)
    if len(encoded) > MAX_ENCODED_BYTES:
        raise InvalidRequest(field, f"at most {MAX_ENCODED_BYTES} bytes once encoded")
    return namespace, encoded


def _escape(segment: str) -> str:
    return segment.replace("%", "%25").replace(":", "%3A")
