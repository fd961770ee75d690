"""How long a test takes: its long form, and how it waits for what happens in another process or thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

LONG = bool(os.environ.get("ALCOVE_LONG"))
"""Whether fault and property tests take their long form."""
PATIENCE = 60.0
"""Seconds after which a test gives up; nothing depends on how long it really takes."""

T = TypeVar("T")


def until(holds: Callable[[], T]) -> T:
    """What it gives, as soon as that holds."""
    deadline = time.monotonic() + PATIENCE
    while not (given := holds()):
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)
    return given
