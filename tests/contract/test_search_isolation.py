"""Searching a shared room beside others: nobody finds what is somebody else's, or pays for a stranger."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path

import pytest

from alcove import Alcove, Grant, InvalidRequest, Memory, Namespace, Principal, Settings
from alcove.engine.rows import Scope
from alcove.search.sources.memory import ScopeCorpus
from tests.contract.conftest import Open
from tests.support.child_programs import say, started
from tests.support.clock import ManualClock
from tests.support.hashed_embedder import Bag
from tests.support.waiting import LONG, PATIENCE

POOL = ("org", "docs")
QUERY = "tea and rain"
ROUNDS, POOLS = (200, 500) if LONG else (20, 60)
Look = Callable[[str], list[Memory]]


def own(user: str, pool: tuple[str, ...] = POOL) -> tuple[str, ...]:
    """A room of a user's own below a pool."""
    return (*pool, "u", user)


def reader(store: Alcove, user: str) -> Alcove:
    return store.as_principal(Principal(user, grants=(Grant(Namespace(POOL[:1])),)))


def keep(store: Alcove, user: str, room: tuple[str, ...], key: str) -> None:
    reader(store, user).put(
        room, key, {"room": str(room)}, index={"text": f"tea rain {key}"}, wait_for_index=True
    )


def found(store: Alcove, user: str, pool: tuple[str, ...] = POOL, **how: object) -> list[Memory]:
    return reader(store, user).search(pool, query=QUERY, limit=100, **how)  # type: ignore[arg-type]


def rooms(memories: list[Memory]) -> set[tuple[str, ...]]:
    return {tuple(memory.namespace) for memory in memories}


# Forced interleavings: something else happens at each step of a search


class Interrupted:
    """Calls back before the nth time that a search asks the store anything, or after it."""

    def __init__(self, store: Alcove, at: int, *, after: bool, then: Callable[[], object]) -> None:
        self._index = store.memories._engine.index
        self._asked, self._at, self._after, self._then = 0, at, after, then
        self._searching = threading.get_ident()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Interrupted:
        for name in (
            "serving_embedder",
            "state",
            "owned_rooms",
            "live_texts",
            "changes",
            "matching_versions",
            "load_rows",
        ):
            setattr(self._index, name, self._wrapped(getattr(self._index, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for name in [name for name, value in vars(self._index).items() if hasattr(value, "__wrapped__")]:
            delattr(self._index, name)
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    @property
    def happened(self) -> bool:
        return bool(self._threads)

    def _wrapped(self, call: Callable[..., object]) -> Callable[..., object]:
        @wraps(call)
        def wrapped(*args: object, **named: object) -> object:
            mine = threading.get_ident() == self._searching
            self._asked += mine
            now = mine and self._asked == self._at
            if now and not self._after:
                self._interrupt()
            answer = call(*args, **named)
            if now and self._after:
                self._interrupt()
            return answer

        return wrapped

    def _interrupt(self) -> None:
        """Something else gets a moment; where it has to wait for the search, the search goes on first."""
        thread = threading.Thread(target=self._then)
        self._threads.append(thread)
        thread.start()
        thread.join(0.3)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("warm", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("filter", [None, {"room": {"$exists": True}}], ids=["plain", "filtered"])
def test_whatever_happens_at_any_step_of_a_search_it_finds_only_what_its_caller_may_see(
    open_store: Open, clock: ManualClock, filter: dict[str, object] | None, *, warm: bool, after: bool
) -> None:
    """Bob writes his first memory below the pool, and searches, at every step of Alice's search."""
    store = open_store(clock=clock, embedder=Bag())
    for step in range(1, 100):
        pool = ("org", f"docs{step}")
        room = own("bob", pool)
        keep(store, "carol", pool, "common")
        look = partial(found, store, pool=pool, filter=filter)
        if warm:
            look("alice")
            look("bob")

        def meanwhile(room: tuple[str, ...] = room, look: Look = look) -> None:
            keep(store, "bob", room, "secret")
            look("bob")

        with Interrupted(store, step, after=after, then=meanwhile) as interrupted:
            seen = look("alice")
        assert rooms(seen) == {pool}, f"at step {step}"
        if not interrupted.happened:
            break
        assert rooms(look("alice")) == {pool}, f"after step {step}"
        assert rooms(look("bob")) == {pool, room}, f"after step {step}"
    assert step > 3, "a search asks the store a few times"


def test_what_was_ranked_by_mistake_is_left_out_when_it_is_read(open_store: Open, clock: ManualClock) -> None:
    """The last step of a search looks rows up in the caller's own scope, whatever found them."""
    store = open_store(clock=clock, embedder=Bag())
    keep(store, "carol", POOL, "common")
    keep(store, "bob", own("bob"), "secret")
    low, high = Namespace(POOL).subtree()
    index, every = store.memories._engine.index, [1, 2]
    shown = {user: [row.seq for row in index.load_rows(Scope(low, high, owner=user), every, now=clock())]
             for user in ("alice", "bob")}  # fmt: skip
    assert shown == {"alice": [1], "bob": [1, 2]}
    assert [*index.load_rows(Scope(low, low, owner="bob"), every, now=clock())] == []


# Many at once: threads and processes against what each of them wrote


class Crowd:
    """Users of some pools who write, delete and search at once; each has keys that nobody else writes."""

    def __init__(self, store: Alcove, users: list[str], seed: int) -> None:
        self.store, self.users, self.seed = store, users, seed
        self.pools = [("org", f"{users[0]} {n}") for n in range(POOLS)]
        self._together = threading.Barrier(len(users))

    def run(self) -> None:
        with hasty(), ThreadPoolExecutor(len(self.users)) as threads:
            for done in threads.map(self.live, self.users):
                assert done is None

    def live(self, user: str) -> None:
        """Goes with the others from one new pool to the next, and stays in one that all processes share."""
        chance = random.Random(f"{self.seed} {user}")
        try:
            for n, pool in enumerate(self.pools):
                self._together.wait()
                visit = Visit(self.store, user, pool, chance)
                for turn in range(4):
                    if user == self.users[n % len(self.users)] and turn == 1:
                        visit.put(own(user, pool))  # the first room below it, while the others look
                    visit.look()
            last = Visit(self.store, user, POOL, chance)
            for _ in range(ROUNDS):
                last.change()
                last.look()
        except threading.BrokenBarrierError:
            pass  # somebody else has failed, and says so
        except BaseException:
            self._together.abort()
            raise


class Visit:
    """What one user does in a pool, and has there."""

    def __init__(self, store: Alcove, user: str, pool: tuple[str, ...], chance: random.Random) -> None:
        self._store, self._user, self._pool, self._chance = store, user, pool, chance
        self._handle = reader(store, user)
        self._mine: dict[tuple[str, ...], set[str]] = {pool: set(), own(user, pool): set()}

    def change(self) -> None:
        room = self._chance.choice([*self._mine])
        if self._chance.random() < 0.7:
            self.put(room)
        else:
            self._handle.delete(room, key := self._key())
            self._mine[room].discard(key)

    def put(self, room: tuple[str, ...]) -> None:
        key, number = self._key(), self._chance.randrange(100)
        self._handle.put(room, key, {"by": self._user}, index={"text": f"tea rain {number}"})
        self._mine[room].add(key)

    def _key(self) -> str:
        return f"{self._user}-{self._chance.randrange(4)}"

    def look(self) -> None:
        """Nothing of anybody else's room; and of one's own, what was written and not deleted, and no more."""
        mode = self._chance.choice(["hybrid", "keyword"])
        filter = self._chance.choice([None, {"by": {"$exists": True}}])
        seen = found(self._store, self._user, self._pool, mode=mode, filter=filter)
        assert rooms(seen) <= self._mine.keys()
        for room, keys in self._mine.items():
            here = {m.key for m in seen if tuple(m.namespace) == room}
            if room == self._pool:
                here = {key for key in here if key.startswith(f"{self._user}-")}
            assert here == keys, (self._user, room)


@contextmanager
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can, so that races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_many_principals_in_threads_and_two_processes_find_what_brute_force_finds(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    seed = random.randrange(2**32) if LONG else 7
    users = [f"user{n}" for n in range(8)]
    with Alcove(path, settings=Settings(sweep_interval=0), embedder=Bag()) as store:
        crowd = Crowd(store, users, seed)
        with started(tmp_path / "said", "tests.contract.test_search_isolation", path, seed) as child:
            child.wait_for("ready")
            child.tell("go")
            crowd.run()
            child.wait_for("done")
            child.finish()
        for pool in [POOL, *crowd.pools]:
            for user in [*users, "stranger"]:
                handle = reader(store, user)
                everything = {(m.namespace, m.key) for m in handle.list(pool, limit=1000)}
                assert {(m.namespace, m.key) for m in found(store, user, pool, mode="keyword")} == everything
                assert {namespace for namespace, _ in everything} <= {pool, own(user, pool)}


# What it costs


class Reads:
    """Counts what searches read of the store to bring subtrees up to date."""

    def __init__(self, store: Alcove, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        index = store.memories._engine.index
        for name in ("live_texts", "changes"):
            monkeypatch.setattr(index, name, self._counted(getattr(index, name)))

    def _counted(self, call: Callable[..., tuple[object, ...]]) -> Callable[..., tuple[object, ...]]:
        def counted(*args: object, **named: object) -> tuple[object, ...]:
            answer = call(*args, **named)
            self.rows += sum(len(part) for part in answer if isinstance(part, list))
            return answer

        return counted


@pytest.fixture
def pool(open_store: Open, clock: ManualClock) -> Alcove:
    """A store with a pool of some size."""
    store = open_store(clock=clock, embedder=Bag())
    many = [{"op": "put", "namespace": POOL, "key": f"k{n}", "value": {}, "index": {"text": f"tea {n}"}}
            for n in range(300)]  # fmt: skip
    reader(store, "carol").batch(many)
    reader(store, "carol").put(POOL, "last", {}, index={"text": "tea"}, wait_for_index=True)
    return store


def test_a_strangers_room_below_a_pool_costs_its_readers_nothing(
    pool: Alcove, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = [f"user{n}" for n in range(20)]
    reads = Reads(pool, monkeypatch)
    for user in users:
        found(pool, user)
    assert reads.rows == 301, "the pool is read once for all of them"
    held = pool.memories.searcher._hybrid_search.cache.size_bytes
    for n in range(50):
        reader(pool, "mallory").put(own("mallory"), f"m{n}", {}, index={"text": "tea"})
        reader(pool, "mallory").touch(own("mallory"), f"m{n}", ttl_seconds=1000)
    before = reads.rows
    for user in users:
        assert rooms(found(pool, user)) == {POOL}
    assert reads.rows - before <= 50, "what changed is looked at once, whoever comes by"
    assert pool.memories.searcher._hybrid_search.cache.size_bytes < 1.1 * held
    assert len(pool.memories.searcher._hybrid_search.cache) == 1


def test_an_own_room_below_a_pool_is_held_beside_it(pool: Alcove, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(pool, "bob", own("bob"), "mine")
    found(pool, "alice")
    reads = Reads(pool, monkeypatch)
    assert rooms(found(pool, "bob", mode="keyword")) == {POOL, own("bob")}
    assert reads.rows == 1
    assert rooms(found(pool, "alice")) == {POOL}


def test_a_change_of_an_expiry_is_read_and_nothing_else(
    pool: Alcove, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(reader(pool, "alice").search(POOL, query="last", filter={"text": "tea"})) == 1
    reads = Reads(pool, monkeypatch)
    reader(pool, "carol").touch(POOL, "last", ttl_seconds=5)
    assert len(reader(pool, "alice").search(POOL, query="tea", filter={"text": "tea"})) == 1
    assert reads.rows == 1
    clock.advance(6)
    assert reader(pool, "alice").search(POOL, query="tea", filter={"text": "tea"}) == []


def test_subtrees_in_memory_are_bounded_in_bytes_and_one_user_cannot_push_out_the_others(
    open_store: Open,
) -> None:
    store = open_store(embedder=None, settings=Settings(sweep_interval=0, search_memory_mb=1))
    subtrees = store.memories.searcher._hybrid_search.cache
    words = " ".join(f"w{n}" for n in range(300))
    victim = store.as_user("victim")
    victim.put("user:victim", "k", {}, index={"text": "tea"})
    for n in range(60):
        store.as_user("mallory").put(f"user:mallory:{n}", "k", {}, index={"text": words})
    loads: list[Scope] = []
    original = ScopeCorpus._replace

    def taken(self: ScopeCorpus, *args: object) -> None:
        loads.append(self.scope)
        original(self, *args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScopeCorpus, "_replace", taken)
        victim.search("user:victim", query="tea")
        for n in range(60):
            store.as_user("mallory").search(f"user:mallory:{n}", query="w7")
            assert subtrees.owner_bytes("mallory") <= (1 << 20) // 4
        assert len(loads) == 61
        victim.search("user:victim", query="tea")
        assert len(loads) == 61, "the victim's is still there"
    bulk = store.as_user("bulk")
    for first in range(0, 500, 100):
        bulk.batch([
            {"op": "put", "namespace": "user:bulk", "key": f"k{n}", "value": {}, "index": {"text": words}}
            for n in range(first, first + 100)
        ])  # fmt: skip
    with pytest.raises(InvalidRequest, match="search_memory_mb"):
        bulk.search("user:bulk", query="w7")
    assert subtrees.size_bytes <= 1 << 20


if __name__ == "__main__":
    with Alcove(sys.argv[1], settings=Settings(sweep_interval=0), embedder=Bag()) as child_store:
        say("ready")
        sys.stdin.readline()
        Crowd(child_store, [f"other{n}" for n in range(8)], int(sys.argv[2])).run()
        say("done")
