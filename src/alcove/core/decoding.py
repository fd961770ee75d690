"""Decodes JSON and plain data into records, from any thread.

msgspec (0.22) describes a record class at its first use. Two threads that do this to the same class at once
crash the process. Decoders are therefore built here, one at a time; the only exception are decoders that a
module builds while it is imported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from alcove.core.namespace import Namespace

T = TypeVar("T")
_first_use = threading.Lock()


def _build_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    with _first_use:
        return msgspec.json.Decoder(kind, dec_hook=_to_namespace)


_cached_decoder: Callable[[Any], msgspec.json.Decoder[Any]] = lru_cache(1024)(_build_decoder)


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Returns the JSON decoder of a type."""
    return _cached_decoder(kind)


def convert(value: object, kind: type[T]) -> T:
    """Makes a record from plain data; raises `msgspec.ValidationError` if the data does not fit."""
    _cached_decoder(kind)
    return msgspec.convert(value, kind, dec_hook=_to_namespace)


def _to_namespace(kind: type, value: object) -> object:
    """Makes a `Namespace`, the only one of our types that msgspec does not know."""
    return Namespace.checked(value) if kind is Namespace else value
