"""Namespaces: tuples of segments, with a text form for people and an encoding for engines."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from alcove.core.errors import InvalidRequest

MAX_ENCODED_BYTES = 1024
TREE, THREADS = "langgraph", "langgraph-threads"
"""Rooms of a user (`user:<user>:langgraph`) for LangGraph's data, under LangGraph's own names."""
TREE_LABELS = 16
"""The most segments of a namespace below those rooms; elsewhere a setting limits the total."""
KNOWLEDGE_ROOT = "knowledge"
"""The first segment of rooms that hold documents of knowledge sources."""


class Namespace(tuple[str, ...]):
    """An immutable path of non-empty string segments, such as `("user", "alice", "notes")`.

    The empty namespace is the root of everything: valid as a prefix, but not for a memory.
    """

    __slots__ = ()

    def __new__(cls, segments: Iterable[str] = ()) -> Namespace:
        return segments if isinstance(segments, Namespace) else super().__new__(cls, segments)

    @classmethod
    def checked(cls, value: object, field: str = "namespace") -> Namespace:
        """Checks and returns a namespace from a sequence of segments, or from its text form."""
        return cls.encoded(value, field)[0]

    @classmethod
    def encoded(cls, value: object, field: str = "namespace") -> tuple[Namespace, bytes]:
        """Returns the same with its encoding."""
        hashable = tuple(value) if isinstance(value, list) else value
        try:
            return _encoded(hashable, field)
        except TypeError:  # not hashable, so it is no namespace: raises the right error
            return _encoded.__wrapped__(hashable, field)

    @classmethod
    def parse(cls, text: str, field: str = "namespace") -> Namespace:
        """Parses the output of `str()`; only `%3A` and `%25` are escapes."""
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
        """The user who owns this namespace; None if it is shared.

        Under the root `user` the owner is the second segment, elsewhere the one after the first `u`.
        """
        position = self._owner_position()
        return self[position] if position < len(self) else None

    def owned_root(self) -> Namespace:
        """Returns the topmost prefix of this namespace that has an owner; empty if there is none."""
        position = self._owner_position()
        return Namespace(self[: position + 1]) if position < len(self) else Namespace()

    def max_depth(self, usual: int) -> int:
        """Returns the most segments it may have; `usual` is the limit for most namespaces."""
        tree = len(self) > 2 and self[0] == "user" and self[2] in (TREE, THREADS)
        return max(usual, 3 + TREE_LABELS) if tree else usual

    depth = max_depth  # its name in earlier versions

    def _owner_position(self) -> int:
        """The position of the owner's segment; past the end if there is no owner."""
        if self and self[0] == "user":
            return 1
        return self.index("u") + 1 if "u" in self else len(self)

    def encode(self, field: str = "namespace") -> bytes:
        """Returns bytes that sort like the tuples; a descendant's encoding starts with its ancestor's.

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
        """The half-open range of this namespace alone; no descendant's encoding goes on with a zero byte."""
        encoded = self.encode()
        return encoded, encoded + b"\0"


@functools.lru_cache(10_000)
def _encoded(value: object, field: str) -> tuple[Namespace, bytes]:
    """Cached, because callers repeat a few namespaces; `MAX_ENCODED_BYTES` bounds the size of an entry."""
    if not isinstance(value, str | tuple):
        raise InvalidRequest(field, "a list of segments, or text such as 'user:alice:notes'")
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
