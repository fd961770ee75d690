"""Tunes the memory of the process: when malloc returns memory, and what the garbage collector scans."""

from __future__ import annotations

import ctypes
import gc

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Option numbers of `mallopt`."""
LARGE = 8 * 1024 * 1024
"""Freed blocks of at least this many bytes return to the system at once; less would slow the model down."""
ARENAS = 2


def configure_malloc() -> None:
    """Returns large blocks to the system as soon as they are free, and lets threads share two heaps.

    Call it before threads start, in a process that is Alcove's own. By default, glibc retains much of the
    memory that was freed, and each thread has a heap of its own that no other thread can use.
    """
    if option := getattr(ctypes.CDLL(None), "mallopt", None):
        for name, value in ((_TRIM_THRESHOLD, LARGE), (_MMAP_THRESHOLD, LARGE), (_ARENA_MAX, ARENAS)):
            option(name, value)


def freeze_gc() -> None:
    """Excludes all existing objects from garbage collection.

    Call it when the process has started: otherwise a request that creates many objects triggers a scan of
    all of them.
    """
    gc.collect()
    gc.freeze()


def trim() -> None:
    """Returns all free memory to the system."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
