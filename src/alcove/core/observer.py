"""What a store tells whoever counts: the only thing that the core knows of metrics."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Told by the thread that did it, often with a lock in its hand: it must be quick and never raise."""

    def submitted(self) -> None:
        """A write waits for a commit from now on; calls of this and of `settled` never overlap."""

    def settled(self, writes: int, *, committed: bool) -> None:
        """One commit has ended for this many writes, on the disk or with an error for all of them."""

    def expired(self, memories: int, *, which: str) -> None:
        """A sweep has recorded the end of this many memories: `due` by their own time, or `aged`."""


class Unobserved:
    """Nobody counts."""

    def submitted(self) -> None: ...
    def settled(self, writes: int, *, committed: bool) -> None: ...
    def expired(self, memories: int, *, which: str) -> None: ...
