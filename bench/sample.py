"""What every benchmark stores: values of about 500 bytes, and a folder that is on a real disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

VALUE: dict[str, object] = {
    "text": "She moved the weekly review to Thursday because the Lisbon team joins at nine. " * 4,
    "topic": "calendar",
    "tags": ["meetings", "lisbon"],
    "source": {"channel": "chat", "turn": 42},
    "confidence": 0.93,
    "noted_at": "2026-11-15T09:00:00Z",
}
ENCODED = msgspec.json.encode(VALUE)
"""The same value as the raw driver stores it: encoded once, outside of every measurement."""


@contextmanager
def folder(beside: Path | None = None) -> Iterator[Path]:
    """A temporary folder, next to the repository unless told otherwise: `/tmp` may be memory."""
    parent = beside or Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory(dir=parent, prefix="alcove-bench-") as name:
        yield Path(name)
