"""The `alcove` command where the clock is wrong: `python -m tests.support.clock_skew SECONDS serve …`."""

from __future__ import annotations

import sys
import time


def skew(seconds: int) -> None:
    """Puts this process's wall clock forward; what only ever counts up stays as it is."""
    time_, time_ns = time.time, time.time_ns
    time.time = lambda: time_() + seconds
    time.time_ns = lambda: time_ns() + seconds * 1_000_000_000


if __name__ == "__main__":
    skew(int(sys.argv.pop(1)))
    from alcove.cli import main

    main(prog_name="alcove")
