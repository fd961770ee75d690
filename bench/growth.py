"""Whether a call costs the same in a large store: the same calls on two stores, in turn."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import sample
from rounds import Comparison, Contender, compare, timed

from alcove import Alcove, Put

MEMORIES_A_USER = 100


class Town:
    """A store with many users, each with the same few memories, and a visitor who calls on any of them."""

    def __init__(self, path: Path, memories: int) -> None:
        self._memory = Alcove(path)
        self._users = memories // MEMORIES_A_USER
        self._chance = random.Random(1)  # noqa: S311
        self._written = 0
        self._fill()

    def _fill(self) -> None:
        keys = [f"note-{n}" for n in range(MEMORIES_A_USER)]
        start = time.monotonic()
        for n in range(self._users):
            ns, user = self._home(n)
            user.batch([Put(namespace=ns, key=key, value=sample.VALUE) for key in keys])
            if n % 1000 == 999:
                print(f"  filled {(n + 1) * len(keys):,}, {time.monotonic() - start:.0f} s", file=sys.stderr)

    def get(self, _: int) -> None:
        ns, user = self._anybody()
        assert user.get(ns, f"note-{self._chance.randrange(MEMORIES_A_USER)}")

    def put(self, _: int) -> None:
        ns, user = self._anybody()
        self._written += 1
        user.put(ns, f"later-{self._written}", sample.VALUE)

    def list(self, _: int) -> None:
        ns, user = self._anybody()
        assert len(user.list(ns[:2], limit=100)) == 100

    def _anybody(self) -> tuple[tuple[str, str, str], Alcove]:
        return self._home(self._chance.randrange(self._users))

    def _home(self, number: int) -> tuple[tuple[str, str, str], Alcove]:
        name = f"user-{number}"
        return ("user", name, "notes"), self._memory.as_user(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()


def growth(folder: Path, *, small: int, large: int, rounds: int) -> dict[str, Comparison]:
    """Get, put and list in the large store against the small one; a ratio of 2 means twice the cost."""
    with Town(folder / "small.db", small) as few, Town(folder / "large.db", large) as many:
        for town in (few, many):  # everybody once, so that no page and no key is read for the first time
            for n in range(town._users):
                ns, user = town._home(n)
                user.get(ns, "note-0")
        calls: dict[str, tuple[Callable[[int], None], Callable[[int], None], int]] = {
            "get": (few.get, many.get, 2000),
            "put": (few.put, many.put, 300),
            "list": (few.list, many.list, 100),
        }
        return {
            name: compare(_calls(base), _calls(other), base_count=count, count=count, rounds=rounds)
            for name, (other, base, count) in calls.items()
        }


def _calls(work: Callable[[int], None]) -> Contender:
    return lambda count: timed(work, count)


if __name__ == "__main__":
    with sample.folder() as folder:
        for name, c in growth(folder, small=10_000, large=int(sys.argv[1]), rounds=9).items():
            print(name, c)
