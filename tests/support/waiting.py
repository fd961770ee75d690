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
    """What it gives, as soon as that holds; it is asked ever more seldom, to leave time for the others."""
    deadline, pause = time.monotonic() + PATIENCE, 0.005
    while not (given := holds()):
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(pause)
        pause = min(1.3 * pause, 0.1)
    return given
