"""Whether a call costs the same in a large store: the same calls on two stores, in turn."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import sample
from alcove import Alcove, Put
from rounds import Comparison, compare, timed

MEMORIES_A_USER = 100


class Town:
    """A store where many users have 100 memories each, and a visitor who calls on any of them."""

    def __init__(self, path: Path, memories: int) -> None:
        self._memory = Alcove(path)
        names = [f"user-{n}" for n in range(memories // MEMORIES_A_USER)]
        self._homes = [(("user", name, "notes"), self._memory.as_user(name)) for name in names]
        self._chance = random.Random(1)
        self._written = 0

    def fill(self) -> None:
        """A batch for each user."""
        keys = [f"note-{n}" for n in range(MEMORIES_A_USER)]
        start = time.monotonic()
        for done, (ns, user) in enumerate(self._homes, 1):
            user.batch([Put(namespace=ns, key=key, value=sample.VALUE) for key in keys])
            if done % 2000 == 0:
                print(f"  filled {done * len(keys):,} in {time.monotonic() - start:.0f} s", file=sys.stderr)

    def tour(self) -> None:
        """Calls on everybody once, in any order, so that no measured call is the first to a page."""
        for ns, user in self._chance.sample(self._homes, len(self._homes)):
            user.list(ns, limit=MEMORIES_A_USER)

    def get(self, _: int) -> None:
        ns, user = self._chance.choice(self._homes)
        assert user.get(ns, f"note-{self._chance.randrange(MEMORIES_A_USER)}")

    def put(self, _: int) -> None:
        ns, user = self._chance.choice(self._homes)
        self._written += 1
        user.put(ns, f"later-{self._written}", sample.VALUE)

    def list(self, _: int) -> None:
        ns, user = self._chance.choice(self._homes)
        assert len(user.list(ns[:2], limit=MEMORIES_A_USER)) == MEMORIES_A_USER

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()


def growth(folder: Path, *, small: int, large: int, rounds: int) -> dict[str, Comparison]:
    """Get, list and put in the large store against the small one; a ratio of 2 means twice the cost."""
    with Town(folder / "small.db", small) as few, Town(folder / "large.db", large) as many:
        for town in (few, many):
            town.fill()
            town.tour()

        def cost(call: Callable[[Town, int], None], count: int) -> Comparison:
            return compare(
                lambda n: timed(lambda number: call(many, number), n),
                lambda n: timed(lambda number: call(few, number), n),
                base_count=count,
                count=count,
                rounds=rounds,
            )

        return {"get": cost(Town.get, 2000), "list": cost(Town.list, 100), "put": cost(Town.put, 300)}
