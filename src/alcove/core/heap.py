"""The heap of the process: what it gives back to the system, and what is looked through for garbage."""

from __future__ import annotations

import ctypes
import gc

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""The names that `mallopt` has for them."""
LARGE = 8 * 1024 * 1024
"""Bytes from which on a block goes back to the system at once; less would slow the model down."""
ARENAS = 2


def configure_malloc() -> None:
    """For a process that is ours alone, before its threads begin: large blocks go back as soon as they are
    free, and threads share two heaps. By default glibc keeps much of what was freed, and each thread has a
    heap of its own: what one freed no other can use.
    """
    if option := getattr(ctypes.CDLL(None), "mallopt", None):
        for name, value in ((_TRIM_THRESHOLD, LARGE), (_MMAP_THRESHOLD, LARGE), (_ARENA_MAX, ARENAS)):
            option(name, value)


def freeze_gc() -> None:
    """Keeps all objects that there are now out of garbage collections.

    For a process that has started: else a request that makes many objects has all of them looked through.
    """
    gc.collect()
    gc.freeze()


def trim() -> None:
    """To the system, everything that is free now."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
