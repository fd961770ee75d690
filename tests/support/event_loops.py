"""An event loop for libraries that take the thread's, or make one that they never close."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loop_of_its_own() -> Iterator[None]:
    """This thread has a new event loop for the length of a `with`."""
    asyncio.set_event_loop(loop := asyncio.new_event_loop())
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
