"""The folder in which several workers keep their counts, so that any of them can answer for all.

It lives as long as the parent process. Where there is memory that looks like a disk it is there: counts are
written through a mapping, and on a disk that is full that would end the worker rather than fail.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""What prometheus-client calls it: it looks at no other place."""
_MEMORY = "/dev/shm"  # noqa: S108  a fresh folder of our own is made in it


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A new folder, which the environment of every process started meanwhile names."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix="alcove-", dir=memory, ignore_cleanup_errors=True) as folder:
        os.environ[FOLDER] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ[FOLDER]


def forget(folder: Path, worker: int) -> None:
    """Drops what a worker that has died was doing; what it did stays counted."""
    for gauges in folder.glob(f"gauge_live*_{worker}.db"):
        gauges.unlink(missing_ok=True)
