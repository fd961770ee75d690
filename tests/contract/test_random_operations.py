"""Random operations by many principals, on the store and on a plain model: no difference, no leak."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from alcove import Alcove, Conflict, Grant, Namespace, NotFound, PermissionDenied, Principal
from tests.support.clock import ManualClock
from tests.support.reference_store import Model, Refused
from tests.support.waiting import LONG

OPERATIONS = 10_000 if LONG else 2_500
SEEDS = range(10) if LONG else range(2)

USERS = ["al", "alice", "bob", "u", "a:b%3A/é\0"]
KEYS = ["k", "k2", "ü", "a:b", "k\0"]
ROOMS: list[tuple[str, ...]] = [
    ("org", "docs"),
    ("org", "docs", "deep"),
    ("org",),
    ("team", "x"),
    ("u",),
    *(("user", user) for user in USERS),
    *(("user", user, "notes") for user in USERS),
    *(("agent", "bot", "u", user) for user in USERS),
    *(("agent", "bot-2", "u", user, "u") for user in USERS),
    *(("org", "docs", "u", user) for user in USERS),  # a private room inside a shared one
    ("user",),
    ("agent", "bot"),
    ("agent", "bot", "u"),
]
GRANTS: dict[str, list[tuple[str, ...]]] = {"al": [("org", "docs")], "alice": [("org",), ("team", "x")]}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_store_and_the_model_agree(open_store: Callable[..., Alcove], seed: int) -> None:
    Comparison(open_store, random.Random(seed)).run(OPERATIONS)


class Comparison:
    """Does the same things to the store and to the model and compares every answer."""

    def __init__(self, open_store: Callable[..., Alcove], chance: random.Random) -> None:
        self.chance = chance
        self.clock = ManualClock()
        self.store = open_store(clock=self.clock)
        self.model = Model(grants=GRANTS)
        self.moments = [self.clock.now]

    def run(self, operations: int) -> None:
        weighted = {
            self.put: 30, self.get: 20, self.delete: 8, self.touch: 5, self.batch: 5, self.search: 8,
            self.events: 5, self.namespaces: 4, self.past: 8, self.history: 4, self.sweep: 2,
        }  # fmt: skip
        for n in range(operations):
            self.clock.advance(self.chance.choice([0.001, 0.001, 1, 20]))
            if n % 500 == 499:
                self.wipe()
            (operation,) = self.chance.choices(list(weighted), weights=list(weighted.values()))
            operation()
        assert [e for e in self.store.doctor() if e.wrong] == []

    def who(self) -> tuple[str, Alcove]:
        user = self.chance.choice(USERS)
        grants = tuple(Grant(Namespace(room)) for room in GRANTS.get(user, []))
        return user, self.store.as_principal(Principal(user, grants=grants))

    def place(self, user: str) -> tuple[tuple[str, ...], str]:
        """Mostly where the user may go, now and then anywhere."""
        rooms = ROOMS
        if self.chance.random() < 0.8:
            rooms = [room for room in ROOMS if self.model.allowed(user, room)]
        return self.chance.choice(rooms), self.chance.choice(KEYS)

    def expected(self) -> int | None:
        return self.chance.choice([None, None, None, 0, 1, 2])

    def both(self, real: Callable[[], object], modelled: Callable[[], object]) -> object:
        """The store's answer, which is the model's; a refusal by one is a refusal by both."""
        try:
            want = modelled()
        except Refused:
            with pytest.raises((Conflict, PermissionDenied, NotFound)):
                real()
            return None
        got = real()
        assert got == want
        return got

    def put(self) -> None:
        (user, store), now = self.who(), self.clock.now
        place, expected = self.place(user), self.expected()
        value: dict[str, object] = {"n": self.chance.random(), "by": user}
        ttl = self.chance.choice([None, None, 1, 30])
        self.both(
            lambda: store.put(*place, value, ttl_seconds=ttl, expected_revision=expected).revision,
            lambda: self.model.put(user, place, value, ttl, expected, now),
        )
        self.moments.append(now)

    def delete(self) -> None:
        (user, store), now = self.who(), self.clock.now
        place, expected = self.place(user), self.expected()
        self.both(
            lambda: store.delete(*place, expected_revision=expected).revision,
            lambda: self.model.delete(user, place, expected, now),
        )

    def touch(self) -> None:
        (user, store), now = self.who(), self.clock.now
        place, ttl = self.place(user), self.chance.choice([None, 5])

        def real() -> None:
            store.touch(*place, ttl_seconds=ttl)

        self.both(real, lambda: self.model.touch(user, place, ttl, now))

    def get(self) -> None:
        (user, store), now = self.who(), self.clock.now
        place = self.place(user)

        def real() -> object:
            found = store.get(*place)
            return found.value if found else None

        self.both(real, lambda: self.model.get(user, place, now))

    def batch(self) -> None:
        (user, store), now = self.who(), self.clock.now
        rooms = [room for room in ROOMS if self.model.allowed(user, room)]
        operations: list[dict[str, object]] = []
        want: list[object] = []
        for _ in range(self.chance.randint(1, 5)):
            place = self.chance.choice(rooms), self.chance.choice(KEYS)
            where = {"namespace": place[0], "key": place[1]}
            match self.chance.choice(["put", "delete", "get"]):
                case "put":
                    value: dict[str, object] = {"n": self.chance.random()}
                    operations.append({"op": "put", **where, "value": value})
                    want.append(self.model.put(user, place, value, None, None, now))
                case "delete":
                    operations.append({"op": "delete", **where})
                    want.append(self.model.delete(user, place, None, now))
                case _:
                    operations.append({"op": "get", **where})
                    want.append(self.model.get(user, place, now))
        got = [
            getattr(r, "value", r) if op["op"] == "get" else getattr(r, "revision", None)
            for op, r in zip(operations, store.batch(operations), strict=True)
        ]
        assert got == want
        self.moments.append(now)

    def search(self) -> None:
        (user, store), now = self.who(), self.clock.now
        prefix = self.chance.choice([(), *ROOMS])
        found = store.search(prefix, limit=100)
        assert [(m.namespace, m.key) for m in found] == self.model.search(user, prefix, now)[:100]
        for memory in found:
            assert memory.value == self.model.get(user, (memory.namespace, memory.key), now)

    def namespaces(self) -> None:
        (user, store), now = self.who(), self.clock.now
        prefix = self.chance.choice([(), *ROOMS])
        want = sorted({ns for ns, _ in self.model.search(user, prefix, now)})
        assert store.namespaces(prefix) == want

    def past(self) -> None:
        user, store = self.who()
        moment = self.chance.choice(self.moments[-200:])
        then = _rfc3339(moment)
        prefix = self.chance.choice(ROOMS)
        found = store.search(prefix, limit=100, as_of=then)
        want = self.model.search(user, prefix, self.clock.now, moment)[:100]
        assert [(m.namespace, m.key) for m in found] == want

    def events(self) -> None:
        user, store = self.who()
        prefix = self.chance.choice([(), *ROOMS])
        seen, cursor = [], None
        while True:
            page = store.events(prefix, after_cursor=cursor, limit=self.chance.randint(50, 200))
            seen += [(e.kind, (e.namespace, e.key), e.revision) for e in page.events]
            cursor = page.after_cursor
            if not page.events:
                break
        assert seen == self.model.events(user, prefix)

    def history(self) -> None:
        user, store = self.who()
        place = self.place(user)
        want = [(v.kind, v.revision, v.value, v.user) for v in self.model.log if (v.ns, v.key) == place]
        if self.model.allowed(user, place[0]):
            got = [(v.kind, v.revision, v.value, v.written_by.user) for v in store.history(*place)]
            assert got == want[::-1]

    def sweep(self) -> None:
        assert self.store.sweep().expired == self.model.sweep(self.clock.now)

    def wipe(self) -> None:
        user = self.chance.choice(USERS)
        want = self.model.wipe(user, self.clock.now)
        for dry_run in (True, False):
            try:
                removed = self.store.wipe(user, wait=False, dry_run=dry_run).removed
            except NotFound:
                removed = {"versions": 0, "memories": 0}
            assert (removed["versions"], removed["memories"]) == want


def _rfc3339(moment: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)).isoformat()
