"""The subtrees that were searched lately, held in memory and bounded in bytes."""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace

from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace
from alcove.engine.base import Index, Scope, SubtreeTooLarge
from alcove.search.subtree import Snapshot, Subtree
from alcove.store.filters import Filter

SHARE = 4
"""One user's own subtrees may take one part in so many of what all subtrees may take."""


@dataclass(eq=False)
class _Held:
    """A subtree in memory, and how much it was last found to take."""

    place: str
    subtree: Subtree
    bytes: int = 0

    @property
    def owner(self) -> str | None:
        return self.subtree.scope.owner


class Subtrees:
    """A subtree is shared by all who see exactly the same of it: what they may not see must not show in how
    words are weighed.

    What belongs to nobody is held once for all its readers, and what a reader owns inside of it beside it.
    """

    def __init__(self, index: Index, *, most_bytes: int) -> None:
        self._index = index
        self._most_bytes = most_bytes
        self._subtrees: OrderedDict[str, _Held] = OrderedDict()
        self._bytes: Counter[str | None] = Counter()
        """What is held, by the user whose it is; None for what is nobody's."""
        self._mutex = threading.Lock()

    def of(self, scope: Scope, embedder: str, *, now: int) -> list[tuple[Subtree, Snapshot]]:
        """The subtrees that make up a scope, as they are now; empty ones are left out, but for the last."""
        found: list[tuple[Subtree, Snapshot]] = []
        for held in map(self._subtree, self._parts(scope)):
            size: float = math.inf
            try:
                snapshot = held.subtree.snapshot(self._index, embedder, now=now, most=self._most_bytes // 2)
                found.append((held.subtree, snapshot))
                size = self._weigh(held)
            except SubtreeTooLarge:
                pass
            if size > self._most_bytes:
                raise InvalidRequest(
                    "namespace_prefix",
                    f"less to search at once: it takes more than the {self._most_bytes >> 20} MB of "
                    "`search_memory_mb`",
                )
        return [part for part in found if len(part[1].corpus)] or found[:1]

    def _parts(self, scope: Scope) -> list[Scope]:
        """A scope as subtrees that others can share."""
        whole = replace(scope, filter=Filter())
        if scope.owner is None or Namespace.decode(scope.low).owner is not None:
            return [whole]
        rooms = [room.subtree() for room in self._index.owned(scope)]
        return [
            replace(whole, owner=None, common=True),
            *(replace(whole, low=low, high=high) for low, high in rooms),
        ]

    def _subtree(self, scope: Scope) -> _Held:
        place = repr(scope)  # spelled out: `true` and `1` are equal and not the same
        with self._mutex:
            held = self._subtrees.get(place) or self._subtrees.setdefault(place, _Held(place, Subtree(scope)))
            self._subtrees.move_to_end(place)
        return held

    def _weigh(self, held: _Held) -> int:
        """How large a subtree has become; lets go of some where all of them are too much.

        Those searched longest ago go first: of the same user if they have more than their share, then of all.
        """
        size = held.subtree.bytes
        with self._mutex:
            if self._subtrees.get(held.place) is held:  # else it was let go of meanwhile
                self._bytes[held.owner] += size - held.bytes
                held.bytes = size
                self._make_room(held)
        return size

    def _make_room(self, newest: _Held) -> None:
        owner, share = newest.owner, self._most_bytes // SHARE
        if owner is not None and self._bytes[owner] > share:
            for each in [*self._subtrees.values()]:
                if each.owner == owner and each is not newest and self._bytes[owner] > share:
                    self._let_go(each)
        while self._bytes.total() > self._most_bytes:
            self._let_go(next(iter(self._subtrees.values())))

    def _let_go(self, held: _Held) -> None:
        del self._subtrees[held.place]
        self._bytes[held.owner] -= held.bytes
        if not self._bytes[held.owner]:
            del self._bytes[held.owner]
